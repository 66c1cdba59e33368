//! Who calls, as far as a request says.

use gantry_core::scheduling::Owner;
use gantry_proto::scheduler::KubernetesMeta;
use tonic::{Status, metadata::MetadataMap};

/// The header by which a caller says who it is.
pub(super) const MANAGER: &str = "gantry-manager";
/// The header by which an agent says of which subscription it speaks: `epoch.number`, as it was given when it
/// subscribed.
pub(super) const SUBSCRIPTION: &str = "gantry-subscription";

/// The longest name of a manager; a file's path may be long.
const MAX_OWNER_LENGTH: usize = 4096;

/// Who asks for a change: who they say, or the operator when the object is Kubernetes', or somebody at a command line.
pub(super) fn owner(
    metadata: &MetadataMap,
    kubernetes: Option<&KubernetesMeta>,
) -> Result<Owner, Status> {
    let Some(named) = metadata.get(MANAGER) else {
        return Ok(match kubernetes {
            Some(meta) => Owner::Operator { namespace: meta.namespace.clone() },
            None => Owner::Cli,
        });
    };
    let named = named.to_str().unwrap_or_default().trim();
    if named.is_empty() || named.len() > MAX_OWNER_LENGTH {
        return Err(Status::failed_precondition(format!(
            "the header {MANAGER} must say who manages the object, such as cli or file:/srv/iris.yaml, in at most \
             {MAX_OWNER_LENGTH} visible ASCII characters"
        )));
    }
    let Ok(owner) = named.parse();
    Ok(owner)
}

/// The subscription that an agent speaks of; `None` when it does not say.
pub(super) fn subscription(metadata: &MetadataMap) -> Option<(u64, u64)> {
    let said = metadata.get(SUBSCRIPTION)?.to_str().ok()?;
    let (epoch, number) = said.split_once('.')?;
    Some((epoch.parse().ok()?, number.parse().ok()?))
}
