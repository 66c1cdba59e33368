//! Identity of the caller, from request metadata.

use gantry_core::scheduling::Owner;
use gantry_proto::scheduler::KubernetesMeta;
use tonic::{Status, metadata::MetadataMap};

/// Names the owner on whose behalf the caller acts.
pub(super) const MANAGER: &str = "gantry-manager";
/// Identifies an agent's subscription as `epoch.number`; returned by Subscribe.
pub(super) const SUBSCRIPTION: &str = "gantry-subscription";

/// File paths may be long.
const MAX_OWNER_LENGTH: usize = 4096;

/// The header's owner; else the operator for objects with Kubernetes metadata, else the CLI.
pub(super) fn owner(metadata: &MetadataMap, kubernetes: Option<&KubernetesMeta>) -> Result<Owner, Status> {
    let Some(named) = metadata.get(MANAGER) else {
        return Ok(match kubernetes {
            Some(meta) => Owner::Operator { namespace: meta.namespace.clone() },
            None => Owner::Cli,
        });
    };
    let named = named.to_str().unwrap_or_default().trim();
    if named.is_empty() || named.len() > MAX_OWNER_LENGTH {
        return Err(Status::failed_precondition(format!(
            "header {MANAGER} must name the owner, such as cli or file:/srv/iris.yaml, in at most {MAX_OWNER_LENGTH} \
             visible ASCII characters"
        )));
    }
    let Ok(owner) = named.parse();
    Ok(owner)
}

pub(super) fn subscription(metadata: &MetadataMap) -> Option<(u64, u64)> {
    let value = metadata.get(SUBSCRIPTION)?.to_str().ok()?;
    let (epoch, number) = value.split_once('.')?;
    Some((epoch.parse().ok()?, number.parse().ok()?))
}
