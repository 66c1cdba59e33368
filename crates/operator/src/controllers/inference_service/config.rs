//! Settings of the `ConfigMap` `inferenceservice-config`: each key is a JSON text.

use crate::{cluster::OwnedObject, plan::Known};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};

/// The name of the `ConfigMap`, in the namespace of the operator.
pub const CONFIG_MAP: &str = "inferenceservice-config";

/// Labels and annotations that no object inherits.
const ANNOTATIONS_NOT_INHERITED: [&str; 5] = [
    "autoscaling.knative.dev/min-scale",
    "autoscaling.knative.dev/max-scale",
    "internal.serving.kserve.io/storage-initializer-sourceuri",
    "kubectl.kubernetes.io/last-applied-configuration",
    "modelFormat",
];
const LABELS_NOT_INHERITED: [&str; 1] = ["networking.knative.dev/visibility"];

/// Deployment modes, with their former names.
const MODES: [&str; 6] = ["", "Standard", "RawDeployment", "Knative", "Serverless", "ModelMesh"];

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    pub ingress: IngressConfig,
    pub storage_initializer: StorageInitializerConfig,
    pub deploy: DeployConfig,
    pub credentials: CredentialsConfig,
    pub inference_service: InferenceServiceConfig,
    pub service: ServiceConfig,
    pub security: SecurityConfig,
    pub autoscaler: AutoscalerConfig,
    pub router: RouterConfig,
    pub agent: SidecarResources,
    pub logger: LoggerConfig,
    pub batcher: BatcherConfig,
    pub explainers: ExplainersConfig,
    pub multi_node: MultiNodeConfig,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ExplainersConfig {
    pub art: ArtConfig,
}

/// The image of the Adversarial Robustness Toolbox.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ArtConfig {
    pub image: String,
    pub default_image_version: String,
}

impl Default for ArtConfig {
    fn default() -> Self {
        Self { image: "kserve/art-explainer".into(), default_image_version: "latest".into() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MultiNodeConfig {
    /// GPU resources beside the well-known ones.
    #[serde(rename = "customGPUResourceTypeList")]
    pub gpu_types: Vec<String>,
}

/// How a pod reads a model that is an OCI image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OciMode {
    /// Through a container of the image.
    Modelcar,
    /// Through a volume of the image.
    Native,
}

impl OciMode {
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "modelcar" => Ok(Self::Modelcar),
            "native" => Ok(Self::Native),
            "fetch" => {
                Err("images are not downloaded into a directory: use the mode modelcar or native".into())
            }
            other => Err(format!("there is no mode {other} of OCI images: use modelcar or native")),
        }
    }
}

/// Settings of downloads and of OCI images.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StorageInitializerConfig {
    #[serde(flatten)]
    pub resources: SidecarResources,
    pub enable_modelcar: Option<bool>,
    pub enable_oci_model_support: Option<bool>,
    pub oci_model_mode: String,
    pub cpu_modelcar: String,
    pub memory_modelcar: String,
    /// User of the containers that share the model.
    pub uid_modelcar: Option<i64>,
}

impl Default for StorageInitializerConfig {
    fn default() -> Self {
        Self {
            resources: SidecarResources::default(),
            enable_modelcar: None,
            enable_oci_model_support: None,
            oci_model_mode: String::new(),
            cpu_modelcar: "10m".into(),
            memory_modelcar: "15Mi".into(),
            uid_modelcar: None,
        }
    }
}

impl StorageInitializerConfig {
    /// The mode of `oci://`; why there is none.
    pub fn oci_mode(&self) -> Result<OciMode, String> {
        match self.oci_model_mode.as_str() {
            "" if self.enable_modelcar == Some(false) && self.enable_oci_model_support != Some(true) => {
                Err("enableModelcar is false in the key storageInitializer of inferenceservice-config".into())
            }
            "" => Ok(OciMode::Modelcar),
            mode => OciMode::parse(mode),
        }
    }
}

