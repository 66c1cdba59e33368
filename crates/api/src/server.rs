//! The kind Server: replicas that models are loaded onto.

use crate::{
    API_VERSION, Metadata,
    model::Scaling,
    object::{HasMetadata, Refusal},
};
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
    pub extra_capabilities: Vec<String>,
    /// Capabilities instead of those of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// Accepted for compatibility; not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_overrides: Option<ImageOverrides>,
    /// Changes to the configuration's pods, on Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_spec: Option<serde_json::Value>,
    /// What happens to volumes when replicas go, on Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
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
    #[serde(skip_serializing_if = "Option::is_none")]
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<serde_json::Value>,
    /// The download container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rclone: Option<serde_json::Value>,
}

impl HasMetadata for Server {
    fn metadata(&self) -> &Metadata {
        &self.metadata
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

    /// What the schema cannot say.
    pub(crate) fn rules(&self) -> Vec<Refusal> {
        let mut refused: Vec<Refusal> = Vec::new();
        if self.spec.server_config.trim().is_empty() {
            refused.push((
                "spec.serverConfig".into(),
                "is empty: name the kind of server, such as mlserver".into(),
            ));
        }
        for (field, list) in
            [("capabilities", &self.spec.capabilities), ("extraCapabilities", &self.spec.extra_capabilities)]
        {
            for (i, _) in list.iter().enumerate().filter(|(_, c)| c.trim().is_empty()) {
                refused
                    .push((format!("spec.{field}[{i}]"), "is empty: name a capability, such as onnx".into()));
            }
        }
        refused
            .extend(Scaling::new(self.spec.replicas, self.spec.min_replicas, self.spec.max_replicas).err());
        refused
    }

    /// The server as the scheduler's contract has it. Call it on a server whose rules hold.
    pub fn to_proto(&self) -> pb::ServerNotify {
        let scaling = Scaling::new(self.spec.replicas, self.spec.min_replicas, self.spec.max_replicas)
            .unwrap_or(Scaling { replicas: 1, min: 0, max: u32::MAX });
        pb::ServerNotify {
            name: self.metadata.name.clone(),
            expected_replicas: scaling.replicas,
            shared: true,
            kubernetes_meta: self.metadata.namespace.as_ref().map(|namespace| pb::KubernetesMeta {
                namespace: namespace.clone(),
                generation: self.metadata.generation.unwrap_or(1),
            }),
            min_replicas: scaling.min,
            max_replicas: if scaling.max == u32::MAX { 0 } else { scaling.max },
        }
    }
}
