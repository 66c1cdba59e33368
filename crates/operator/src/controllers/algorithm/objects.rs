//! Desired objects of an Algorithm.

use super::{
    ALGORITHM, MetricsApi, REVISION, TRACK, Track,
    placement::Placement,
    revision::Templates,
    snapshot::{LiveDeployment, Snapshot},
};
use crate::{
    cluster::{Algorithm, Desired, Key, KindId, ResourceKind},
    external_metrics,
    workload::{Inherited, Owner, Workload, pod_disruption_budget},
};
use gantry_api::{AlgorithmSpec, PodTemplate};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

type Pairs = BTreeMap<String, String>;

/// Where files of `config` are.
const CONFIG_DIR: &str = "/etc/algorithm";
const CONFIG_VOLUME: &str = "config";
/// Replicas up to which a rolling update keeps all of them available.
const FEW_REPLICAS: u32 = 3;
/// Old `ReplicaSets` of a Deployment: the previous revision returns from them.
const HISTORY: u32 = 3;
const SCALE_DOWN_WINDOW: u32 = 300;
const CPU_UTILIZATION: u32 = 80;

/// What the objects are built from.
pub(super) struct Objects<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) spec: &'a AlgorithmSpec,
    pub(super) uid: &'a str,
    pub(super) templates: &'a Templates,
    pub(super) placement: &'a Placement,
    /// Whether a gateway splits the requests.
    pub(super) is_split: bool,
}

