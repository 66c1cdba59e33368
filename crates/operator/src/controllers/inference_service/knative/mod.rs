//! Serverless mode: a Service of Knative per component.

mod istio;
mod service;
mod status;

use super::{
    component::{Component, Components, Mode, components},
    config::Config,
    objects::owner,
    plan::{ServicePlan, finish, is_current, is_frozen, not_built, not_deployed},
    snapshot::Snapshot,
    status::{Fact, INGRESS_READY, Observed, STOPPED, write_delay},
};
use crate::{
    cluster::{Custom, Desired, EventDraft, InferenceService, OwnedObject, ResourceKind},
    conditions::ConditionStatus,
    plan::{ClusterAction, Plan},
    workload::{ApplyFailure, apply_actions},
};
use gantry_api::kserve::InferenceServiceSpec;
use istio::Istio;
use k8s_openapi::jiff::Timestamp;
use status::ServiceState;

const REJECTED: &str = "ServerlessModeRejected";

pub(super) fn plan(
    snapshot: &Snapshot,
    object: &Custom<InferenceService>,
    spec: &InferenceServiceSpec,
    config: &Config,
    now: Timestamp,
) -> ServicePlan {
    if !snapshot.has(ResourceKind::KNATIVE_SERVICE) {
        return reject(object, now);
    }
    let built = match components(snapshot, object, spec, config, Mode::Knative) {
        Ok(built) => built,
        Err(error) => return not_built(object, &error, now),
    };
    let states: Vec<ServiceState<'_>> = built
        .all
        .iter()
        .map(|component| ServiceState::of(object, component, live(snapshot, component)))
        .collect();
    let mut desired: Vec<Desired> = Vec::new();
    for (component, state) in built.all.iter().zip(&states) {
        let owner = owner(&snapshot.key.name, object.uid());
        desired.push(service::service(component, object, owner, state.rolled_out()));
    }
    let istio = Istio::new(snapshot, object, config, &built, &states);
    desired.extend(istio.iter().flat_map(Istio::objects));
    let applies = apply_actions(&desired, &snapshot.owned, &snapshot.failures);
    let mut plan = Plan { requeue_after: applies.retry_after, ..Plan::default() };
    plan.actions = applies.actions;
    let observed = observe(snapshot, object, &built, &states, istio.as_ref(), &applies.failures);
    // The route of a service that is not ready is kept.
    if applies.failures.is_empty() && states.iter().all(|state| state.ready.is_true()) {
        let orphans = snapshot.owned.orphans(&desired, false);
        plan.actions.extend(orphans.into_iter().map(|target| ClusterAction::Delete(target).into()));
    }
    if is_frozen(object) {
        plan.actions.clear();
    }
    let mut plan = finish(object, &observed, now, plan);
    if let Some(status) = &plan.status
        && let Some(left) = write_delay(object, status, snapshot.status_age)
    {
        plan.status = None;
        plan.requeue_within(left);
    }
    plan
}

/// Knative Serving is not installed.
fn reject(object: &Custom<InferenceService>, now: Timestamp) -> ServicePlan {
    let message = "the deployment mode is Knative, but the cluster has no Knative Serving: install it, or set the annotation \
                   serving.kserve.io/deploymentMode to Standard when you create the service";
    let is_known = is_current(object)
        && object.status.iter().flat_map(|s| &s.conditions).any(|c| c.reason.as_deref() == Some(REJECTED));
    let mut plan = not_deployed(object, REJECTED.into(), message.into(), now);
    if !is_known {
        plan.events.push(EventDraft { warning: true, reason: REJECTED, message: message.into() });
    }
    plan
}

fn live<'a>(snapshot: &'a Snapshot, component: &Component) -> Option<&'a OwnedObject> {
    snapshot.owned.get(ResourceKind::KNATIVE_SERVICE, &component.key.name)
}

fn observe(
    snapshot: &Snapshot,
    object: &Custom<InferenceService>,
    built: &Components,
    states: &[ServiceState<'_>],
    istio: Option<&Istio<'_>>,
    failures: &[ApplyFailure],
) -> Observed {
    let mut observed = Observed::default();
    let mut not_ready: Option<Fact> = None;
    for state in states {
        let refused = failures.iter().find(|f| f.key == state.component.key).map(ApplyFailure::condition);
        let ready = match refused {
            Some(refused) => Fact::new(refused.status, refused.reason, refused.message),
            None => state.ready.clone(),
        };
        if !ready.is_true() && not_ready.is_none() {
            let reason = format!("{} ingress not created", state.component.kind.title());
            not_ready = Some(Fact::new(ready.status, reason, ready.message.clone()));
        }
        let kind = state.component.kind;
        observed.fact(kind.condition(), ready);
        observed.fact(kind.route_condition(), state.route.clone());
        observed.fact(kind.configuration_condition(), state.configuration.clone());
        observed.status.components.insert(kind.as_str().into(), state.component_status());
    }
    observed.fact("RoutesReady", all_of(states, |s| (s.component.kind.route_condition(), &s.route)));
    let configurations = all_of(states, |s| (s.component.kind.configuration_condition(), &s.configuration));
    observed.fact("LatestDeploymentReady", configurations);
    let refused =
        failures.iter().find(|f| !built.all.iter().any(|c| c.key == f.key)).map(ApplyFailure::condition);
    let ingress = match (refused, not_ready, istio) {
        (Some(refused), ..) => Fact::new(refused.status, refused.reason, refused.message),
        (None, Some(fact), _) => fact,
        (None, None, Some(istio)) => istio.admitted(&snapshot.owned),
        (None, None, None) => Fact::new(true, "", ""),
    };
    observed.fact(INGRESS_READY, ingress);
    observed.fact(STOPPED, Fact::new(false, "", ""));
    // Requests pass the transformer.
    let front = states.iter().find(|s| s.component.kind.as_str() == "transformer").or_else(|| states.first());
    match (istio, front) {
        (Some(istio), _) => observed.url(&istio.url, &istio.address),
        (None, Some(front)) => {
            let address =
                format!("http://{}.{}.svc.cluster.local", front.component.key.name, snapshot.key.namespace);
            if let Some(url) = front.url() {
                observed.url(&url, &address);
            }
        }
        (None, None) => {}
    }
    if let Some(predictor) = states.first() {
        observed.status.model_status =
            Some(predictor.model_status(snapshot, super::status::model_status(object)));
    }
    observed.status.deployment_mode = Some("Knative".into());
    observed.runtime(built.runtime.as_ref());
    observed
}

/// A condition over all components: false if one is, unknown if one is not known.
fn all_of<'a>(
    states: &'a [ServiceState<'_>],
    part: impl Fn(&'a ServiceState<'_>) -> (&'static str, &'a Fact),
) -> Fact {
    let with = |status| states.iter().map(&part).find(|(_, fact)| fact.status == status);
    match with(ConditionStatus::False).or_else(|| with(ConditionStatus::Unknown)) {
        Some((name, fact)) => Fact::new(fact.status, format!("{name} not ready"), fact.message.clone()),
        None => Fact::new(true, "", ""),
    }
}
