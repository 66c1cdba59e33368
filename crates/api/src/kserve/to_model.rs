//! An InferenceService as a Model of a scheduler, without Kubernetes.

use super::{
    ComponentSpec, FrameworkSpec, InferenceServiceSpec, KSERVE_V1BETA1, ModelFormat, PredictorModel,
    PredictorSpec,
};
use crate::{FieldError, INFERENCE_SERVICE, Metadata, Model, ModelSpec, Quantity, object::DEFAULT_NAMESPACE};
use serde_json::{Value, json};

/// Formats that the built-in runtime, or a server such as MLServer beside it, offers as capabilities.
const FORMATS: [&str; 9] =
    ["onnx", "xgboost", "lightgbm", "sklearn", "mlflow", "huggingface", "tensorflow", "pytorch", "tensorrt"];
/// Fields of a container that a model without one cannot have.
const CONTAINER_FIELDS: [&str; 3] = ["image", "command", "args"];
const GPUS: [&str; 4] = ["nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu", "habana.ai/gaudi"];
const MIG: &str = "nvidia.com/mig";
/// Locations that only a cluster can mount.
const CLUSTER_SCHEMES: [&str; 4] = ["pvc://", "oci://", "oci+native://", "oci+fetch://"];

impl InferenceServiceSpec {
    /// The model that serves the predictor, or everything that needs a cluster. The spec must be valid.
    pub fn to_model(&self, metadata: &Metadata) -> Result<Model, Vec<FieldError>> {
        let mut errors = Vec::new();
        let needs_cluster = |path: &str, what: &str, remedy: &str| {
            (path.to_owned(), format!("{what}, which needs Standard mode on Kubernetes: {remedy}"))
        };
        if self.transformer.is_some() {
            errors.push(needs_cluster(
                "spec.transformer",
                "is a container",
                "remove it to serve the predictor alone, or use a Pipeline",
            ));
        }
        if self.explainer.is_some() {
            errors.push(needs_cluster(
                "spec.explainer",
                "is a container",
                "remove it to serve the predictor alone",
            ));
        }
        if !self.canary.is_empty() {
            errors.push(needs_cluster(
                "spec.canary",
                "splits traffic between pods",
                "use an Experiment here",
            ));
        }
        let predictor = &self.predictor;
        if predictor.worker_spec.is_some() {
            errors.push(needs_cluster("spec.predictor.workerSpec", "has several nodes", "remove it"));
        }
        if !predictor.containers.is_empty() {
            errors.push(needs_cluster(
                "spec.predictor.containers",
                "has containers",
                "use model with modelFormat and storageUri",
            ));
        }
        component_errors(&predictor.component, &mut errors);
        let model = predictor.model();
        let field = predictor.frameworks().next().map_or("model", |(framework, _)| framework.as_str());
        let at = |name: &str| format!("spec.predictor.{field}{name}");
        let spec = model.map(|model| {
            let uri = self.location(&model.framework, &at, &mut errors);
            spec(&model, uri, &predictor.component, &at, &mut errors)
        });
        match spec {
            Some(spec) if errors.is_empty() => Ok(Model {
                api_version: KSERVE_V1BETA1.into(),
                kind: INFERENCE_SERVICE.into(),
                metadata: Metadata {
                    namespace: Some(metadata.namespace.clone().unwrap_or_else(|| DEFAULT_NAMESPACE.into())),
                    generation: None,
                    ..metadata.clone()
                },
                spec,
                status: None,
            }),
            _ => Err(errors),
        }
    }

    fn location(
        &self,
        model: &FrameworkSpec,
        at: &impl Fn(&str) -> String,
        errors: &mut Vec<FieldError>,
    ) -> String {
        let (path, uri) = match (&model.storage_uri, self.predictor.storage_uris.as_slice()) {
            (Some(uri), _) => (at(".storageUri"), uri.clone()),
            (None, [only]) => ("spec.predictor.storageUris.0.uri".to_owned(), only.uri.clone()),
            (None, []) if model.storage.is_some() => {
                let message =
                    "refers to a Secret of the cluster: use storageUri, with credentials in the environment";
                errors.push((at(".storage"), message.into()));
                return String::new();
            }
            (None, []) => {
                errors.push((at(".storageUri"), "is missing: set it to the location of the model".into()));
                return String::new();
            }
            (None, _) => {
                let message =
                    "has several artifacts, which needs Standard mode on Kubernetes: use one storageUri";
                errors.push(("spec.predictor.storageUris".into(), message.into()));
                return String::new();
            }
        };
        if let Some(scheme) = CLUSTER_SCHEMES.iter().find(|scheme| uri.starts_with(**scheme)) {
            let message = format!(
                "is a volume or an image of the cluster ({scheme}): use a path, s3://, gs://, hf:// or https://"
            );
            errors.push((path, message));
        }
        uri
    }
}

