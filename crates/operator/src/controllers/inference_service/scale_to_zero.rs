//! Scale to zero behind Gantry's gateway: the components with `minReplicas: 0` lose their pods together when the service is
//! idle, and get them back together for requests that the gateways hold.

use super::{
    component::{Autoscaler, BuildError, Component, Components},
    plan::{component_failure, is_current, live, rollout},
    snapshot::Snapshot,
    status::Fact,
};
use crate::{
    cluster::{Custom, Desired, InferenceService, OwnedObject, ResourceKind},
    conditions::{ConditionStatus, condition_status},
    plan::{Action, ClusterAction, Known},
};
use k8s_openapi::jiff::SignedDuration;
use serde_json::{Value, json};

/// How long the last pod stays without requests, as in Knative.
const RETENTION: &str = "autoscaling.knative.dev/scale-to-zero-pod-retention-period";
const SCALED_TO_ZERO: &str = "ScaledToZero";
const SCALING_UP: &str = "ScalingUp";
pub(super) const MESSAGE: &str = "scaled to zero; starts with the next request";

/// Marks the components that can be scaled to zero. Returns the time without requests until they are, in milliseconds: 0
/// for the scheduler's default, `None` if there are no such components.
pub(super) fn enable(
    object: &Custom<InferenceService>,
    built: &mut Components,
) -> Result<Option<u64>, BuildError> {
    // The share of a predictor without pods would go to its canaries, and a rollout needs pods to compare with.
    if built.delivery.is_some() || built.all.iter().any(|component| component.canary.is_some()) {
        return Ok(None);
    }
    let mut timeout = None;
    for component in &mut built.all {
        let is_hpa = matches!(component.autoscaler, Autoscaler::Hpa | Autoscaler::None);
        if is_hpa && component.spec.min_replicas == Some(0) {
            component.scales_to_zero = true;
            timeout = timeout.max(Some(retention(object, component)?));
        }
    }
    Ok(timeout)
}

/// Of the component, else of the service.
fn retention(object: &Custom<InferenceService>, component: &Component) -> Result<u64, BuildError> {
    let of_service = || object.metadata.annotations.as_ref()?.get(RETENTION);
    let Some(text) = component.spec.annotations.get(RETENTION).or_else(of_service) else { return Ok(0) };
    let period =
        text.parse::<SignedDuration>().ok().and_then(|period| u64::try_from(period.as_millis()).ok());
    // 0 is the default.
    period.map(|millis| millis.max(1)).ok_or_else(|| BuildError {
        component: component.kind,
        reason: "InvalidAutoscaler",
        message: format!("the annotation {RETENTION} is {text}: use a duration such as 30s or 5m"),
    })
}

/// `spec.replicas` of a Deployment.
pub(super) fn replicas(live: &OwnedObject) -> i64 {
    live.data.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1)
}

fn scaled(built: &Components) -> impl Iterator<Item = &Component> {
    built.all.iter().filter(|component| component.scales_to_zero)
}

/// Whether the components are to have no pods. Depends on nothing that is lost with the operator.
pub(super) fn is_down(snapshot: &Snapshot, object: &Custom<InferenceService>, built: &Components) -> bool {
    // A new spec has to show that it serves.
    let conditions = object.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
    let is_ready =
        |c: &Component| condition_status(conditions, c.kind.condition()) == Some(ConditionStatus::True);
    if scaled(built).next().is_none() || !is_current(object) || !scaled(built).all(is_ready) {
        return false;
    }
    let Some(scheduler) = &snapshot.scheduler else { return false };
    let (is_waiting, is_idle) = match &scheduler.service {
        Known::Present(view) => (view.waiting, view.idle),
        // They stay as they are.
        Known::Unknown(_) | Known::Absent => (false, false),
    };
    let has_none = |c: &Component| live(snapshot, c).is_some_and(|live| replicas(live) == 0);
    if scaled(built).all(has_none) {
        return !is_waiting;
    }
    is_idle && built.all.iter().all(|c| has_none(c) || rollout(snapshot, c).is_done())
}

/// Scales up at once, and down when no gateway sends requests to the pods any more.
pub(super) fn actions(
    snapshot: &Snapshot,
    built: &Components,
    is_down: bool,
    is_route_in_effect: bool,
) -> Vec<Action> {
    let mut actions = Vec::new();
    for component in scaled(built) {
        let Some(live) = live(snapshot, component) else { continue };
        let target = match (is_down, replicas(live)) {
            (true, 1..) if is_route_in_effect => 0,
            (false, 0) => 1,
            _ => continue,
        };
        let body = json!({ "spec": { "replicas": target } });
        let part = Desired::new(ResourceKind::DEPLOYMENT, component.key.clone(), body);
        actions.push(ClusterAction::ScaleWorkload(Box::new(part)).into());
    }
    actions
}

/// The condition of a component without pods, and while its first one starts: gateways hold its requests.
pub(super) fn fact(
    snapshot: &Snapshot,
    object: &Custom<InferenceService>,
    component: &Component,
    is_down: bool,
) -> Option<Fact> {
    let live = live(snapshot, component).filter(|_| component.scales_to_zero)?;
    if is_down {
        return (replicas(live) == 0).then(|| Fact::new(true, SCALED_TO_ZERO, MESSAGE));
    }
    let before = object.status.as_ref().filter(|_| is_current(object))?;
    let before = before.conditions.iter().find(|c| c.r#type == component.kind.condition())?;
    let was_down = before.status == "True"
        && before.reason.as_deref().is_some_and(|reason| [SCALED_TO_ZERO, SCALING_UP].contains(&reason));
    let is_starting =
        !rollout(snapshot, component).is_done() && component_failure(snapshot, component).is_none();
    (was_down && is_starting).then(|| Fact::new(true, SCALING_UP, "a pod starts for requests that wait"))
}
