//! Plan of an `InferenceService`.

use super::{
    adoption,
    component::{Autoscaler, BuildError, Component, ComponentKind, Components, Mode, components},
    config::Config,
    delivery, knative,
    model_mesh::{self, MODELS},
    model_status,
    multi_node::{Workers, is_node_service},
    objects::{is_autoscaled, is_autoscaler, objects, owner},
    pods::failure,
    route::{Admission, Route, RouteBuilder, admission, not_admitted},
    scale_to_zero,
    snapshot::Snapshot,
    status::{self, CANARY_READY, CONFIG_VALID, Fact, INGRESS_READY, Observed, PREDICTOR_READY, STOPPED},
};
use crate::{
    cluster::{Custom, DeleteTarget, Desired, EventDraft, InferenceService, OwnedObject, ResourceKind},
    conditions::{ConditionStatus, condition_status},
    controllers::validation::validate_ratcheted,
    plan::{Action, ClusterAction, Known, Plan, SchedulerAction},
    workload::{ApplyFailure, Rollout, apply_actions},
};
use gantry_api::kserve::{
    CanaryStatus, ComponentStatus, InferenceServiceSpec, InferenceServiceStatus, StatusAddress, TrafficTarget,
};
use gantry_proto::gantry::ServiceRoute;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Interval of plans while a Secret cannot be read.
const CREDENTIALS_INTERVAL: Duration = Duration::from_secs(1);
const STOP: &str = "serving.kserve.io/stop";
const DISABLE_AUTO_UPDATE: &str = "serving.kserve.io/disable-auto-update";
const MODE: &str = "serving.kserve.io/deploymentMode";
/// The finalizer of KServe's own controller: its services are left alone.
const KSERVE_FINALIZER: &str = "inferenceservice.finalizers";
/// Takes a service over from KServe's controller.
pub(super) const ADOPT: &str = "gantry.dev/adopt";

pub(super) type ServicePlan = Plan<InferenceServiceStatus>;

pub(super) fn plan(snapshot: &Snapshot, now: Timestamp) -> ServicePlan {
    let plan = decide(snapshot, now);
    match (&snapshot.object, &snapshot.config_error) {
        (Some(object), Some(error)) => {
            let message = broken_config(snapshot, error, "the last valid one is used");
            report_config(plan, object, &message, now)
        }
        _ => plan,
    }
}

fn decide(snapshot: &Snapshot, now: Timestamp) -> ServicePlan {
    let present = snapshot.object.as_deref().filter(|object| !object.is_deleted());
    // The garbage collector deletes the objects of one that is gone; its routes are only in schedulers.
    let Some(object) = present else {
        let mut plan = Plan::default();
        delete_routes(snapshot, None, &mut plan);
        return plan;
    };
    if !is_ours(object) {
        // Gateways would keep the pods of one that was given back.
        let mut plan = Plan::default();
        delete_routes(snapshot, None, &mut plan);
        return plan;
    }
    let config = match config(snapshot) {
        Ok(config) => config,
        Err(Unusable::Unknown) => return Plan::default(),
        Err(Unusable::Broken(message)) => return keep_as_is(snapshot, object, &message, now),
    };
    let spec = match validate_ratcheted(object, is_deployed(snapshot)) {
        Ok(spec) => spec,
        Err(condition) => return not_deployed(object, condition.reason, condition.message, now),
    };
    let mode = deployment_mode(object, &config);
    if !["Standard", "Knative", "ModelMesh"].contains(&mode.as_str()) {
        let message = format!(
            "there is no deployment mode {mode}: set the annotation {MODE} to Standard, Knative or ModelMesh, or \
             deploy.defaultDeploymentMode of the ConfigMap inferenceservice-config"
        );
        return not_deployed(object, "DeploymentModeNotSupported".into(), message, now);
    }
    if is_stopped(object) {
        return stop(snapshot, object, mode, now);
    }
    let is_mesh = mode == "ModelMesh";
    let downloads = !is_mesh || spec.transformer.is_some();
    if downloads && !snapshot.credentials.are_known() {
        return wait_for_credentials(snapshot, object, now);
    }
    let plan = if is_mesh {
        model_mesh::plan(snapshot, object, spec, &config, now)
    } else if mode == "Knative" {
        knative::plan(snapshot, object, spec, &config, now)
    } else {
        return deploy(snapshot, object, spec, &config, now);
    };
    let obstacle = delivery::obstacle(snapshot, object, spec, &config, &mode);
    let Some((policy, status)) = snapshot.policy.as_ref().zip(plan.status.clone()) else { return plan };
    let fact = delivery::accepted(policy, obstacle.as_deref());
    let status = status::with_condition(status, object, delivery::POLICY_ACCEPTED, &fact, now);
    Plan { status: Some(status), ..plan }
}

