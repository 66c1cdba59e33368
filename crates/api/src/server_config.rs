//! The kind `ServerConfig`: pod template of an inference server.

use crate::k8s_passthrough::{VolumeClaimTemplate, required_object};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Template for the Servers that reference this configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerConfigSpec {
    /// `PodSpec` of a replica; the Server's `podSpec` is merged over it.
    #[schemars(schema_with = "required_object")]
    pub pod_spec: serde_json::Value,
    /// Volumes claimed by each replica.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_claim_templates: Vec<VolumeClaimTemplate>,
}
