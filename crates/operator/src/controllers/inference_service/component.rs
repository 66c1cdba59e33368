//! Components of an `InferenceService`: names, pods, metadata and replicas of predictor, transformer and explainer.

use super::{
    LABEL,
    agent::{AgentError, AgentSidecar},
    art::Art,
    config::{Config, ResourceConfig},
    delivery::{self, Delivery},
    keda,
    multi_node::{BACKEND, GENERATION, GPU_TYPES, MultiNode, MultiNodeError, Workers, annotated_gpu_types},
    objects::{is_deployed, owner},
    pod::{MAIN, MODEL_DIR, add_env, add_flag, custom_pod, model_pod, server_labels, set},
    runtime::{NoRuntime, RecordedRuntime, Runtime, select},
    snapshot::Snapshot,
    storage::Storage,
    template::Placeholders,
};
use crate::{
    cluster::{Custom, InferenceService, Key, ResourceKind},
    workload::{merge, with_default_image},
};
use gantry_api::kserve::{
    CanarySpec, ComponentSpec, FrameworkSpec, InferenceServiceSpec, PredictorModel, PredictorSpec,
    TransformerComponent, WorkerSpec,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

type Pairs = BTreeMap<String, String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ComponentKind {
    Predictor,
    Transformer,
    Explainer,
}

impl ComponentKind {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Predictor => "predictor",
            Self::Transformer => "transformer",
            Self::Explainer => "explainer",
        }
    }

    /// The condition of the component.
    pub(super) const fn condition(self) -> &'static str {
        match self {
            Self::Predictor => "PredictorReady",
            Self::Transformer => "TransformerReady",
            Self::Explainer => "ExplainerReady",
        }
    }

    /// The condition of its route in Knative mode.
    pub(super) const fn route_condition(self) -> &'static str {
        match self {
            Self::Predictor => "PredictorRouteReady",
            Self::Transformer => "TransformerRouteReady",
            Self::Explainer => "ExplainerRoutesReady",
        }
    }

    /// The condition of its configuration in Knative mode.
    pub(super) const fn configuration_condition(self) -> &'static str {
        match self {
            Self::Predictor => "PredictorConfigurationReady",
            Self::Transformer => "TransformerConfigurationReady",
            Self::Explainer => "ExplainerConfigurationReady",
        }
    }

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Predictor => "Predictor",
            Self::Transformer => "Transformer",
            Self::Explainer => "Explainer",
        }
    }
}

/// Which objects the components become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Standard,
    Knative,
}

/// A component with its pod, ready to become objects.
#[derive(Clone, Debug)]
pub(super) struct Component {
    pub kind: ComponentKind,
    /// Name of its Deployment and its Service.
    pub key: Key,
    pub spec: ComponentSpec,
    /// Its share of the predictor's traffic; `None` for the stable predictor and for other components.
    pub canary: Option<Canary>,
    /// Its objects stay as they are: the latest spec runs beside it.
    pub is_held: bool,
    /// What its Deployment runs, under a rollout policy.
    pub version: Option<String>,
    pub pod: Value,
    /// Labels of the objects and the pods.
    pub labels: Pairs,
    pub annotations: Pairs,
    pub autoscaler: Autoscaler,
    /// Where its runtime serves gRPC without a port of its own.
    pub grpc_port: Option<u32>,
    /// Whether its model is called by V2 of the protocol, not V1.
    pub is_v2: bool,
    /// Whether it has no pods while the service is idle.
    pub scales_to_zero: bool,
    /// The other nodes of a predictor that needs several.
    pub workers: Option<Workers>,
}

/// Which autoscaler sets the replicas of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Autoscaler {
    /// None: the replicas are `minReplicas`.
    None,
    /// A `HorizontalPodAutoscaler` that the operator creates.
    Hpa,
    /// A `ScaledObject` of KEDA.
    Keda,
    /// One that the user brings.
    External,
}

/// A predictor beside the stable one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Canary {
    pub name: String,
    pub percent: i32,
    /// It runs the latest spec, and the stable predictor the previous one.
    pub is_latest: bool,
}

impl Canary {
    fn latest(percent: i32) -> Self {
        Self { name: "canary".into(), percent, is_latest: true }
    }
}

