//! Identity of the caller, from request metadata.

use crate::{
    access::Caller,
    engine::{Start, Subscription},
};
use gantry_core::scheduling::Owner;
use gantry_proto::scheduler::KubernetesMeta;
use tonic::{Status, metadata::MetadataMap};

/// Names the owner on whose behalf the caller acts.
pub(super) const MANAGER: &str = "gantry-manager";
/// Identifies an agent's subscription as `state.epoch.number`; returned by Subscribe.
pub(super) const SUBSCRIPTION: &str = "gantry-subscription";

/// The generation that a load of the operator replaces; 0 for none.
pub(super) const REPLACES: &str = "gantry-replaces-generation";

/// File paths may be long.
const MAX_OWNER_LENGTH: usize = 4096;

/// The header's owner; else the operator for objects of the API server, else the CLI. An owner that the caller's role
/// does not allow is denied.
pub(super) fn owner(
    caller: &Caller,
    metadata: &MetadataMap,
    kubernetes: Option<&KubernetesMeta>,
) -> Result<Owner, Status> {
    caller.owner(named_owner(caller, metadata, kubernetes)?)
}

fn named_owner(
    caller: &Caller,
    metadata: &MetadataMap,
    kubernetes: Option<&KubernetesMeta>,
) -> Result<Owner, Status> {
    let Some(named) = metadata.get(MANAGER) else {
        // The API server counts generations from 1. Seldon's CLI sends metadata without one, and so does the operator for
        // an object that it no longer finds.
        return Ok(match kubernetes.filter(|meta| meta.generation > 0 || caller.is_operator()) {
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

/// As [`owner`], for objects that gateways never load. Their deletion has no metadata of the API server, and Seldon's
/// operator names itself in no other way; Gantry's also sends [`REPLACES`] with a load.
pub(super) fn loading_owner(
    caller: &Caller,
    metadata: &MetadataMap,
    kubernetes: Option<&KubernetesMeta>,
) -> Result<Owner, Status> {
    let is_named = metadata.contains_key(MANAGER) || metadata.contains_key(REPLACES);
    let owner = match named_owner(caller, metadata, kubernetes)? {
        Owner::Operator { namespace } if !is_named => Owner::SeldonOperator { namespace },
        owner => no_gateway(owner)?,
    };
    caller.owner(owner)
}

/// The owner that deletes an object which gateways never load.
pub(super) fn deleting_owner(caller: &Caller, metadata: &MetadataMap) -> Result<Owner, Status> {
    if !metadata.contains_key(MANAGER) {
        return caller.owner(Owner::Unnamed);
    }
    caller.owner(no_gateway(named_owner(caller, metadata, None)?)?)
}

fn no_gateway(owner: Owner) -> Result<Owner, Status> {
    match owner {
        Owner::Gateway => Err(Status::failed_precondition(
            "`owner` is reserved for gateways, which load models only: name another owner",
        )),
        owner => Ok(owner),
    }
}

pub(super) fn replaced_generation(metadata: &MetadataMap) -> Option<i64> {
    metadata.get(REPLACES)?.to_str().ok()?.parse().ok()
}

/// Marks a failed load that an agent expects to fail again until something changes.
const PERMANENT_FAILURE: &str = "gantry-permanent-failure";

pub(super) fn is_permanent_failure(metadata: &MetadataMap) -> bool {
    metadata.get(PERMANENT_FAILURE).is_some_and(|value| value == "true")
}

pub(super) fn subscription_header(Subscription { start, connection }: Subscription) -> String {
    format!("{}.{}.{connection}", start.state_id, start.epoch)
}

/// `None` without the header. A header of another form belongs to an earlier version: no subscription has connection 0.
pub(super) fn subscription(metadata: &MetadataMap) -> Option<Subscription> {
    let value = metadata.get(SUBSCRIPTION)?.to_str().unwrap_or_default();
    let mut parts = value.split('.').map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    let start = Start { state_id: next(), epoch: next() };
    Some(Subscription { start, connection: next() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Grant, Identity, Role};

    fn caller(role: Role) -> Caller {
        Caller::new(Identity { name: String::new(), grant: Grant::Role { role, restrictions: Vec::new() } })
    }

    #[test]
    fn owner_without_a_name_follows_the_role_and_the_generation() {
        let meta = |generation| KubernetesMeta { namespace: "ml".into(), generation };
        let operator = Owner::Operator { namespace: "ml".into() };
        let of = |role, generation| owner(&caller(role), &MetadataMap::new(), Some(&meta(generation))).ok();
        assert_eq!(of(Role::Operator, 3), Some(operator.clone()));
        // A server that was deleted while the operator was away.
        assert_eq!(of(Role::Operator, 0), Some(operator));
        assert_eq!(of(Role::Client, 0), Some(Owner::Cli));
        assert_eq!(of(Role::Client, 3), None, "a client is no operator");
    }
}
