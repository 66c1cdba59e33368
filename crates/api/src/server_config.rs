//! The kind `ServerConfig`: how the pods of a kind of inference server look.

use crate::embedded::{VolumeClaimTemplate, some_object};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What every Server of this kind starts from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerConfigSpec {
    /// The `PodSpec` of a replica; a Server's own `podSpec` is merged over it.
    #[schemars(schema_with = "some_object")]
    pub pod_spec: serde_json::Value,
    /// Volumes that each replica gets for itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_claim_templates: Vec<VolumeClaimTemplate>,
}