/// Nothing changes while credentials are unknown: pods without them would fail.
fn wait_for_credentials(
    snapshot: &Snapshot,
    object: &Custom<InferenceService>,
    now: Timestamp,
) -> ServicePlan {
    let mut plan = match &snapshot.credentials.failure {
        Some(failure) if !(is_deployed(snapshot) && is_current(object)) => {
            not_deployed(object, "CredentialsUnreadable".into(), failure.clone(), now)
        }
        _ => Plan::default(),
    };
    // A watch that fails triggers nothing.
    plan.requeue_within(CREDENTIALS_INTERVAL);
    plan
}

/// KServe's controller has a finalizer on its services. They are taken over on request only.
pub(in crate::controllers) fn is_ours(object: &Custom<InferenceService>) -> bool {
    !object.has_finalizer(KSERVE_FINALIZER) || is_adopted(object)
}

fn is_adopted(object: &Custom<InferenceService>) -> bool {
    annotation(object, ADOPT).is_some_and(|value| value == "true")
}

pub(in crate::controllers) fn is_stopped(object: &Custom<InferenceService>) -> bool {
    annotation(object, STOP).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

fn annotation<'a>(object: &'a Custom<InferenceService>, name: &str) -> Option<&'a str> {
    object.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// Whether the status is that of the latest spec.
pub(super) fn is_current(object: &Custom<InferenceService>) -> bool {
    object.status.as_ref().and_then(|s| s.observed_generation) == Some(object.generation())
}

/// Whether changes of runtimes and settings are kept from a service: it is ready, and its latest spec is deployed.
pub(super) fn is_frozen(object: &Custom<InferenceService>) -> bool {
    let conditions = object.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
    annotation(object, DISABLE_AUTO_UPDATE).is_some_and(|value| value == "true")
        && is_current(object)
        && condition_status(conditions, status::READY) == Some(ConditionStatus::True)
}

fn is_deployed(snapshot: &Snapshot) -> bool {
    let kinds = [ResourceKind::DEPLOYMENT, ResourceKind::KNATIVE_SERVICE, MODELS];
    kinds.into_iter().any(|kind| snapshot.owned.of_kind(kind).next().is_some())
}

enum Unusable {
    /// It is not read yet; its watch triggers the next plan.
    Unknown,
    Broken(String),
}

fn config(snapshot: &Snapshot) -> Result<Config, Unusable> {
    match &snapshot.config {
        Known::Unknown(_) => Err(Unusable::Unknown),
        Known::Absent => Ok(Config::default()),
        Known::Present(map) => Config::parse(map)
            .map_err(|error| Unusable::Broken(broken_config(snapshot, &error, "services stay as they are"))),
    }
}

fn broken_config(snapshot: &Snapshot, error: &str, effect: &str) -> String {
    let namespace = &snapshot.config_namespace;
    format!(
        "the ConfigMap inferenceservice-config in namespace {namespace} is not valid: {error}; {effect} until it is corrected"
    )
}

/// The mode in the status never changes; then the annotation counts, then the `ConfigMap`.
fn deployment_mode(object: &Custom<InferenceService>, config: &Config) -> String {
    let recorded = object.status.as_ref().and_then(|s| s.deployment_mode.as_deref());
    let annotated = annotation(object, MODE);
    let default = config.deploy.default_deployment_mode.as_deref();
    let mode = recorded.or(annotated).or(default).filter(|mode| !mode.is_empty()).unwrap_or("Standard");
    match mode {
        "RawDeployment" => "Standard".into(),
        "Serverless" => "Knative".into(),
        other => other.into(),
    }
}

pub(super) fn finish(
    object: &Custom<InferenceService>,
    observed: &Observed,
    now: Timestamp,
    mut plan: ServicePlan,
) -> ServicePlan {
    let status = observed.build(object, now);
    plan.events.extend(status::transition_event(object, &status));
    plan.status = Some(status);
    plan
}

