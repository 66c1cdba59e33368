//! Plan of an `InferenceGraph`: its route in the scheduler, and its status.

use super::Snapshot;
use crate::{
    cluster::{Custom, EventDraft, InferenceGraph, Key},
    conditions::{ConditionStatus, ConditionUpdate, Progress, READY, condition_status, conditions},
    controllers::{
        inference_service::{Admission, Config, admission, service_host},
        validation::validate,
    },
    plan::{Known, Plan, SchedulerAction},
};
use gantry_api::kserve::{InferenceGraphSpec, InferenceGraphStatus};
use gantry_proto::gantry::ServiceRoute;
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeMap;

type GraphPlan = Plan<InferenceGraphStatus>;

/// Names of the services that its steps call.
pub(super) fn services(spec: &InferenceGraphSpec) -> Vec<&str> {
    let steps = spec.nodes.values().flat_map(|node| &node.steps);
    let mut services: Vec<&str> = steps.filter_map(|step| step.service_name.as_deref()).collect();
    services.retain(|name| !name.is_empty());
    services.sort_unstable();
    services.dedup();
    services
}

pub(super) fn plan(snapshot: &Snapshot, now: Timestamp) -> GraphPlan {
    let mut plan = Plan::default();
    let Some(object) = snapshot.object.as_deref().filter(|object| !object.is_deleted()) else {
        delete_routes(snapshot, None, &mut plan);
        return plan;
    };
    let config = match &snapshot.config {
        // Its watch triggers the next plan.
        Known::Unknown(_) => return plan,
        Known::Absent => Ok(Config::default()),
        Known::Present(map) => Config::parse(map),
    };
    let (ready, url) = match route(snapshot, object, config) {
        Ok(route) => {
            if let Some(scheduler) = &snapshot.scheduler {
                if let Admission::Pending(_, _, Some(left)) = admission(scheduler, &route) {
                    plan.requeue_within(left);
                }
                scheduler.put(&route, &mut plan);
            }
            delete_routes(snapshot, Some(&route), &mut plan);
            let host = route.hosts.first().map(String::as_str).unwrap_or_default();
            (ready(snapshot, object, &route), Some(format!("http://{host}")))
        }
        // What gateways have stays in service.
        Err(condition) => (condition, object.status.as_ref().and_then(|status| status.url.clone())),
    };
    plan.events.extend(transition_event(object, &ready));
    plan.status = Some(status(object, &ready, url, now));
    plan
}

fn stalled(reason: &str, message: impl Into<String>) -> ConditionUpdate {
    ConditionUpdate::new(false, reason, message, Progress::Stalled)
}

/// The route that gateways get.
fn route(
    snapshot: &Snapshot,
    object: &Custom<InferenceGraph>,
    config: Result<Config, String>,
) -> Result<ServiceRoute, ConditionUpdate> {
    let spec = validate(object)?;
    let config = config.map_err(|error| {
        let message = format!("the ConfigMap inferenceservice-config is not valid: {error}");
        stalled("ConfigInvalid", message)
    })?;
    let Key { namespace, name } = snapshot.key.clone();
    if snapshot.is_name_taken {
        let message =
            format!("InferenceService {name} of this namespace has the same hosts: rename one of the two");
        return Err(stalled("NameTaken", message));
    }
    if snapshot.scheduler.is_none() {
        let message = "there is no scheduler with gateways, which execute graphs: create a SeldonRuntime in this namespace or \
                       in that of the operator";
        return Err(stalled("NoScheduler", message));
    }
    let none = BTreeMap::new();
    let labels = object.metadata.labels.as_ref().unwrap_or(&none);
    let annotations = object.metadata.annotations.as_ref().unwrap_or(&none);
    let domains = std::iter::once(&config.ingress.ingress_domain);
    let domains = domains.chain(&config.ingress.additional_ingress_domains);
    let hosts =
        domains.map(|domain| service_host(&config, &snapshot.key, &name, domain, labels, annotations));
    let hosts: Result<Vec<String>, String> = hosts.collect();
    Ok(ServiceRoute {
        namespace,
        name,
        hosts: hosts.map_err(|message| stalled("RouteInvalid", message))?,
        graph: serde_json::to_vec(spec).unwrap_or_default(),
        propagated_headers: config.router.headers.propagate,
        ..ServiceRoute::default()
    })
}