impl Objects<'_> {
    /// All objects, in the order in which they are applied: what receives requests exists before they are sent.
    pub(super) fn desired(&self) -> Vec<Desired> {
        let mut objects: Vec<Desired> = self.templates.iter().map(|(r, t)| self.config_map(r, t)).collect();
        objects.push(self.service(Track::Stable));
        objects.extend(self.deployment(Track::Stable, &self.placement.stable, None));
        if let Some(canary) = &self.placement.canary {
            objects.push(self.service(Track::Canary));
            objects.extend(self.deployment(Track::Canary, &canary.revision, Some(canary.replicas)));
        }
        objects.push(self.apex());
        if self.spec.is_autoscaled() {
            objects.push(self.autoscaler());
        }
        let labels = json!(self.labels());
        let key = self.key(self.name().to_owned());
        objects.push(pod_disruption_budget(key, &self.owner(), &self.selector(Track::Stable), &labels));
        if self.is_split {
            objects.extend(self.route());
        }
        objects
    }

    fn name(&self) -> &str {
        &self.snapshot.key.name
    }

    fn key(&self, name: String) -> Key {
        Key::new(self.snapshot.key.namespace.clone(), name)
    }

    const fn owner(&self) -> Owner<'_> {
        Owner { kind: KindId::of::<Algorithm>(), name: self.snapshot.key.name.as_str(), uid: self.uid }
    }

    fn labels(&self) -> Pairs {
        BTreeMap::from([(ALGORITHM.to_owned(), self.name().to_owned())])
    }

    fn selector(&self, track: Track) -> Pairs {
        let mut selector = self.labels();
        selector.insert(TRACK.to_owned(), track.as_str().to_owned());
        selector
    }

    fn object(&self, kind: ResourceKind, name: String, labels: &Pairs, rest: Value) -> Desired {
        let mut body =
            json!({ "metadata": { "labels": labels, "ownerReferences": self.owner().references() } });
        if let (Value::Object(body), Value::Object(rest)) = (&mut body, rest) {
            body.extend(rest);
        }
        Desired::new(kind, self.key(name), body)
    }

    /// Immutable, and named by its revision: the previous revision keeps its files.
    fn config_map(&self, revision: &str, template: &PodTemplate) -> Desired {
        let mut data = template.config.clone();
        data.insert("algorithm.json".into(), serde_json::to_string_pretty(template).unwrap_or_default());
        let mut labels = self.labels();
        labels.insert(REVISION.to_owned(), revision.to_owned());
        let name = config_name(self.name(), revision);
        self.object(ResourceKind::CONFIG_MAP, name, &labels, json!({ "data": data, "immutable": true }))
    }

    fn ports(&self) -> Vec<Value> {
        let stable = self.templates.get(&self.placement.stable);
        let ports = stable.map_or_else(|| self.spec.pod_template().ports, |stable| stable.ports.clone());
        let port = |port: &gantry_api::AlgorithmPort| json!({ "name": port.name, "port": port.container_port, "targetPort": port.name, "protocol": "TCP" });
        ports.iter().map(port).collect()
    }

    fn service(&self, track: Track) -> Desired {
        let spec = json!({ "type": "ClusterIP", "selector": self.selector(track), "ports": self.ports() });
        let name = track.service(self.name());
        self.object(ResourceKind::SERVICE, name, &self.selector(track), json!({ "spec": spec }))
    }

    /// Selects the pods of both tracks only while the canary has a part of the requests.
    fn apex(&self) -> Desired {
        let selector = match self.placement.weight {
            0 => self.selector(Track::Stable),
            100 => self.selector(Track::Canary),
            _ => self.labels(),
        };
        let spec = json!({ "type": "ClusterIP", "selector": selector, "ports": self.ports() });
        self.object(ResourceKind::SERVICE, self.name().to_owned(), &self.labels(), json!({ "spec": spec }))
    }

    /// `None` when the template of the revision is not known: the Deployment stays as it is.
    fn deployment(&self, track: Track, revision: &str, replicas: Option<u32>) -> Option<Desired> {
        let pod = self.pod(track, revision, self.templates.get(revision)?);
        let wanted = replicas.or_else(|| self.stable_replicas());
        let mut more = Map::new();
        let size = replicas.unwrap_or_else(|| self.spec.range().0);
        more.insert(
            "strategy".into(),
            json!({ "type": "RollingUpdate", "rollingUpdate": self.limits(size) }),
        );
        more.insert("revisionHistoryLimit".into(), HISTORY.into());
        let workload = Workload {
            kind: ResourceKind::DEPLOYMENT,
            key: self.key(track.deployment(self.name())),
            owner: self.owner(),
            selector: self.selector(track),
            inherited: Inherited::default(),
            labels: BTreeMap::from([(REVISION.to_owned(), revision.to_owned())]),
            annotations: BTreeMap::new(),
            pod_annotations: BTreeMap::new(),
            replicas: wanted,
            bare: pod.clone(),
            pod,
            claims: &[],
            more,
        };
        Some(workload.desired())
    }

    /// `None` leaves them to the autoscaler, which does not scale up from zero.
    fn stable_replicas(&self) -> Option<u32> {
        let initial = self.spec.initial_replicas();
        let live = self.snapshot.deployment(Track::Stable).map(LiveDeployment::replicas);
        let is_left = self.spec.is_autoscaled() && live.is_some_and(|replicas| replicas > 0);
        (!is_left).then_some(initial)
    }

    fn limits(&self, replicas: u32) -> Value {
        let (surge, unavailable) =
            if replicas <= FEW_REPLICAS { (json!(1), json!(0)) } else { (json!("25%"), json!("25%")) };
        let own = self.spec.rolling_update.clone().unwrap_or_default();
        let or = |own: Option<gantry_api::IntOrString>, default: Value| own.map_or(default, |own| json!(own));
        json!({ "maxSurge": or(own.max_surge, surge), "maxUnavailable": or(own.max_unavailable, unavailable) })
    }

    fn pod(&self, track: Track, revision: &str, template: &PodTemplate) -> Value {
        let mut own = vec![
            ("ALGORITHM_NAME", self.name()),
            ("ALGORITHM_NAMESPACE", self.snapshot.key.namespace.as_str()),
            ("ALGORITHM_REVISION", revision),
            ("ALGORITHM_TRACK", track.as_str()),
        ];
        own.retain(|(name, _)| {
            !template.env.iter().any(|v| v.get("name").and_then(Value::as_str) == Some(name))
        });
        let own = own.into_iter().map(|(name, value)| json!({ "name": name, "value": value }));
        let env: Vec<Value> = own.chain(template.env.iter().cloned()).collect();
        let ports: Vec<Value> = template
            .ports
            .iter()
            .map(|p| json!({ "name": p.name, "containerPort": p.container_port, "protocol": "TCP" }))
            .collect();
        let mut container = json!({
            "name": "algorithm",
            "image": template.image,
            "ports": ports,
            "env": env,
            "volumeMounts": [{ "name": CONFIG_VOLUME, "mountPath": CONFIG_DIR, "readOnly": true }],
        });
        if let Value::Object(fields) = &mut container {
            let resources = resources(template);
            if resources != json!({}) {
                fields.insert("resources".into(), resources);
            }
            fields.extend(template.probe.clone().map(|probe| ("readinessProbe".to_owned(), probe)));
        }
        let volume =
            json!({ "name": CONFIG_VOLUME, "configMap": { "name": config_name(self.name(), revision) } });
        json!({ "containers": [container], "volumes": [volume] })
    }

    /// Only where there is a range to scale in.
    fn autoscaler(&self) -> Desired {
        let (min, max) = self.spec.range();
        let name = self.name();
        let target = json!({ "type": "Utilization", "averageUtilization": CPU_UTILIZATION });
        let mut metrics =
            vec![json!({ "type": "Resource", "resource": { "name": "cpu", "target": target } })];
        // The CPU stays as a second metric: the higher number of replicas counts.
        metrics.extend(self.spec.target_latency_ms().filter(|_| self.follows_latency()).map(|target| {
            let metric = json!({
                "name": external_metrics::METRIC,
                "selector": { "matchLabels": external_metrics::labels(name) },
            });
            let target = json!({ "type": "Value", "value": target.to_string() });
            json!({ "type": "External", "external": { "metric": metric, "target": target } })
        }));
        let spec = json!({
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": name },
            "minReplicas": min.max(1),
            "maxReplicas": max,
            "metrics": metrics,
            "behavior": { "scaleDown": { "stabilizationWindowSeconds": SCALE_DOWN_WINDOW } },
        });
        let kind = ResourceKind::HORIZONTAL_POD_AUTOSCALER;
        self.object(kind, name.to_owned(), &self.labels(), json!({ "spec": spec }))
    }

    /// Whether external metrics are served. While this is not known, the live autoscaler decides.
    fn follows_latency(&self) -> bool {
        match &self.snapshot.metrics_api {
            MetricsApi::NotNeeded | MetricsApi::Missing => false,
            MetricsApi::Registered { .. } => true,
            MetricsApi::Unknown(_) => {
                let kind = ResourceKind::HORIZONTAL_POD_AUTOSCALER;
                let live = self.snapshot.owned.get(kind, self.name());
                let metrics = live.and_then(|live| live.data.pointer("/spec/metrics")?.as_array());
                let mut types = metrics.into_iter().flatten().filter_map(|metric| metric.get("type"));
                types.any(|kind| kind == "External")
            }
        }
    }

    /// `None` for a route of Gantry's own gateway.
    fn route(&self) -> Option<Desired> {
        let (expose, gateway) = (self.spec.expose.as_ref()?, self.spec.gateway()?);
        let own = self.snapshot.key.namespace.as_str();
        let (namespace, gateway) = gateway.split_once('/').unwrap_or((own, gateway));
        let port = self.ports().first().and_then(|port| port.get("port").cloned())?;
        let backend = |track: Track, weight: u32| {
            json!({
                "group": "", "kind": "Service", "name": track.service(self.name()), "port": port, "weight": weight,
            })
        };
        let weight = self.placement.weight;
        let mut backends = vec![backend(Track::Stable, 100 - weight)];
        if weight > 0 {
            backends.push(backend(Track::Canary, weight));
        }
        let parent = json!({
            "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": namespace, "name": gateway,
        });
        let path = json!({ "path": { "type": "PathPrefix", "value": "/" } });
        let mut spec = json!({
            "parentRefs": [parent],
            "rules": [{ "matches": [path], "backendRefs": backends }],
        });
        if let Value::Object(fields) = &mut spec
            && !expose.hostnames.is_empty()
        {
            fields.insert("hostnames".into(), json!(expose.hostnames));
        }
        let name = self.name().to_owned();
        Some(self.object(ResourceKind::HTTP_ROUTE, name, &self.labels(), json!({ "spec": spec })))
    }
}

/// The digest's first digits are enough within one Algorithm.
fn config_name(algorithm: &str, revision: &str) -> String {
    let digits: String = revision.chars().take(8).collect();
    format!("{algorithm}-config-{digits}")
}

fn resources(template: &PodTemplate) -> Value {
    let (mut requests, mut limits) = (Map::new(), Map::new());
    if let Some((name, count)) = &template.gpu {
        requests.insert(name.clone(), json!(count.to_string()));
        limits.insert(name.clone(), json!(count.to_string()));
    }
    if let Some(cpu) = &template.cpu {
        requests.insert("cpu".into(), json!(cpu));
    }
    if let Some(memory) = &template.memory {
        requests.insert("memory".into(), json!(memory));
        limits.insert("memory".into(), json!(memory));
    }
    let mut resources = Map::new();
    for (name, values) in [("requests", requests), ("limits", limits)] {
        if !values.is_empty() {
            resources.insert(name.into(), values.into());
        }
    }
    resources.into()
}