/// A service whose spec cannot be deployed. What runs keeps running.
pub(super) fn not_deployed(
    object: &Custom<InferenceService>,
    reason: String,
    message: String,
    now: Timestamp,
) -> ServicePlan {
    let mut observed = Observed { status: object.status.clone().unwrap_or_default(), ..Observed::default() };
    observed.fact(PREDICTOR_READY, Fact::new(false, reason, message));
    observed.fact(INGRESS_READY, Fact::new(ConditionStatus::Unknown, "PredictorNotReady", ""));
    finish(object, &observed, now, Plan::default())
}

/// A service whose components cannot be built.
pub(super) fn not_built(
    object: &Custom<InferenceService>,
    error: &BuildError,
    now: Timestamp,
) -> ServicePlan {
    let plan = not_deployed(object, error.reason.into(), error.message.clone(), now);
    let model = model_status::invalid(error, status::model_status(object));
    let with_model = |status| InferenceServiceStatus { model_status: Some(model), ..status };
    Plan { status: plan.status.clone().map(with_model), ..plan }
}

/// A broken configuration changes nothing that runs: the objects embody the last valid one, which is not known here.
fn keep_as_is(
    snapshot: &Snapshot,
    object: &Custom<InferenceService>,
    message: &str,
    now: Timestamp,
) -> ServicePlan {
    let plan = if is_deployed(snapshot) && is_current(object) {
        Plan { status: object.status.clone(), ..Plan::default() }
    } else {
        not_deployed(object, "ConfigInvalid".into(), message.to_owned(), now)
    };
    report_config(plan, object, message, now)
}

/// Adds the condition of a broken configuration, and its event when it is new.
fn report_config(
    plan: ServicePlan,
    object: &Custom<InferenceService>,
    message: &str,
    now: Timestamp,
) -> ServicePlan {
    let Some(status) = plan.status.clone() else { return plan };
    let broken = Fact::new(false, "ConfigInvalid", message);
    let status = status::with_condition(status, object, CONFIG_VALID, &broken, now);
    let mut events = plan.events.clone();
    let mut known = object.status.iter().flat_map(|s| &s.conditions);
    if !known.any(|c| c.r#type == CONFIG_VALID && c.message.as_deref() == Some(message)) {
        events.push(EventDraft { warning: true, reason: "ConfigInvalid", message: message.to_owned() });
    }
    Plan { events, status: Some(status), ..plan }
}

/// Deletes every object, until the annotation is removed.
fn stop(snapshot: &Snapshot, object: &Custom<InferenceService>, mode: String, now: Timestamp) -> ServicePlan {
    let mut plan = Plan::default();
    delete_routes(snapshot, None, &mut plan);
    let orphans = snapshot.owned.orphans(&[], false);
    plan.actions.extend(orphans.into_iter().map(|target| ClusterAction::Delete(target).into()));
    let mut observed = Observed::default();
    observed.status.deployment_mode = Some(mode);
    let stopped = || Fact::new(false, "Stopped", format!("the annotation {STOP} is set"));
    observed.fact(PREDICTOR_READY, stopped());
    observed.fact(INGRESS_READY, stopped());
    observed.fact(STOPPED, Fact::new(true, "Stopped", ""));
    finish(object, &observed, now, plan)
}

fn deploy(
    snapshot: &Snapshot,
    object: &Custom<InferenceService>,
    spec: &InferenceServiceSpec,
    config: &Config,
    now: Timestamp,
) -> ServicePlan {
    match components(snapshot, object, spec, config, Mode::Standard) {
        Ok(built) => deploy_components(snapshot, object, built, config, now, None),
        Err(error) => not_built(object, &error, now),
    }
}

