//! Plan of an Algorithm: the state of its rollout first, then the objects that follow from it.

use super::{
    engine::advance,
    objects::Objects,
    placement::place,
    retry::retry,
    revision::{Templates, revision_of},
    route::{self, RouteBuilder},
    snapshot::Snapshot,
    status::{Observed, event, invalid},
};
use crate::{
    cluster::{Algorithm, Custom, Desired},
    controllers::validation::validate_ratcheted,
    plan::{ClusterAction, Plan},
    workload::{ApplyFailure, apply_actions},
};
use gantry_api::{AlgorithmSpec, AlgorithmStatus};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// Interval of plans without a change.
const RESYNC: Duration = Duration::from_secs(30);

pub(super) fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<AlgorithmStatus> {
    // The garbage collector deletes the objects of one that is gone.
    let Some(object) = snapshot.object.as_deref().filter(|object| !object.is_deleted()) else {
        let mut plan = Plan::default();
        route::send(snapshot, None, &mut plan);
        return plan;
    };
    let has_workload = object.status.as_ref().is_some_and(|status| status.stable_revision.is_some());
    match validate_ratcheted(object, has_workload) {
        Ok(spec) => roll_out(snapshot, object, spec, now),
        // What runs keeps running.
        Err(condition) => Plan { status: Some(invalid(object, &condition, now)), ..Plan::default() },
    }
}

fn roll_out(
    snapshot: &Snapshot,
    object: &Custom<Algorithm>,
    spec: &AlgorithmSpec,
    now: Timestamp,
) -> Plan<AlgorithmStatus> {
    let status = object.status.as_ref();
    let template = spec.pod_template();
    let desired_revision = revision_of(&template);
    let millis = u64::try_from(now.as_millisecond()).unwrap_or_default();
    let advanced = advance(snapshot, object, spec, &desired_revision, millis);
    let mut templates = Templates::new(status, &template);
    templates.retain(&advanced.state, &desired_revision);
    let is_split = if spec.has_own_route() {
        snapshot.scheduler.is_some()
    } else {
        spec.expose.is_some() && snapshot.has_http_routes
    };
    let placement = place(snapshot, spec, status, &advanced.state, is_split);
    let objects =
        Objects { snapshot, spec, uid: object.uid(), templates: &templates, placement: &placement, is_split };
    let desired = objects.desired();
    let retry = retry(status, &snapshot.failures, &desired, &snapshot.owned, now);
    // The announced time counts, not that of the cause.
    let held = retry.held.iter().map(|failure| ApplyFailure { age: Duration::ZERO, ..failure.clone() });
    let held: Vec<ApplyFailure> = held.collect();
    let applies = apply_actions(&desired, &snapshot.owned, &held);
    let route =
        RouteBuilder { snapshot, spec, templates: &templates, placement: &placement, state: &advanced.state };
    let route = route.build();
    let mut plan = Plan { status_first: true, ..Plan::default() };
    // Before the objects: it has ready pods only, and a rejected object must not keep requests at a bad revision.
    route::send(snapshot, route.as_ref(), &mut plan);
    plan.actions.extend(applies.actions);
    if applies.failures.is_empty() {
        plan.actions.extend(deletions(snapshot, &desired, &templates, &placement.stable));
    }
    plan.requeue_within(RESYNC);
    if let Some(delay) = advanced.requeue_after {
        plan.requeue_within(delay);
    }
    if let Some(next) = retry.next.filter(|_| !retry.held.is_empty()) {
        let left = u64::try_from(next.as_millisecond() - now.as_millisecond()).unwrap_or_default();
        plan.requeue_within(Duration::from_millis(left.max(1)));
    }
    plan.events.extend(advanced.events.iter().filter_map(event));
    let observed = Observed {
        snapshot,
        object,
        spec,
        desired: &desired_revision,
        advanced: &advanced,
        templates: &templates,
        placement: &placement,
        retry: &retry,
        route: route.as_ref(),
        now,
    };
    plan.status = Some(observed.status());
    plan
}

/// Objects that are not desired any more. A Deployment without a known template stays as it is.
fn deletions(
    snapshot: &Snapshot,
    desired: &[Desired],
    templates: &Templates,
    stable: &str,
) -> Vec<crate::plan::Action> {
    let is_known = templates.get(stable).is_some();
    let orphans = snapshot.owned.orphans(desired, false).into_iter();
    orphans.filter(|_| is_known).map(|target| ClusterAction::Delete(target).into()).collect()
}
