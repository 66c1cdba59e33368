//! Settings of the `ConfigMap` `inferenceservice-config`: each key is a JSON text.

use crate::cluster::OwnedObject;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

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

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    pub ingress: IngressConfig,
    pub storage_initializer: StorageInitializerConfig,
    pub deploy: DeployConfig,
    pub credentials: CredentialsConfig,
    pub inference_service: InferenceServiceConfig,
    pub service: ServiceConfig,
    pub security: SecurityConfig,
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
            is_configured: false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StorageInitializerConfig {
    pub memory_request: String,
    pub memory_limit: String,
    pub cpu_request: String,
    pub cpu_limit: String,
}

impl Default for StorageInitializerConfig {
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
}

impl Default for CredentialsConfig {
    fn default() -> Self {
        Self {
            storage_spec_secret_name: "storage-config".into(),
            storage_secret_name_annotation: "serving.kserve.io/storageSecretName".into(),
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
            service: section(data, "service", &mut errors).unwrap_or_default(),
            security: section(data, "security", &mut errors).unwrap_or_default(),
        };
        if errors.is_empty() { Ok(config) } else { Err(errors.join("; ")) }
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
        }))
        .unwrap();
        assert_eq!(config.ingress.ingress_domain, "ml.test");
        assert!(config.ingress.is_configured && config.ingress.disable_http_route_timeout);
        assert!(config.service.service_cluster_ip_none);
        assert_eq!(config.ingress.url_scheme, "http");
        assert_eq!(config.storage_initializer.memory_limit, "1Gi");
    }

    #[test]
    fn every_broken_key_is_named() {
        let error = parse(&json!({ "ingress": "{", "deploy": "7", "service": "{}" })).unwrap_err();
        assert!(error.contains("key ingress is not valid"), "{error}");
        assert!(error.contains("key deploy is not valid"), "{error}");
        assert!(!error.contains("service"), "{error}");
    }
}