/// The objects, the route and the status of components, in front of a Model if there is one.
pub(super) fn deploy_components(
    snapshot: &Snapshot,
    object: &Custom<InferenceService>,
    mut built: Components,
    config: &Config,
    now: Timestamp,
    model: Option<Desired>,
) -> ServicePlan {
    let none = BTreeMap::new();
    let route = RouteBuilder {
        key: &snapshot.key,
        owner: owner(&snapshot.key.name, object.uid()),
        labels: object.metadata.labels.as_ref().unwrap_or(&none),
        annotations: object.metadata.annotations.as_ref().unwrap_or(&none),
        config,
        components: &[],
        snapshot,
        backends: &[],
        idle_timeout: None,
        is_down: false,
        delivery: None,
    };
    let idle_timeout = match route.is_gateway().then(|| scale_to_zero::enable(object, &mut built)).transpose()
    {
        Ok(timeout) => timeout.flatten(),
        Err(error) => return not_built(object, &error, now),
    };
    let is_down = scale_to_zero::is_down(snapshot, object, &built);
    let backends = backends(snapshot, &built);
    let delivery = built.delivery.as_ref();
    let route = RouteBuilder {
        components: &built.all,
        backends: &backends,
        idle_timeout,
        is_down,
        delivery,
        ..route
    }
    .build();
    let has_model = model.is_some();
    let mut desired: Vec<Desired> = model.into_iter().collect();
    for component in built.all.iter().filter(|component| !component.is_held) {
        let owner = owner(&snapshot.key.name, object.uid());
        desired.extend(objects(component, owner, config, &snapshot.owned, is_adopted(object)));
    }
    desired.extend(delivery.zip(built.all.first()).and_then(|(d, c)| d.moved(snapshot, c, object.uid())));
    if let Ok(route) = &route {
        desired.extend(route.objects.iter().cloned());
    }
    let applies = apply_actions(&desired, &snapshot.owned, &snapshot.failures);
    let mut plan = Plan { requeue_after: applies.retry_after, ..Plan::default() };
    // KEDA refuses a workload that has another autoscaler.
    let (replaced, orphans): (Vec<_>, Vec<_>) =
        orphans(snapshot, &built, &desired).partition(|target| is_autoscaler(target.kind));
    let replaced = replaced.into_iter().chain(adoption::autoscalers(snapshot, &desired));
    plan.actions.extend(replaced.map(|target| ClusterAction::Delete(target).into()));
    plan.actions.extend(applies.actions);
    let wanted = route.as_ref().ok().and_then(|route| route.service.as_ref());
    if let Some(service) = wanted {
        put_route(snapshot, service, &mut plan);
    }
    // A predictor that is replaced stays until a route without it is in effect.
    let is_in_effect = |route: &Route| {
        let is_live =
            |d: &Desired| snapshot.owned.get(d.kind, &d.key.name).is_some_and(|live| d.matches(live));
        route.objects.iter().all(is_live) && obstacle(snapshot, route).is_none()
    };
    let is_in_effect = route.as_ref().is_ok_and(is_in_effect);
    let is_replaced = is_in_effect && has_backends(snapshot, &built, &backends);
    if applies.failures.is_empty() && is_replaced {
        plan.actions.extend(orphans.into_iter().map(|target| ClusterAction::Delete(target).into()));
        let scheduler = snapshot.scheduler.as_ref().filter(|_| wanted.is_some());
        delete_routes(snapshot, scheduler.map(|s| s.namespace.as_str()), &mut plan);
    }
    if is_frozen(object) {
        // The route still follows the pods.
        plan.actions.retain(|action| matches!(action, Action::Scheduler(_)));
    }
    plan.actions.extend(scale_to_zero::actions(snapshot, &built, is_down, is_in_effect));
    let mut observed = observe(snapshot, object, &built, &route, &applies.failures, is_down);
    if let Some((policy, spec)) =
        snapshot.policy.as_ref().zip(object.spec.as_ref().ok()).filter(|_| !has_model)
    {
        let obstacle = delivery::obstacle(snapshot, object, spec, config, "Standard");
        observed.fact(delivery::POLICY_ACCEPTED, delivery::accepted(policy, obstacle.as_deref()));
    }
    if has_model {
        model_mesh::report(snapshot, &applies.failures, &mut observed);
    }
    let mut plan = finish(object, &observed, now, plan);
    if let Some(status) = &plan.status
        && let Some(left) = status::write_delay(object, status, snapshot.status_age)
    {
        plan.status = None;
        plan.requeue_within(left);
    }
    plan
}

