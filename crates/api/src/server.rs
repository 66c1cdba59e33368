//! The kind Server: replicas that models are loaded onto.

use crate::{API_VERSION, Metadata, Refusal, Scaling, embedded::any_object, scaling::Scaled};
use gantry_proto::scheduler as pb;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Server: replicas of an inference server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Server {
    /// `mlops.seldon.io/v1alpha1`
    pub api_version: String,
    /// `Server`
    pub kind: String,
    /// Name and labels.
    pub metadata: Metadata,
    /// What is asked for.
    pub spec: ServerSpec,
    /// What Kubernetes reported when the object was read from it; not used.
    #[serde(skip_serializing)]
    pub status: Option<serde_json::Value>,
}

/// What is asked of a Server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerSpec {
    /// The kind of inference server: the name of a `ServerConfig` on Kubernetes, `builtin` in `gantry up`.
    pub server_config: String,
    /// Capabilities beyond those of the configuration. Deprecated: use `capabilities`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 1024)))]
    pub extra_capabilities: Vec<String>,
    /// Capabilities instead of those of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 1024)))]
    pub capabilities: Vec<String>,
    /// Accepted for compatibility; not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_overrides: Option<ImageOverrides>,
    /// Changes to the configuration's pods, on Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub pod_spec: Option<serde_json::Value>,
    /// What happens to volumes when replicas go, on Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub stateful_set_persistent_volume_claim_retention_policy: Option<serde_json::Value>,
    /// Replicas wanted; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Fewest replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_replicas: Option<i32>,
    /// Most replicas that autoscaling may ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_replicas: Option<i32>,
    /// How a Deployment is updated, on Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub deployment_strategy: Option<serde_json::Value>,
    /// Do not follow changes of the configuration.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable_auto_update: bool,
}

/// Accepted for compatibility; not used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageOverrides {
    /// The agent's container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub agent: Option<serde_json::Value>,
    /// The download container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub rclone: Option<serde_json::Value>,
}

impl Scaled for ServerSpec {
    fn written(&self) -> [Option<i32>; 3] {
        [self.replicas, self.min_replicas, self.max_replicas]
    }
}

impl ServerSpec {
    /// How many replicas are wanted; `Err` is a field and what is wrong with it.
    pub fn scaling(&self) -> Result<Scaling, Refusal> {
        let [replicas, min, max] = self.written();
        Scaling::new(replicas, min, max)
    }

    /// The server as the scheduler's contract has it. Call it on a spec whose rules hold.
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
            max_replicas: scaling.max_on_the_wire(),
        }
    }
}

impl Server {
    /// A server by name and size.
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

    /// The server as the scheduler's contract has it. Call it on a server whose rules hold.
    pub fn to_proto(&self) -> pb::ServerNotify {
        let meta = &self.metadata;
        self.spec.to_proto(&meta.name, meta.namespace.as_deref(), meta.generation)
    }
}