/// Deletes the routes in all schedulers but the one that has the route.
fn delete_routes(snapshot: &Snapshot, kept: Option<&ServiceRoute>, plan: &mut GraphPlan) {
    let used = snapshot.scheduler.as_ref().filter(|_| kept.is_some()).map(|s| s.namespace.as_str());
    for scheduler in snapshot.routed_by.iter().filter(|scheduler| Some(scheduler.as_str()) != used) {
        plan.push(SchedulerAction::DeleteService {
            scheduler: scheduler.clone(),
            service: snapshot.key.clone(),
        });
    }
}

/// Ready when every gateway has the graph, and the services of its steps serve.
fn ready(snapshot: &Snapshot, object: &Custom<InferenceGraph>, route: &ServiceRoute) -> ConditionUpdate {
    let in_progress =
        |reason: &str, message: String| ConditionUpdate::new(false, reason, message, Progress::InProgress);
    let spec = object.spec.as_ref().ok();
    let not_ready = spec.map(services).unwrap_or_default().into_iter().find_map(|name| {
        match snapshot.services.get(name) {
            Some(true) => None,
            Some(false) => Some(("ServiceNotReady", format!("InferenceService {name} is not ready"))),
            None => {
                Some(("ServiceNotFound", format!("there is no InferenceService {name} in this namespace")))
            }
        }
    });
    if let Some((reason, message)) = not_ready {
        return in_progress(reason, message);
    }
    let is_ready = ConditionUpdate::new(true, "GraphReady", "", Progress::Settled);
    match snapshot.scheduler.as_ref().map(|scheduler| admission(scheduler, route)) {
        Some(Admission::Admitted) => is_ready,
        // Gateways serve what they have while the scheduler restarts.
        Some(Admission::Pending(_, _, Some(_))) if was_ready(object) => is_ready,
        Some(Admission::Refused(reason, message) | Admission::Pending(reason, message, _)) => {
            in_progress(reason, message)
        }
        None => in_progress("NoScheduler", "there is no scheduler with gateways".into()),
    }
}

/// Whether the latest generation was ready.
fn was_ready(object: &Custom<InferenceGraph>) -> bool {
    object.status.as_ref().is_some_and(|status| {
        status.observed_generation == Some(object.generation())
            && condition_status(&status.conditions, READY) == Some(ConditionStatus::True)
    })
}

fn status(
    object: &Custom<InferenceGraph>,
    ready: &ConditionUpdate,
    url: Option<String>,
    now: Timestamp,
) -> InferenceGraphStatus {
    let before = object.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    InferenceGraphStatus {
        observed_generation: Some(object.generation()),
        conditions: conditions(before, &[], ready, object.generation(), now),
        url,
        deployment_mode: Some("Standard".into()),
    }
}

fn transition_event(object: &Custom<InferenceGraph>, ready: &ConditionUpdate) -> Option<EventDraft> {
    let before = object.status.as_ref().and_then(|s| condition_status(&s.conditions, READY));
    let is_ready = ready.status == ConditionStatus::True;
    let was_ready = before == Some(ConditionStatus::True);
    match (was_ready, is_ready) {
        (false, true) => Some(EventDraft {
            warning: false,
            reason: "InferenceGraphReady",
            message: "every gateway executes the graph".into(),
        }),
        (true, false) => Some(EventDraft {
            warning: true,
            reason: "InferenceGraphNotReady",
            message: ready.message.clone(),
        }),
        _ => None,
    }
}