/// Objects that are not desired any more. Those of a held component stay, whatever the latest spec has.
fn orphans<'a>(
    snapshot: &Snapshot,
    built: &'a Components,
    desired: &[Desired],
) -> impl Iterator<Item = DeleteTarget> + use<'a> {
    let is_held = move |target: &DeleteTarget| built.all.iter().any(|c| c.is_held && c.key == target.key);
    let is_route = |target: &DeleteTarget| target.kind == ResourceKind::HTTP_ROUTE;
    // Pods of an older generation find each other until they are replaced.
    let is_rolling = built.all.iter().any(|c| c.workers.is_some() && !is_rolled_out(snapshot, c));
    let name = snapshot.key.name.clone();
    let is_of_nodes = move |target: &DeleteTarget| {
        is_rolling && target.kind == ResourceKind::SERVICE && is_node_service(&name, &target.key.name)
    };
    let orphans = snapshot.owned.orphans(desired, false).into_iter();
    orphans.filter(move |target| is_route(target) || !(is_held(target) || is_of_nodes(target)))
}

/// Sends the route to the scheduler if it has another one.
fn put_route(snapshot: &Snapshot, route: &ServiceRoute, plan: &mut ServicePlan) {
    let Some(scheduler) = &snapshot.scheduler else { return };
    if let Admission::Pending(_, _, Some(left)) = admission(scheduler, route) {
        plan.requeue_within(left);
    }
    scheduler.put(route, plan);
}

/// Deletes the routes in all schedulers but one.
fn delete_routes(snapshot: &Snapshot, except: Option<&str>, plan: &mut ServicePlan) {
    for (scheduler, wait) in snapshot.routed_by.iter().filter(|(s, _)| Some(s.as_str()) != except) {
        match wait {
            Some(left) => plan.requeue_within(*left),
            None => plan.push(SchedulerAction::DeleteService {
                scheduler: scheduler.clone(),
                service: snapshot.key.clone(),
            }),
        }
    }
}

/// Why a route does not carry requests: reason and message.
fn obstacle(snapshot: &Snapshot, route: &Route) -> Option<(String, String)> {
    let (Some(service), Some(scheduler)) = (&route.service, &snapshot.scheduler) else {
        return not_admitted(route, &snapshot.owned);
    };
    match admission(scheduler, service) {
        Admission::Admitted => None,
        Admission::Refused(reason, message) | Admission::Pending(reason, message, _) => {
            Some((reason.into(), message))
        }
    }
}

/// The Services that get the predictor's traffic, with weights: canaries that are ready, and the rest for the stable
/// predictor. While a renamed predictor has no ready pod, its predecessor keeps the traffic.
fn backends(snapshot: &Snapshot, built: &Components) -> Vec<(String, i32)> {
    if let Some(delivered) = built.delivery.as_ref().and_then(|delivery| delivery.backends(snapshot)) {
        return delivered;
    }
    let mut canaries: Vec<(String, i32)> = Vec::new();
    for component in &built.all {
        if let Some(canary) = component.canary.as_ref().filter(|canary| canary.percent > 0)
            && has_ready_pods(live(snapshot, component))
        {
            canaries.push((component.key.name.clone(), canary.percent));
        }
    }
    let rest = 100 - canaries.iter().map(|(_, percent)| percent).sum::<i32>();
    let Some(stable) = built.all.first() else { return canaries };
    let service = match predecessor(snapshot, built) {
        Some(old) if !has_ready_pods(live(snapshot, stable)) => old,
        _ => stable.key.name.clone(),
    };
    std::iter::once((service, rest)).chain(canaries).collect()
}

pub(super) fn has_ready_pods(live: Option<&OwnedObject>) -> bool {
    live.is_some_and(|live| live.number("/status/readyReplicas") > 0)
}

/// A predictor of this service that its spec no longer has, with ready pods.
fn predecessor(snapshot: &Snapshot, built: &Components) -> Option<String> {
    let is_predictor = |live: &OwnedObject| {
        live.metadata.labels.as_ref().and_then(|l| l.get("component")).is_some_and(|c| c == "predictor")
    };
    let of_kind = snapshot.owned.of_kind(ResourceKind::DEPLOYMENT);
    let old = of_kind.filter(|live| is_predictor(live) && has_ready_pods(Some(live)));
    let names = old.filter_map(|live| live.metadata.name.clone());
    names.filter(|name| !built.all.iter().any(|c| c.key.name == *name)).min()
}

/// Whether the traffic of the predictor goes to the predictors of the spec only.
fn has_backends(snapshot: &Snapshot, built: &Components, backends: &[(String, i32)]) -> bool {
    let is_current = |service: &String| built.all.iter().any(|c| c.key.name == *service);
    backends.iter().all(|(service, _)| is_current(service)) || predecessor(snapshot, built).is_none()
}