impl Component {
    pub(super) fn min_replicas(&self) -> i32 {
        self.spec.min_replicas.unwrap_or(1).max(1)
    }

    /// At least `minReplicas`.
    pub(super) fn max_replicas(&self) -> i32 {
        self.spec.max_replicas.unwrap_or(0).max(self.min_replicas())
    }

    /// The label that selects its pods.
    pub(super) fn selector(&self) -> Pairs {
        BTreeMap::from([("app".to_owned(), format!("isvc.{}", self.key.name))])
    }
}

/// Why the components cannot be built. The spec has to change, or an object that it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BuildError {
    pub component: ComponentKind,
    pub reason: &'static str,
    pub message: String,
}

/// The components of a service.
#[derive(Clone, Debug)]
pub(super) struct Components {
    /// The stable predictor first, then its canaries.
    pub all: Vec<Component>,
    /// The runtime of the model.
    pub runtime: Option<Runtime>,
    /// Under a rollout policy that acts on the service.
    pub delivery: Option<Delivery>,
}

impl Components {
    /// The component that runs the latest spec of this one.
    pub(super) fn latest<'a>(&'a self, component: &'a Component) -> &'a Component {
        let is_latest = |c: &&Component| c.canary.as_ref().is_some_and(|canary| canary.is_latest);
        self.all.iter().find(|c| component.is_held && is_latest(c)).unwrap_or(component)
    }
}

/// Builds every component of a service.
pub(super) fn components(
    snapshot: &Snapshot,
    object: &Custom<InferenceService>,
    spec: &InferenceServiceSpec,
    config: &Config,
    mode: Mode,
) -> Result<Components, BuildError> {
    let builder = Builder { snapshot, object, config, mode, none: Pairs::new() };
    if mode == Mode::Knative && !spec.canary.is_empty() {
        let remedy = "use spec.predictor.canaryTrafficPercent, or the mode Standard";
        return Err(not_supported(ComponentKind::Predictor, "spec.canary in the mode Knative", remedy));
    }
    let (mut predictor, runtime) = builder.predictor(&spec.predictor)?;
    let policy = snapshot.policy.as_ref().filter(|_| mode == Mode::Standard);
    let policy = policy.filter(|_| delivery::obstacle(snapshot, object, spec, config, "Standard").is_none());
    let delivery = policy.map(|policy| Delivery::new(snapshot, object, policy, &predictor, config));
    let latest = match (&delivery, mode) {
        (Some(delivery), _) => {
            let of_new = |component| Component { canary: Some(Canary::latest(0)), ..component };
            delivery.components(&mut predictor).map(of_new)
        }
        (None, Mode::Standard) => builder.latest(&mut predictor, !spec.canary.is_empty())?,
        (None, Mode::Knative) => None,
    };
    let mut all: Vec<Component> = std::iter::once(predictor).chain(latest).collect();
    for canary in &spec.canary {
        all.push(builder.canary(&spec.predictor, canary)?);
    }
    if let Some(transformer) = &spec.transformer {
        all.push(builder.transformer(transformer, None)?);
    }
    if let Some(explainer) = &spec.explainer {
        let kind = ComponentKind::Explainer;
        let resources = default_resources(&config.inference_service.resource);
        let mut containers = explainer.containers.clone();
        let art = explainer.art.as_ref().and_then(Value::as_object).map(|spec| Art {
            spec,
            config: &config.explainers.art,
            service: &snapshot.key,
            component: &explainer.component,
            resources: &resources,
        });
        if let Some(art) = art {
            let error = |message| BuildError { component: kind, reason: "InvalidSpec", message };
            containers.insert(0, art.container().map_err(error)?);
        }
        let mut pod = custom_pod(&containers, &explainer.pod, MAIN, &resources);
        builder.storage(kind, |storage| {
            storage.add_uris(&mut pod, &explainer.storage_uris)?;
            let storage_uri = art.and_then(|art| art.storage_uri().map(str::to_owned));
            storage.add_model(&mut pod, &FrameworkSpec { storage_uri, ..FrameworkSpec::default() })
        })?;
        if art.is_none() {
            builder.add_component_flags(&mut pod, &explainer.component, None);
        }
        all.push(builder.component(kind, &explainer.component, pod, None, None)?);
    }
    if all.iter().all(|c| c.autoscaler == Autoscaler::Keda && !keda::is_scaled(&c.spec)) {
        let message = "the annotation serving.kserve.io/autoscalerClass is keda, but no component has metrics: set \
                       autoScaling.metrics, or use the class hpa or none";
        let (component, message) = (ComponentKind::Predictor, message.to_owned());
        return Err(BuildError { component, reason: "InvalidAutoscaler", message });
    }
    Ok(Components { all, runtime, delivery })
}