/// Settings of loggers. Images and resources are those of `agent`: one container has all roles.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoggerConfig {
    /// The sink of a logger without one.
    pub default_url: String,
    /// A `ConfigMap` in the namespace of the pod, with certificates of sinks.
    pub ca_bundle: String,
    pub ca_cert_file: String,
    pub tls_skip_verify: bool,
}

impl Default for LoggerConfig {
    fn default() -> Self {
        let unset = String::new;
        Self {
            default_url: "http://default-broker".into(),
            ca_bundle: unset(),
            ca_cert_file: unset(),
            tls_skip_verify: false,
        }
    }
}

/// Limits of batches without their own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BatcherConfig {
    #[serde(deserialize_with = "number_or_text")]
    pub max_batch_size: u32,
    /// Milliseconds.
    #[serde(deserialize_with = "number_or_text")]
    pub max_latency: u32,
}

impl Default for BatcherConfig {
    fn default() -> Self {
        Self { max_batch_size: 32, max_latency: 5000 }
    }
}

/// KServe has numbers as texts.
fn number_or_text<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let number = match &value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64().and_then(|number| u32::try_from(number).ok()),
    };
    let number = number.filter(|number| *number > 0);
    number.ok_or_else(|| serde::de::Error::custom(format!("{value} is not a number of at least 1")))
}

/// Settings of `InferenceGraphs`. Those of router pods are ignored: gateways execute graphs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RouterConfig {
    pub headers: RouterHeaders,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RouterHeaders {
    /// Patterns of the headers that each step gets.
    pub propagate: Vec<String>,
}

#[allow(clippy::struct_excessive_bools, reason = "the fields of KServe's settings")]
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressConfig {
    pub enable_gateway_api: bool,
    /// `<namespace>/<name>` of the Gateway.
    pub kserve_ingress_gateway: String,
    pub ingress_domain: String,
    pub ingress_class_name: Option<String>,
    pub additional_ingress_domains: Vec<String>,
    pub domain_template: String,
    pub url_scheme: String,
    pub disable_ingress_creation: bool,
    #[serde(rename = "disableHTTPRouteTimeout")]
    pub disable_http_route_timeout: bool,
    /// `<namespace>/<name>` of Istio's Gateway.
    pub ingress_gateway: String,
    pub local_gateway: String,
    /// Hosts of the gateways of Istio and Knative inside the cluster.
    pub local_gateway_service: String,
    pub knative_local_gateway_service: String,
    /// Istio is used in Standard mode only where this is set to false.
    pub disable_istio_virtual_host: Option<bool>,
    /// Whether the `ConfigMap` has the key: without it there is no ingress to use.
    #[serde(skip)]
    pub is_configured: bool,
}

impl Default for IngressConfig {
    fn default() -> Self {
        Self {
            enable_gateway_api: false,
            kserve_ingress_gateway: "kserve/kserve-ingress-gateway".into(),
            ingress_domain: "example.com".into(),
            ingress_class_name: None,
            additional_ingress_domains: Vec::new(),
            domain_template: "{{ .Name }}-{{ .Namespace }}.{{ .IngressDomain }}".into(),
            url_scheme: "http".into(),
            disable_ingress_creation: false,
            disable_http_route_timeout: false,
            ingress_gateway: String::new(),
            local_gateway: String::new(),
            local_gateway_service: String::new(),
            knative_local_gateway_service: String::new(),
            disable_istio_virtual_host: None,
            is_configured: false,
        }
    }
}

/// Resources of a container that the operator adds to pods.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SidecarResources {
    pub memory_request: String,
    pub memory_limit: String,
    pub cpu_request: String,
    pub cpu_limit: String,
}