fn observe(
    snapshot: &Snapshot,
    object: &Custom<InferenceService>,
    built: &Components,
    route: &Result<Route, String>,
    failures: &[ApplyFailure],
    is_down: bool,
) -> Observed {
    let mut observed = Observed::default();
    let mut not_ready: Option<(ComponentKind, Fact)> = None;
    for component in &built.all {
        let latest = built.latest(component);
        let refused = failures.iter().find(|f| f.key == latest.key).map(ApplyFailure::condition);
        let fact = match refused {
            Some(refused) => Fact::new(refused.status, refused.reason, refused.message),
            None => scale_to_zero::fact(snapshot, object, component, is_down)
                .unwrap_or_else(|| component_fact(snapshot, latest)),
        };
        // The latest spec of the stable predictor is reported as the predictor.
        if component.canary.as_ref().is_some_and(|canary| canary.is_latest) {
            continue;
        }
        if let Some(canary) = &component.canary {
            let pods = pods_of(snapshot, component);
            observed.status.canary_statuses.push(CanaryStatus {
                name: canary.name.clone(),
                ready: has_ready_pods(live(snapshot, component)),
                traffic_percent: canary.percent,
                model_status: Some(model_status::observed(&pods, fact.is_true(), None, None)),
            });
            continue;
        }
        if !fact.is_true() && component.kind != ComponentKind::Predictor && not_ready.is_none() {
            not_ready = Some((component.kind, fact.clone()));
        }
        let delivery = built.delivery.as_ref().filter(|_| component.kind == ComponentKind::Predictor);
        let percent = match delivery {
            Some(delivery) => delivery.percent(),
            None => Some(latest).filter(|_| component.is_held).and_then(|c| Some(c.canary.as_ref()?.percent)),
        };
        let is_ready = delivery.map_or(fact.is_true(), |delivery| delivery.is_ready(fact.is_true()));
        let fact = match delivery {
            Some(delivery) => delivery.fact(fact, known_fact(object, PREDICTOR_READY)),
            None => fact,
        };
        let component_status = component_status(object, component, route.as_ref().ok(), is_ready, percent);
        observed.status.components.insert(component.kind.as_str().into(), component_status);
        observed.fact(component.kind.condition(), fact);
    }
    if !observed.status.canary_statuses.is_empty() {
        let fact = canaries_fact(&observed.status.canary_statuses);
        observed.fact(CANARY_READY, fact);
    }
    let refused =
        failures.iter().find(|f| !built.all.iter().any(|c| c.key == f.key)).map(ApplyFailure::condition);
    observed.fact(
        INGRESS_READY,
        match (route, refused, not_ready) {
            (Err(message), ..) => Fact::new(false, "RouteInvalid", message.clone()),
            (_, Some(refused), _) => Fact::new(refused.status, refused.reason, refused.message),
            // Requests pass the transformer, so that the service is not ready without it.
            (_, _, Some((kind, fact))) => {
                Fact::new(fact.status, format!("{}NotReady", kind.title()), fact.message)
            }
            (Ok(route), None, None) => route_fact(snapshot, object, route),
        },
    );
    observed.fact(STOPPED, Fact::new(false, "", ""));
    if let Ok(route) = route {
        observed.url(&route.url, &route.address);
    }
    if let Some(predictor) = built.all.first().map(|stable| built.latest(stable)) {
        let pods = pods_of(snapshot, predictor);
        let revision = created_revision(predictor, object);
        let is_done = is_rolled_out(snapshot, predictor);
        let before = status::model_status(object);
        let is_standby = scale_to_zero::fact(snapshot, object, predictor, is_down).is_some() && is_down;
        observed.status.model_status = Some(if is_standby {
            model_status::standby()
        } else {
            model_status::observed(&pods, is_done, Some(&revision), before)
        });
    }
    observed.status.deployment_mode = Some("Standard".into());
    observed.runtime(built.runtime.as_ref());
    observed
}