/// The transformer in front of a Model, which gateways serve at a host.
pub(super) fn transformer_of_model(
    snapshot: &Snapshot,
    object: &Custom<InferenceService>,
    transformer: &TransformerComponent,
    config: &Config,
    gateway: &str,
) -> Result<Components, BuildError> {
    let builder = Builder { snapshot, object, config, mode: Mode::Standard, none: Pairs::new() };
    Ok(Components {
        all: vec![builder.transformer(transformer, Some(gateway))?],
        runtime: None,
        delivery: None,
    })
}

/// A field that Gantry does not act on yet is refused, never ignored.
fn not_supported(component: ComponentKind, field: &str, remedy: &str) -> BuildError {
    let message = format!("{field} is not supported yet: {remedy}");
    BuildError { component, reason: "NotSupported", message }
}

struct Builder<'a> {
    snapshot: &'a Snapshot,
    object: &'a Custom<InferenceService>,
    config: &'a Config,
    mode: Mode,
    none: Pairs,
}

impl Builder<'_> {
    fn annotations(&self) -> &Pairs {
        self.object.metadata.annotations.as_ref().unwrap_or(&self.none)
    }

    fn labels(&self) -> &Pairs {
        self.object.metadata.labels.as_ref().unwrap_or(&self.none)
    }

    fn storage<T>(
        &self,
        component: ComponentKind,
        add: impl FnOnce(&Storage<'_>) -> Result<T, String>,
    ) -> Result<T, BuildError> {
        let storage = Storage {
            config: self.config,
            image: &self.snapshot.image,
            containers: &self.snapshot.storage_containers,
            annotations: self.annotations(),
            credentials: &self.snapshot.credentials,
        };
        let error = |message| BuildError { component, reason: "InvalidPredictorSpec", message };
        add(&storage).map_err(error)
    }

    fn predictor(&self, predictor: &PredictorSpec) -> Result<(Component, Option<Runtime>), BuildError> {
        let kind = ComponentKind::Predictor;
        let invalid = |message| BuildError { component: kind, reason: "InvalidPredictorSpec", message };
        let worker_spec = predictor.worker_spec.as_ref();
        if worker_spec.is_some() {
            self.check_multi_node(predictor)?;
        }
        let Some(model) = predictor.model() else {
            let resources = default_resources(&self.config.inference_service.resource);
            let mut pod = custom_pod(&predictor.containers, &predictor.pod, MAIN, &resources);
            let containers = pod.get_mut("containers").and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                add_env(container, "INFERENCE_SERVICE_NAME", &self.snapshot.key.name);
            }
            self.storage(kind, |storage| {
                storage.add_uris(&mut pod, &predictor.storage_uris)?;
                add_custom_uri(&mut pod, storage)
            })?;
            return Ok((
                self.component(kind, &predictor.component, pod, None, predictor.name.as_deref())?,
                None,
            ));
        };
        let status = self.object.status.as_ref();
        let namespaced = status.and_then(|s| s.serving_runtime_name.as_deref());
        let cluster_wide = status.and_then(|s| s.cluster_serving_runtime_name.as_deref());
        let recorded = namespaced
            .map(|name| RecordedRuntime { name, is_cluster_wide: false })
            .or_else(|| cluster_wide.map(|name| RecordedRuntime { name, is_cluster_wide: true }));
        let runtime = select(&model, worker_spec.is_some(), &self.snapshot.runtimes, recorded)
            .map_err(|NoRuntime { reason, message }| BuildError { component: kind, reason, message })?;
        let of_server = server_labels(&model, runtime);
        let mut labels = self.labels().clone();
        labels.extend(of_server.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let placeholders = Placeholders {
            name: &self.snapshot.key.name,
            namespace: &self.snapshot.key.namespace,
            ingress_domain: &self.config.ingress.ingress_domain,
            labels: &labels,
            annotations: self.annotations(),
        };
        let mut pod = model_pod(predictor, &model, runtime, &placeholders).map_err(invalid)?;
        let workers = worker_spec.map(|spec| self.workers(spec, runtime, &placeholders, &mut pod, &model));
        let workers = workers.transpose()?;
        self.storage(kind, |storage| {
            storage.add_uris(&mut pod, &predictor.storage_uris)?;
            storage.add_model(&mut pod, &model.framework)
        })?;
        let name = predictor.name.as_deref();
        let component = self.component(kind, &predictor.component, pod, Some(runtime), name)?;
        let protocol = model.framework.protocol_version.as_deref();
        let known =
            || runtime.spec.protocol_versions.iter().map(String::as_str).find(|p| ["v1", "v2"].contains(p));
        let is_v2 = protocol.or_else(known) == Some("v2");
        let mut component = Component { is_v2, workers, ..component };
        if let Some((name, value)) = of_server {
            component.labels.entry(name.into()).or_insert_with(|| value.into());
        }
        if component.workers.is_some() {
            component.autoscaler = Autoscaler::None;
            component.labels.insert(GENERATION.into(), self.object.generation().to_string());
        }
        Ok((component, Some(runtime.clone())))
    }

    /// What a predictor on several nodes cannot have.
    fn check_multi_node(&self, predictor: &PredictorSpec) -> Result<(), BuildError> {
        let kind = ComponentKind::Predictor;
        let field = "spec.predictor.workerSpec";
        if self.mode == Mode::Knative {
            return Err(not_supported(
                kind,
                &format!("{field} in the mode Knative"),
                "use the mode Standard",
            ));
        }
        let spec = &predictor.component;
        if spec.min_replicas.is_some_and(|min| min != 1)
            || spec.canary_traffic_percent.is_some_and(|p| p < 100)
        {
            let remedy = "it runs once: remove minReplicas and canaryTrafficPercent";
            return Err(not_supported(kind, &format!("{field} with several replicas"), remedy));
        }
        let invalid = |reason, message: String| Err(BuildError { component: kind, reason, message });
        let class =
            self.annotations().get("serving.kserve.io/autoscalerClass").map_or("none", String::as_str);
        if class != "none" {
            let message = format!(
                "{field} needs the annotation serving.kserve.io/autoscalerClass none, which is {class}"
            );
            return invalid("InvalidAutoscaler", message);
        }
        let model = predictor.model();
        let uri = model.as_ref().and_then(|model| model.framework.storage_uri.as_deref()).unwrap_or_default();
        if !["pvc://", "oci://", "oci+"].iter().any(|scheme| uri.starts_with(scheme)) {
            let message = format!(
                "{field} needs spec.predictor.model.storageUri with pvc:// or oci://: every node reads the model"
            );
            return invalid("InvalidPredictorSpec", message);
        }
        Ok(())
    }

    /// The workers beside a head.
    fn workers(
        &self,
        spec: &WorkerSpec,
        runtime: &Runtime,
        placeholders: &Placeholders<'_>,
        head: &mut Value,
        model: &PredictorModel,
    ) -> Result<Workers, BuildError> {
        let kind = ComponentKind::Predictor;
        let error = |MultiNodeError { reason, message }| BuildError { component: kind, reason, message };
        let annotation = |name: &str| self.annotations().get(name).map(String::as_str);
        let mut gpu_types = annotated_gpu_types(annotation(GPU_TYPES)).map_err(error)?;
        gpu_types.extend(self.config.multi_node.gpu_types.iter().cloned());
        let nodes = MultiNode {
            service: &self.snapshot.key,
            generation: self.object.generation(),
            spec,
            runtime,
            placeholders,
            gpu_types: &gpu_types,
            is_mp: annotation(BACKEND) == Some("mp"),
        };
        let name = format!("{}-{}", self.snapshot.key.name, kind.as_str());
        let mut workers = nodes.build(head, &name).map_err(error)?;
        self.storage(kind, |storage| storage.add_model(&mut workers.pod, &model.framework))?;
        if let Some(name) =
            [&workers.head_service, &workers.worker_service].into_iter().find(|name| name.len() > 63)
        {
            let message =
                format!("workerSpec needs a Service {name}, whose name is too long: shorten metadata.name");
            return Err(BuildError { component: kind, reason: "NameTooLong", message });
        }
        workers.pod = with_default_image(workers.pod, &self.snapshot.image);
        if self.config.security.auto_mount_service_account_token != Some(true)
            && workers.pod.get("automountServiceAccountToken").is_none()
        {
            set(&mut workers.pod, "automountServiceAccountToken", false.into());
        }
        Ok(workers)
    }

    /// The predictor of the latest spec, beside one that keeps the previous spec while `canaryTrafficPercent` is less than
    /// 100. Which spec the stable one has is in its Deployment, so that a crash changes nothing.
    fn latest(&self, stable: &mut Component, has_canaries: bool) -> Result<Option<Component>, BuildError> {
        let percent = stable.spec.canary_traffic_percent.and_then(|p| i32::try_from(p).ok());
        let Some(percent) = percent.filter(|percent| *percent < 100) else { return Ok(None) };
        if has_canaries {
            let field = "spec.predictor.canaryTrafficPercent together with spec.canary";
            return Err(not_supported(stable.kind, field, "use one of them"));
        }
        let owner = owner(&self.snapshot.key.name, self.object.uid());
        let live = self.snapshot.owned.get(ResourceKind::DEPLOYMENT, &stable.key.name);
        if live.is_none_or(|live| is_deployed(stable, owner, self.config, live)) {
            return Ok(None);
        }
        stable.is_held = true;
        let name = format!("{}-canary", stable.key.name);
        if name.len() > 58 {
            let message = format!(
                "canaryTrafficPercent needs a Service {name}, whose name is too long: shorten metadata.name"
            );
            return Err(BuildError { component: stable.kind, reason: "NameTooLong", message });
        }
        let mut latest = stable.clone();
        latest.is_held = false;
        latest.key.name = name;
        latest.canary = Some(Canary::latest(percent));
        let share = (stable.min_replicas() * percent + 99) / 100;
        (latest.spec.min_replicas, latest.spec.max_replicas) = (Some(share.max(1)), None);
        Ok(Some(latest))
    }

    /// A canary has the fields of the stable predictor except those that it sets, and fixed replicas.
    fn canary(&self, stable: &PredictorSpec, canary: &CanarySpec) -> Result<Component, BuildError> {
        let json = |spec: &PredictorSpec| serde_json::to_value(spec).unwrap_or_default();
        let invalid = |message: String| BuildError {
            component: ComponentKind::Predictor,
            reason: "InvalidPredictorSpec",
            message: format!("spec.canary: {message}"),
        };
        let merged = merge(&json(stable), &json(&canary.predictor));
        let mut spec: PredictorSpec = serde_json::from_value(merged).map_err(|e| invalid(e.to_string()))?;
        let stable_replicas = stable.component.min_replicas.unwrap_or(1).max(1);
        let share = (stable_replicas * canary.traffic_percent + 99) / 100;
        let replicas = canary.predictor.component.min_replicas.unwrap_or(share).max(1);
        let scaling = &mut spec.component;
        scaling.canary_traffic_percent = None;
        (scaling.min_replicas, scaling.max_replicas) = (Some(replicas), None);
        (scaling.scale_metric, scaling.scale_target, scaling.auto_scaling) = (None, None, None);
        let (component, _) = self.predictor(&spec)?;
        let name = spec.name.unwrap_or_default();
        Ok(Component {
            canary: Some(Canary { name, percent: canary.traffic_percent, is_latest: false }),
            ..component
        })
    }

    /// A transformer; `gateway` is the host of a predictor without pods of its own.
    fn transformer(
        &self,
        transformer: &TransformerComponent,
        gateway: Option<&str>,
    ) -> Result<Component, BuildError> {
        let kind = ComponentKind::Transformer;
        let resources = default_resources(&self.config.inference_service.resource);
        let mut pod = custom_pod(&transformer.containers, &transformer.pod, MAIN, &resources);
        self.storage(kind, |storage| storage.add_uris(&mut pod, &transformer.storage_uris))?;
        self.add_component_flags(&mut pod, &transformer.component, gateway);
        if let Some(first) = pod.pointer_mut("/containers/0") {
            add_env(first, "INFERENCE_SERVICE_NAME", &self.snapshot.key.name);
        }
        self.component(kind, &transformer.component, pod, None, None)
    }

    /// Flags that KServe gives to transformers and explainers.
    fn add_component_flags(&self, pod: &mut Value, spec: &ComponentSpec, gateway: Option<&str>) {
        let Key { namespace, name } = &self.snapshot.key;
        if let Some(first) = pod.pointer_mut("/containers/0") {
            add_flag(first, "--model_name", name);
            match gateway {
                None => add_flag(first, "--predictor_host", &format!("{name}-predictor.{namespace}")),
                Some(gateway) => {
                    add_flag(first, "--predictor_host", gateway);
                    add_flag(first, "--protocol", "v2");
                }
            }
            add_flag(first, "--http_port", "8080");
            if let Some(workers) = spec.container_concurrency.filter(|n| *n > 0) {
                add_flag(first, "--workers", &workers.to_string());
            }
        }
    }

    fn component(
        &self,
        kind: ComponentKind,
        spec: &ComponentSpec,
        mut pod: Value,
        runtime: Option<&Runtime>,
        predictor_name: Option<&str>,
    ) -> Result<Component, BuildError> {
        let path = format!("spec.{}", kind.as_str());
        let is_knative = self.mode == Mode::Knative;
        let unsupported = [
            (
                "canaryTrafficPercent",
                !is_knative
                    && kind != ComponentKind::Predictor
                    && spec.canary_traffic_percent.is_some_and(|p| p != 100),
                "set that of the predictor",
            ),
            (
                "deploymentStrategy",
                is_knative && spec.deployment_strategy.is_some(),
                "remove it, or use the mode Standard",
            ),
        ];
        if let Some((field, _, remedy)) = unsupported.iter().find(|(_, is_set, _)| *is_set) {
            return Err(not_supported(kind, &format!("{path}.{field}"), remedy));
        }
        let name = match predictor_name.filter(|name| !name.is_empty()) {
            Some(own) => format!("{}-{own}-{}", self.snapshot.key.name, kind.as_str()),
            None => format!("{}-{}", self.snapshot.key.name, kind.as_str()),
        };
        // Pods of Deployments have the label `app: isvc.{name}`, and labels have at most 63 characters too.
        let (limit, named) = if is_knative { (63, "Service") } else { (58, "the label app of Service") };
        if name.len() > limit {
            let most = (limit + self.snapshot.key.name.len()).saturating_sub(name.len());
            let message = format!(
                "metadata.name has {} characters, at most {most} are possible: {named} {name} would have more than 63",
                self.snapshot.key.name.len()
            );
            return Err(BuildError { component: kind, reason: "NameTooLong", message });
        }
        let key = Key::new(self.snapshot.key.namespace.clone(), name);
        let inherits = &self.config.inference_service;
        let empty = Pairs::new();
        let (runtime_labels, runtime_annotations) =
            runtime.map_or((&empty, &empty), |r| (&r.spec.labels, &r.spec.annotations));
        let pairs = |layers: [&Pairs; 3], is_inherited: &dyn Fn(&str) -> bool| -> Pairs {
            let all = layers.into_iter().flatten().filter(|(name, _)| is_inherited(name));
            all.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        let own = |name: &str| !name.starts_with("gantry.dev/");
        let mut labels = pairs([runtime_labels, self.labels(), &spec.labels], &|name| {
            inherits.inherits_label(name) && own(name)
        });
        labels.insert(LABEL.into(), self.snapshot.key.name.clone());
        labels.insert("component".into(), kind.as_str().into());
        let annotations = pairs([runtime_annotations, self.annotations(), &spec.annotations], &|name| {
            inherits.inherits_annotation(name) && own(name)
        });
        let autoscaler = if is_knative { Autoscaler::None } else { self.autoscaler(kind, spec)? };
        if self.config.security.auto_mount_service_account_token != Some(true)
            && pod.get("automountServiceAccountToken").is_none()
        {
            set(&mut pod, "automountServiceAccountToken", false.into());
        }
        // Knative has a probe of its own.
        if !is_knative {
            add_readiness_probe(&mut pod);
        }
        self.add_agent(&mut pod, kind, spec, &labels, &annotations)?;
        let pod = with_default_image(pod, &self.snapshot.image);
        let spec = spec.clone();
        let endpoint = runtime.and_then(|runtime| runtime.spec.grpc_data_endpoint.as_deref());
        let grpc_port = endpoint.and_then(|endpoint| endpoint.strip_prefix("port:")?.parse().ok());
        Ok(Component {
            kind,
            key,
            spec,
            canary: None,
            is_held: false,
            version: None,
            pod,
            labels,
            annotations,
            autoscaler,
            grpc_port,
            is_v2: false,
            scales_to_zero: false,
            workers: None,
        })
    }

    /// A logger or a batcher runs beside the model server.
    fn add_agent(
        &self,
        pod: &mut Value,
        kind: ComponentKind,
        spec: &ComponentSpec,
        labels: &Pairs,
        annotations: &Pairs,
    ) -> Result<(), BuildError> {
        let agent = AgentSidecar {
            config: self.config,
            image: &self.snapshot.image,
            service: &self.snapshot.key,
            kind,
            spec,
            labels,
            annotations,
            is_knative: self.mode == Mode::Knative,
        };
        agent.add_to(pod).map_err(|error| match error {
            AgentError::NotSupported { field, remedy } => not_supported(kind, &field, remedy),
            AgentError::Invalid(message) => BuildError { component: kind, reason: "InvalidSpec", message },
        })
    }

    fn autoscaler(&self, component: ComponentKind, spec: &ComponentSpec) -> Result<Autoscaler, BuildError> {
        match self.annotations().get("serving.kserve.io/autoscalerClass").map_or("hpa", String::as_str) {
            "hpa" => Ok(Autoscaler::Hpa),
            "none" => Ok(Autoscaler::None),
            "external" => Ok(Autoscaler::External),
            "keda" if self.snapshot.has(ResourceKind::SCALED_OBJECT) => {
                keda::check(component, spec).map(|()| Autoscaler::Keda)
            }
            "keda" => Err(BuildError {
                component,
                reason: "InvalidAutoscaler",
                message: "the annotation serving.kserve.io/autoscalerClass is keda, but the cluster has no ScaledObjects: \
                          install KEDA, or use hpa, external or none"
                    .into(),
            }),
            other => Err(BuildError {
                component,
                reason: "InvalidAutoscaler",
                message: format!(
                    "the annotation serving.kserve.io/autoscalerClass is {other}: use hpa, keda, external or none"
                ),
            }),
        }
    }
}

/// A custom predictor may name its artifact in the variable `STORAGE_URI`.
fn add_custom_uri(pod: &mut Value, storage: &Storage<'_>) -> Result<(), String> {
    let env = pod.pointer("/containers/0/env").and_then(Value::as_array).cloned().unwrap_or_default();
    let is_uri = |variable: &&Value| variable.get("name") == Some(&"STORAGE_URI".into());
    let uri = env.iter().find(is_uri).and_then(|v| v.get("value")).and_then(Value::as_str);
    let Some(uri) = uri.map(str::to_owned) else { return Ok(()) };
    let framework = FrameworkSpec { storage_uri: Some(uri), ..FrameworkSpec::default() };
    storage.add_model(pod, &framework)?;
    let rewritten = env.into_iter().map(|mut variable| {
        if is_uri(&&variable) {
            set(&mut variable, "value", MODEL_DIR.into());
        }
        variable
    });
    let rewritten: Vec<Value> = rewritten.collect();
    if let Some(first) = pod.pointer_mut("/containers/0") {
        set(first, "env", rewritten.into());
    }
    Ok(())
}

fn default_resources(resources: &ResourceConfig) -> Value {
    json!({
        "limits": { "cpu": resources.cpu_limit, "memory": resources.memory_limit },
        "requests": { "cpu": resources.cpu_request, "memory": resources.memory_request },
    })
}

/// A container that receives requests is ready when its port is open, unless it has a probe of its own.
fn add_readiness_probe(pod: &mut Value) {
    let Some(main) = pod.pointer_mut("/containers/0") else { return };
    if main.get("readinessProbe").is_some() {
        return;
    }
    let port = main.pointer("/ports/0/containerPort").cloned().unwrap_or_else(|| 8080.into());
    let probe = json!({
        "tcpSocket": { "port": port },
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    });
    set(main, "readinessProbe", probe);
}