impl Default for SidecarResources {
    fn default() -> Self {
        Self {
            memory_request: "100Mi".into(),
            memory_limit: "1Gi".into(),
            cpu_request: "100m".into(),
            cpu_limit: "1".into(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeployConfig {
    pub default_deployment_mode: Option<String>,
    pub deployment_rollout_strategy: Option<RolloutStrategy>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RolloutStrategy {
    /// `maxSurge` and `maxUnavailable`.
    pub default_rollout: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CredentialsConfig {
    pub storage_spec_secret_name: String,
    pub storage_secret_name_annotation: String,
    pub gcs: GcsConfig,
    pub s3: S3Config,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct GcsConfig {
    /// The key of a Secret with a service account of Google.
    #[serde(rename = "gcsCredentialFileName")]
    pub credential_file_name: String,
}

impl Default for GcsConfig {
    fn default() -> Self {
        Self { credential_file_name: "gcloud-application-credentials.json".into() }
    }
}

/// Settings of S3 where a Secret has no annotation for them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct S3Config {
    /// The keys of a Secret.
    #[serde(rename = "s3AccessKeyIDName")]
    pub access_key_id_name: String,
    #[serde(rename = "s3SecretAccessKeyName")]
    pub secret_access_key_name: String,
    #[serde(rename = "s3Endpoint")]
    pub endpoint: String,
    #[serde(rename = "s3UseHttps")]
    pub use_https: String,
    #[serde(rename = "s3Region")]
    pub region: String,
    #[serde(rename = "s3VerifySSL")]
    pub verify_ssl: String,
    #[serde(rename = "s3UseVirtualBucket")]
    pub use_virtual_bucket: String,
    #[serde(rename = "s3UseAccelerate")]
    pub use_accelerate: String,
    #[serde(rename = "s3UseAnonymousCredential")]
    pub use_anonymous_credential: String,
    #[serde(rename = "s3CABundleConfigMap")]
    pub ca_bundle_config_map: String,
    #[serde(rename = "s3CABundle")]
    pub ca_bundle: String,
}

impl Default for S3Config {
    fn default() -> Self {
        let unset = String::new;
        Self {
            access_key_id_name: "awsAccessKeyID".into(),
            secret_access_key_name: "awsSecretAccessKey".into(),
            endpoint: unset(),
            use_https: unset(),
            region: unset(),
            verify_ssl: unset(),
            use_virtual_bucket: unset(),
            use_accelerate: unset(),
            use_anonymous_credential: unset(),
            ca_bundle_config_map: unset(),
            ca_bundle: unset(),
        }
    }
}

impl Default for CredentialsConfig {
    fn default() -> Self {
        Self {
            storage_spec_secret_name: "storage-config".into(),
            storage_secret_name_annotation: "serving.kserve.io/storageSecretName".into(),
            gcs: GcsConfig::default(),
            s3: S3Config::default(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InferenceServiceConfig {
    pub resource: ResourceConfig,
    pub service_annotation_disallowed_list: Vec<String>,
    pub service_label_disallowed_list: Vec<String>,
}

impl InferenceServiceConfig {
    pub fn inherits_annotation(&self, name: &str) -> bool {
        !ANNOTATIONS_NOT_INHERITED.contains(&name)
            && !self.service_annotation_disallowed_list.iter().any(|listed| listed == name)
    }

    pub fn inherits_label(&self, name: &str) -> bool {
        !LABELS_NOT_INHERITED.contains(&name)
            && !self.service_label_disallowed_list.iter().any(|listed| listed == name)
    }
}

/// Resources of custom containers without their own.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceConfig {
    pub cpu_limit: String,
    pub memory_limit: String,
    pub cpu_request: String,
    pub memory_request: String,
}

impl Default for ResourceConfig {
    fn default() -> Self {
        let (cpu, memory) = ("1".to_owned(), "2Gi".to_owned());
        Self {
            cpu_limit: cpu.clone(),
            memory_limit: memory.clone(),
            cpu_request: cpu,
            memory_request: memory,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceConfig {
    #[serde(rename = "serviceClusterIPNone")]
    pub service_cluster_ip_none: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SecurityConfig {
    pub auto_mount_service_account_token: Option<bool>,
}

/// Windows of KEDA's autoscalers without a behaviour of their own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AutoscalerConfig {
    pub scale_up_stabilization_window_seconds: String,
    pub scale_down_stabilization_window_seconds: String,
}

impl Default for AutoscalerConfig {
    fn default() -> Self {
        Self {
            scale_up_stabilization_window_seconds: "0".into(),
            scale_down_stabilization_window_seconds: "300".into(),
        }
    }
}

/// The last valid `ConfigMap`, which counts while a newer one is broken. Safe to lose: services then stay as they are.
#[derive(Debug, Default)]
pub struct LastValidConfig(Mutex<Option<ConfigInput>>);

type ConfigInput = Known<Arc<OwnedObject>>;

impl LastValidConfig {
    /// The last valid `ConfigMap`, and the error of a newer one that is invalid.
    pub(super) fn effective(&self, read: ConfigInput) -> (ConfigInput, Option<String>) {
        let error = match &read {
            Known::Unknown(_) => return (read, None),
            Known::Absent => None,
            Known::Present(map) => Config::parse(map).err(),
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match error {
            None => {
                *known = Some(read.clone());
                (read, None)
            }
            Some(error) => (known.clone().unwrap_or(read), known.is_some().then_some(error)),
        }
    }
}

impl Config {
    /// Every error names its key.
    pub fn parse(map: &OwnedObject) -> Result<Self, String> {
        let data = map.data.get("data");
        let mut errors = Vec::new();
        let ingress: Option<IngressConfig> = section(data, "ingress", &mut errors);
        let ingress = ingress.map(|ingress| IngressConfig { is_configured: true, ..ingress });
        let config = Self {
            ingress: ingress.unwrap_or_default(),
            storage_initializer: section(data, "storageInitializer", &mut errors).unwrap_or_default(),
            deploy: section(data, "deploy", &mut errors).unwrap_or_default(),
            credentials: section(data, "credentials", &mut errors).unwrap_or_default(),
            inference_service: section(data, "inferenceService", &mut errors).unwrap_or_default(),
            router: section(data, "router", &mut errors).unwrap_or_default(),
            service: section(data, "service", &mut errors).unwrap_or_default(),
            security: section(data, "security", &mut errors).unwrap_or_default(),
            autoscaler: section(data, "autoscaler", &mut errors).unwrap_or_default(),
            agent: section(data, "agent", &mut errors).unwrap_or_default(),
            logger: section(data, "logger", &mut errors).unwrap_or_default(),
            batcher: section(data, "batcher", &mut errors).unwrap_or_default(),
            explainers: section(data, "explainers", &mut errors).unwrap_or_default(),
            multi_node: section(data, "multiNode", &mut errors).unwrap_or_default(),
        };
        errors.extend(config.quantity_errors());
        let oci = &config.storage_initializer.oci_model_mode;
        if !["", "modelcar", "native", "fetch"].contains(&oci.as_str()) {
            errors.push(format!("key storageInitializer has the ociModelMode {oci}: use modelcar or native"));
        }
        let mode = config.deploy.default_deployment_mode.as_deref().unwrap_or_default();
        if !MODES.contains(&mode) {
            errors.push(format!(
                "key deploy has the defaultDeploymentMode {mode}: use Standard, Knative or ModelMesh"
            ));
        }
        let gateway = &config.ingress.kserve_ingress_gateway;
        let is_name = |(namespace, name): (&str, &str)| {
            gantry_api::check_name(namespace).is_ok() && gantry_api::check_name(name).is_ok()
        };
        if config.ingress.enable_gateway_api && !gateway.split_once('/').is_some_and(is_name) {
            errors.push(format!(
                "key ingress has the kserveIngressGateway {gateway:?}: write NAMESPACE/NAME of a Gateway"
            ));
        }
        if errors.is_empty() { Ok(config) } else { Err(errors.join("; ")) }
    }

    /// Amounts that no pod could have: each would fail the pods of all services.
    fn quantity_errors(&self) -> Vec<String> {
        let sidecar = |key: &'static str, resources: &SidecarResources| {
            let SidecarResources { memory_request, memory_limit, cpu_request, cpu_limit } = resources.clone();
            [
                (key, "memoryRequest", memory_request),
                (key, "memoryLimit", memory_limit),
                (key, "cpuRequest", cpu_request),
                (key, "cpuLimit", cpu_limit),
            ]
        };
        let storage = &self.storage_initializer;
        let ResourceConfig { cpu_limit, memory_limit, cpu_request, memory_request } =
            self.inference_service.resource.clone();
        let custom = SidecarResources { memory_request, memory_limit, cpu_request, cpu_limit };
        let all = sidecar("storageInitializer", &storage.resources)
            .into_iter()
            .chain(sidecar("agent", &self.agent))
            .chain(sidecar("inferenceService.resource", &custom))
            .chain([
                ("storageInitializer", "cpuModelcar", storage.cpu_modelcar.clone()),
                ("storageInitializer", "memoryModelcar", storage.memory_modelcar.clone()),
            ]);
        let wrong = all.filter(|(_, _, amount)| !gantry_api::is_quantity(amount));
        wrong
            .map(|(key, field, amount)| {
                format!("key {key} has the {field} {amount:?}: write a quantity such as 500m, 1 or 2Gi")
            })
            .collect()
    }
}

fn section<T: DeserializeOwned>(data: Option<&Value>, key: &str, errors: &mut Vec<String>) -> Option<T> {
    let text = data?.get(key)?.as_str()?;
    match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(error) => {
            errors.push(format!("key {key} is not valid: {error}"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(data: &Value) -> Result<Config, String> {
        Config::parse(&serde_json::from_value(json!({ "data": data })).unwrap())
    }

    #[test]
    fn missing_keys_have_defaults() {
        assert_eq!(parse(&json!({})).unwrap(), Config::default());
        let config = parse(&json!({
            "_example": "not JSON",
            "ingress": r#"{"ingressDomain": "ml.test", "ingressClassName": "nginx", "disableHTTPRouteTimeout": true}"#,
            "deploy": r#"{"defaultDeploymentMode": "RawDeployment"}"#,
            "service": r#"{"serviceClusterIPNone": true}"#,
            "batcher": r#"{"image": "kserve/agent:v1", "maxBatchSize": "7"}"#,
        }))
        .unwrap();
        assert_eq!(config.batcher, BatcherConfig { max_batch_size: 7, max_latency: 5000 });
        assert_eq!(config.ingress.ingress_domain, "ml.test");
        assert!(config.ingress.is_configured && config.ingress.disable_http_route_timeout);
        assert!(config.service.service_cluster_ip_none);
        assert_eq!(config.ingress.url_scheme, "http");
        assert_eq!(config.storage_initializer.resources.memory_limit, "1Gi");
    }

    #[test]
    fn last_valid_settings_count_while_newer_ones_are_broken() {
        let map = |text: &str| {
            let map = json!({ "data": { "ingress": text } });
            Known::Present(Arc::new(serde_json::from_value::<OwnedObject>(map).unwrap()))
        };
        let known = LastValidConfig::default();
        let used = |read| match known.effective(read) {
            (Known::Present(map), error) => (map.data["data"]["ingress"].clone(), error.is_some()),
            (_, error) => (Value::Null, error.is_some()),
        };
        assert_eq!(used(map("{")), (json!("{"), false), "nothing valid is known");
        assert_eq!(used(map("{}")), (json!("{}"), false));
        assert_eq!(used(map("{")), (json!("{}"), true));
        assert_eq!(used(Known::Absent), (Value::Null, false));
        assert_eq!(used(map("{")), (Value::Null, true), "the defaults count");
    }

    #[test]
    fn every_broken_key_is_named() {
        let error = parse(
            &json!({ "ingress": "{", "deploy": "7", "service": "{}", "batcher": "{\"maxLatency\": \"0\"}" }),
        )
        .unwrap_err();
        assert!(error.contains("key ingress is not valid"), "{error}");
        assert!(error.contains("key deploy is not valid"), "{error}");
        assert!(!error.contains("service"), "{error}");
        assert!(error.contains("key batcher is not valid: \"0\" is not a number of at least 1"), "{error}");
        let error = parse(&json!({ "deploy": r#"{"defaultDeploymentMode": "Fast"}"# })).unwrap_err();
        assert!(error.contains("defaultDeploymentMode Fast: use Standard"), "{error}");
    }
}