/// Whether the route carries requests. While a change of it is on the way, the previous route does: the condition of the
/// same generation stays.
fn route_fact(snapshot: &Snapshot, object: &Custom<InferenceService>, route: &Route) -> Fact {
    let Some((reason, message)) = obstacle(snapshot, route) else { return Fact::new(true, "", "") };
    let is_pending =
        route.service.as_ref().zip(snapshot.scheduler.as_ref()).is_some_and(|(service, scheduler)| {
            matches!(admission(scheduler, service), Admission::Pending(..))
        });
    known_fact(object, INGRESS_READY)
        .filter(|_| is_pending)
        .unwrap_or_else(|| Fact::new(false, reason, message))
}

/// A condition of the same generation.
fn known_fact(object: &Custom<InferenceService>, name: &str) -> Option<Fact> {
    let before = object.status.as_ref().filter(|_| is_current(object))?;
    before.conditions.iter().find(|c| c.r#type == name).map(Fact::of)
}

/// A canary without a ready pod gets no traffic.
fn canaries_fact(canaries: &[CanaryStatus]) -> Fact {
    let waiting = canaries.iter().filter(|canary| !canary.ready).map(|canary| canary.name.as_str());
    let waiting: Vec<&str> = waiting.collect();
    if waiting.is_empty() {
        return Fact::new(true, "AllCanariesReady", "");
    }
    let message = format!("{} has no ready pod: it gets no traffic", waiting.join(", "));
    Fact::new(false, "CanariesNotReady", message)
}

/// Pods of a component, newest first.
fn pods_of<'a>(snapshot: &'a Snapshot, component: &Component) -> Vec<&'a Arc<OwnedObject>> {
    let app = component.selector().remove("app");
    pods_named(snapshot, app.as_deref().unwrap_or_default())
}

/// Pods with this label `app`, newest first.
fn pods_named<'a>(snapshot: &'a Snapshot, app: &str) -> Vec<&'a Arc<OwnedObject>> {
    let is_of = |pod: &&Arc<OwnedObject>| {
        let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get("app"));
        label.is_some_and(|label| label == app) && pod.metadata.deletion_timestamp.is_none()
    };
    let mut pods: Vec<&Arc<OwnedObject>> = snapshot.pods.iter().filter(is_of).collect();
    let created = |pod: &OwnedObject| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    pods.sort_by(|a, b| created(b).cmp(&created(a)).then_with(|| a.metadata.name.cmp(&b.metadata.name)));
    pods
}

pub(super) fn live<'a>(snapshot: &'a Snapshot, component: &Component) -> Option<&'a OwnedObject> {
    snapshot.owned.get(ResourceKind::DEPLOYMENT, &component.key.name)
}

pub(super) fn rollout(snapshot: &Snapshot, component: &Component) -> Rollout {
    let live = live(snapshot, component);
    let replicas = live.filter(|_| is_autoscaled(component)).map(scale_to_zero::replicas);
    let is_ours = matches!(component.autoscaler, Autoscaler::Hpa | Autoscaler::None);
    let replicas = replicas.map(|replicas| replicas.max(is_ours.into()));
    Rollout::of(ResourceKind::DEPLOYMENT, live, replicas.unwrap_or_else(|| component.min_replicas().into()))
}

/// Of the workers of a predictor on several nodes.
fn worker_rollout(snapshot: &Snapshot, workers: &Workers) -> Rollout {
    let live = snapshot.owned.get(ResourceKind::DEPLOYMENT, &workers.key.name);
    Rollout::of(ResourceKind::DEPLOYMENT, live, workers.replicas.into())
}

/// Whether all pods run the latest spec and are ready.
fn is_rolled_out(snapshot: &Snapshot, component: &Component) -> bool {
    let has_workers = |workers: &Workers| worker_rollout(snapshot, workers).is_done();
    rollout(snapshot, component).is_done() && component.workers.as_ref().is_none_or(has_workers)
}

/// A component is ready when all its pods run the latest spec.
pub(super) fn component_fact(snapshot: &Snapshot, component: &Component) -> Fact {
    if is_rolled_out(snapshot, component) {
        return Fact::new(true, "", "");
    }
    if let Some(failure) = component_failure(snapshot, component) {
        return failure;
    }
    let message = |rollout: &Rollout, name: &str| {
        rollout.condition(&component.key.namespace, &format!("app=isvc.{name}")).message
    };
    let head = rollout(snapshot, component);
    let unready = |rollout: &Rollout, container: &str, name: &str| {
        (!rollout.is_done()).then(|| format!("{container}: {}", message(rollout, name)))
    };
    let message = match &component.workers {
        None => message(&head, &component.key.name),
        Some(workers) => {
            let of_head = unready(&head, "predictor-container", &component.key.name);
            let of_workers =
                unready(&worker_rollout(snapshot, workers), "worker-container", &workers.key.name);
            of_head.into_iter().chain(of_workers).collect::<Vec<_>>().join(", ")
        }
    };
    Fact::new(false, "MinimumReplicasUnavailable", message)
}

