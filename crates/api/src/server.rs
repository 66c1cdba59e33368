//! The kind Server: inference server replicas that load models.

use crate::{
    API_VERSION, FieldError, Metadata, Scaling, k8s_passthrough::optional_object, scaling::ReplicaFields,
};
use gantry_proto::scheduler as pb;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Server: replicas of an inference server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Server {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    pub spec: ServerSpec,
    /// Accepted so that the output of `kubectl get -o yaml` can be applied; ignored.
    #[serde(skip_serializing)]
    pub status: Option<serde_json::Value>,
}

/// Desired state of a Server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerSpec {
    /// Name of the `ServerConfig` (Kubernetes) or of a built-in server type such as `builtin` (`gantry up`).
    pub server_config: String,
    /// Capabilities in addition to those of the `ServerConfig`. Deprecated: use `capabilities`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 1024)))]
    pub extra_capabilities: Vec<String>,
    /// Capabilities that replace those of the `ServerConfig`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 1024)))]
    pub capabilities: Vec<String>,
    /// Accepted for compatibility; not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_overrides: Option<ImageOverrides>,
    /// `PodSpec` merged over the one of the `ServerConfig` (Kubernetes).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub pod_spec: Option<serde_json::Value>,
    /// Retention of volumes when the Server is deleted or scaled down (Kubernetes).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub stateful_set_persistent_volume_claim_retention_policy: Option<serde_json::Value>,
    /// Desired replicas; defaults to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Minimum replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_replicas: Option<i32>,
    /// Maximum replicas for autoscaling; 0 or unset means unbounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_replicas: Option<i32>,
    /// Update strategy when the Server runs as a Deployment (Kubernetes).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub deployment_strategy: Option<serde_json::Value>,
    /// Keep the pods unchanged when the `ServerConfig` changes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable_auto_update: bool,
}

/// Accepted for compatibility; not used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageOverrides {
    /// The agent's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub agent: Option<serde_json::Value>,
    /// The download container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "optional_object")]
    pub rclone: Option<serde_json::Value>,
}

impl ReplicaFields for ServerSpec {
    fn replica_fields(&self) -> [Option<i32>; 3] {
        [self.replicas, self.min_replicas, self.max_replicas]
    }
}

impl ServerSpec {
    pub fn scaling(&self) -> Result<Scaling, FieldError> {
        let [replicas, min, max] = self.replica_fields();
        Scaling::new(replicas, min, max)
    }

    /// The server in the scheduler's gRPC API; the spec must be valid.
    pub fn to_proto(&self, name: &str, namespace: Option<&str>, generation: Option<i64>) -> pb::ServerNotify {
        let scaling = self.scaling().unwrap_or_default();
        pb::ServerNotify {
            name: name.to_owned(),
            expected_replicas: scaling.replicas,
            shared: true,
            kubernetes_meta: namespace.map(|namespace| pb::KubernetesMeta {
                namespace: namespace.to_owned(),
                generation: generation.unwrap_or(1),
            }),
            min_replicas: scaling.min,
            max_replicas: scaling.max_in_proto(),
        }
    }
}

impl Server {
    pub fn named(name: impl Into<String>, replicas: i32) -> Self {
        Self {
            api_version: API_VERSION.into(),
            kind: "Server".into(),
            metadata: Metadata { name: name.into(), ..Metadata::default() },
            spec: ServerSpec {
                server_config: "builtin".into(),
                replicas: Some(replicas),
                ..ServerSpec::default()
            },
            status: None,
        }
    }

    /// The server in the scheduler's gRPC API; the spec must be valid.
    pub fn to_proto(&self) -> pb::ServerNotify {
        let meta = &self.metadata;
        self.spec.to_proto(&meta.name, meta.namespace.as_deref(), meta.generation)
    }
}