/// The spec of an InferenceService whose model this is.
impl From<&ModelSpec> for InferenceServiceSpec {
    fn from(model: &ModelSpec) -> Self {
        let mut framework =
            FrameworkSpec { storage_uri: Some(model.storage_uri.clone()), ..FrameworkSpec::default() };
        if let Some(memory) = &model.memory {
            let memory = memory.bytes().to_string();
            framework.container.insert("resources".into(), json!({ "limits": { "memory": memory } }));
        }
        let name = model.requirements.first().cloned().unwrap_or_default();
        let model_format = ModelFormat { name, version: None };
        // The scheduler reports no minimum as unset.
        let is_zero = model.min_replicas.unwrap_or(0) == 0;
        let min_replicas = Some(if is_zero { 0 } else { model.replicas.unwrap_or(1) });
        let predictor = PredictorSpec {
            model: Some(PredictorModel { model_format, runtime: None, framework }),
            component: ComponentSpec { min_replicas, ..ComponentSpec::default() },
            ..PredictorSpec::default()
        };
        Self { predictor, ..Self::default() }
    }
}

/// Fields that act on pods.
fn component_errors(component: &ComponentSpec, errors: &mut Vec<FieldError>) {
    let set = [
        ("logger", component.logger.is_some(), "sends events from a sidecar"),
        (
            "canaryTrafficPercent",
            component.canary_traffic_percent.is_some(),
            "splits traffic between revisions",
        ),
    ];
    for (field, _, what) in set.iter().filter(|(_, is_set, _)| *is_set) {
        errors.push((
            format!("spec.predictor.{field}"),
            format!("{what}, which needs Standard mode on Kubernetes: remove it"),
        ));
    }
}

fn spec(
    model: &PredictorModel,
    storage_uri: String,
    component: &ComponentSpec,
    at: &impl Fn(&str) -> String,
    errors: &mut Vec<FieldError>,
) -> ModelSpec {
    let format = model.model_format.name.trim().to_ascii_lowercase();
    if !FORMATS.contains(&format.as_str()) {
        let shown = model.model_format.name.escape_debug();
        let known = FORMATS.join(", ");
        let message = format!("\"{shown}\" has no runtime here, only {known}: convert the model to ONNX");
        errors.push((at(".modelFormat.name"), message));
    }
    let FrameworkSpec { container, confidential, .. } = &model.framework;
    for field in CONTAINER_FIELDS.iter().filter(|field| container.contains_key(**field)) {
        let message = "changes the runtime's container, which needs Standard mode on Kubernetes: remove it";
        errors.push((at(&format!(".{field}")), message.into()));
    }
    if confidential.as_ref().is_some_and(|c| c.enabled) {
        errors.push((at(".confidential"), "needs a confidential container on Kubernetes: remove it".into()));
    }
    let memory = memory(container.get("resources"), at, errors);
    // As many as there is room for, but at least one unless it may be scaled to zero.
    let min = component.min_replicas.unwrap_or(1);
    ModelSpec {
        storage_uri,
        requirements: vec![format],
        memory,
        replicas: Some(min.max(1)),
        min_replicas: Some(min.clamp(0, 1)),
        ..ModelSpec::default()
    }
}

fn memory(
    resources: Option<&Value>,
    at: &impl Fn(&str) -> String,
    errors: &mut Vec<FieldError>,
) -> Option<Quantity> {
    let mut memory = None;
    for part in ["limits", "requests"] {
        let Some(amounts) = resources.and_then(|r| r.get(part)).and_then(Value::as_object) else { continue };
        for name in amounts.keys().filter(|name| GPUS.contains(&name.as_str()) || name.starts_with(MIG)) {
            let message = "is a GPU, which no runtime here uses: remove it to serve on CPUs";
            errors.push((at(&format!(".resources.{part}.{name}")), message.into()));
        }
        let text = match amounts.get("memory") {
            Some(Value::String(text)) => text.clone(),
            Some(number @ Value::Number(_)) => number.to_string(),
            _ => continue,
        };
        match Quantity::parse(&text) {
            Ok(amount) => drop(memory.get_or_insert(amount)),
            Err(problem) => errors.push((at(&format!(".resources.{part}.memory")), problem)),
        }
    }
    memory
}
