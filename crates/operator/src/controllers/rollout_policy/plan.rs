//! Plan of a rollout policy.

use super::{Snapshot, scheduled, snapshot::target_kind, status};
use crate::{controllers::validation::validate, plan::Plan};
use gantry_api::{RolloutPolicyStatus, TargetKind};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// Delay before a policy of the scheduler without an object is looked up again, while the CRD is missing.
const DISCOVERY_INTERVAL: Duration = Duration::from_mins(1);

pub(super) fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<RolloutPolicyStatus> {
    let mut plan = Plan::default();
    match snapshot.object.as_deref() {
        // An API server that starts may not serve the CRD yet: the object is unknown, not absent.
        None if !snapshot.facts.is_listed => plan.requeue_after = Some(DISCOVERY_INTERVAL),
        Some(object) if !object.is_deleted() => match status::unsupported(object) {
            Some(condition) => {
                plan.status = Some(status::build_status(object, &condition, None, &snapshot.facts, now));
            }
            None if object.spec.as_ref().ok().and_then(target_kind) == Some(TargetKind::InferenceService) => {
                // The scheduler gets it with the routes of the services. It may have been one for another kind before.
                plan = scheduled::plan_absent(snapshot);
                let ready =
                    validate(object).map_or_else(|invalid| invalid, |_| status::ready(&snapshot.facts));
                scheduled::report(snapshot, object, (&ready, None), now, &mut plan);
            }
            None => return scheduled::plan(snapshot, now),
        },
        _ => return scheduled::plan(snapshot, now),
    }
    plan
}