/// Why a component cannot become ready: the failure of a pod, or of the Deployment.
pub(super) fn component_failure(snapshot: &Snapshot, component: &Component) -> Option<Fact> {
    let workers = component.workers.as_ref();
    let of_workers = workers.map(|workers| pods_named(snapshot, &format!("isvc.{}", workers.key.name)));
    let mut pods = pods_of(snapshot, component).into_iter().chain(of_workers.into_iter().flatten());
    if let Some(failed) = pods.find_map(|pod| failure(pod)) {
        return Some(Fact::new(false, failed.reason, format!("pod {}: {}", failed.pod, failed.message)));
    }
    let of_workers = workers.and_then(|w| snapshot.owned.get(ResourceKind::DEPLOYMENT, &w.key.name));
    let refused = live(snapshot, component).into_iter().chain(of_workers).find_map(deployment_failure);
    refused.map(|(reason, message)| Fact::new(false, reason, message))
}

/// The failure that a Deployment reports: pods that cannot be created, or a deadline.
fn deployment_failure(live: &OwnedObject) -> Option<(String, String)> {
    let conditions = live.data.pointer("/status/conditions").and_then(Value::as_array)?;
    let text = |condition: &Value, field: &str| {
        condition.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let is = |c: &&Value, name: &str, status: &str| text(c, "type") == name && text(c, "status") == status;
    let found = conditions.iter().find(|c| is(c, "ReplicaFailure", "True"));
    let found = found.or_else(|| conditions.iter().find(|c| is(c, "Progressing", "False")))?;
    Some((text(found, "reason"), text(found, "message")))
}

/// The name of the revision that the spec asks for.
fn created_revision(component: &Component, object: &Custom<InferenceService>) -> String {
    format!("{}-{:05}", component.key.name, object.generation())
}

fn component_status(
    object: &Custom<InferenceService>,
    component: &Component,
    route: Option<&Route>,
    is_ready: bool,
    canary: Option<i32>,
) -> ComponentStatus {
    let before = object.status.as_ref().and_then(|s| s.components.get(component.kind.as_str()));
    let created = created_revision(component, object);
    let was_ready = before.and_then(|b| b.latest_ready_revision.clone());
    let ready = if is_ready { Some(created.clone()) } else { was_ready };
    let rolled_out = before.and_then(|b| b.latest_rolledout_revision.clone());
    let previous = before.and_then(|b| b.previous_rolledout_revision.clone());
    let is_rolled_out = is_ready && canary.is_none();
    let prev = rolled_out.clone().filter(|old| canary.is_some() && is_ready && *old != created);
    let (latest_rolledout_revision, previous_rolledout_revision) = match (is_rolled_out, rolled_out) {
        (true, Some(old)) if old != created => (Some(created.clone()), Some(old)),
        (true, _) => (Some(created.clone()), previous),
        (false, old) => (old, previous),
    };
    let traffic = ready.clone().map(|revision| TrafficTarget {
        revision_name: Some(revision),
        latest_revision: Some(true),
        percent: Some(if prev.is_some() { canary.unwrap_or(100).into() } else { 100 }),
        ..TrafficTarget::default()
    });
    let previous_traffic = prev.zip(canary).map(|(revision, percent)| TrafficTarget {
        revision_name: Some(revision),
        latest_revision: Some(false),
        percent: Some((100 - percent).into()),
        tag: Some("prev".into()),
        ..TrafficTarget::default()
    });
    let address = format!("http://{}.{}.svc.cluster.local", component.key.name, component.key.namespace);
    ComponentStatus {
        latest_ready_revision: ready,
        latest_created_revision: Some(created),
        previous_rolledout_revision,
        latest_rolledout_revision,
        traffic: traffic.into_iter().chain(previous_traffic).collect(),
        url: route.and_then(|route| route.components.get(&component.kind).cloned()),
        address: Some(StatusAddress { url: Some(address) }),
        ..ComponentStatus::default()
    }
}
