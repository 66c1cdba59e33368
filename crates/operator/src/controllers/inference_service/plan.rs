//! Plan of an `InferenceService`.

use super::{
    component::{Component, ComponentKind, Components, components},
    config::Config,
    model_status,
    objects::{is_autoscaled, objects, owner},
    pods::failure,
    route::{Route, RouteBuilder, not_admitted},
    snapshot::Snapshot,
    status::{self, CANARY_READY, Fact, INGRESS_READY, Observed, PREDICTOR_READY, STOPPED},
};
use crate::{
    cluster::{Custom, Desired, EventDraft, InferenceService, OwnedObject, ResourceKind},
    conditions::ConditionStatus,
    controllers::validation::validate_ratcheted,
    plan::{ClusterAction, Known, Plan},
    workload::{ApplyFailure, Rollout, apply_actions},
};
use gantry_api::kserve::{
    CanaryStatus, ComponentStatus, InferenceServiceSpec, InferenceServiceStatus, StatusAddress, TrafficTarget,
};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc};

const STOP: &str = "serving.kserve.io/stop";
const MODE: &str = "serving.kserve.io/deploymentMode";
/// The finalizer of KServe's own controller: its services are left alone.
const KSERVE_FINALIZER: &str = "inferenceservice.finalizers";
/// Takes a service over from KServe's controller.
const ADOPT: &str = "gantry.dev/adopt";

type ServicePlan = Plan<InferenceServiceStatus>;

pub(super) fn plan(snapshot: &Snapshot, now: Timestamp) -> ServicePlan {
    let present = snapshot.object.as_deref().filter(|object| !object.is_deleted());
    // The garbage collector deletes the objects of one that is gone.
    let Some(object) = present.filter(|object| is_ours(object)) else { return Plan::default() };
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
    if mode != "Standard" {
        let message = format!(
            "the deployment mode {mode} is not supported yet: set the annotation {MODE} to Standard, or \
             deploy.defaultDeploymentMode of the ConfigMap inferenceservice-config"
        );
        return not_deployed(object, "DeploymentModeNotSupported".into(), message, now);
    }
    if annotation(object, STOP).is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return stop(snapshot, object, now);
    }
    deploy(snapshot, object, spec, &config, now)
}

/// KServe's controller has a finalizer on its services. They are taken over on request only.
fn is_ours(object: &Custom<InferenceService>) -> bool {
    !object.has_finalizer(KSERVE_FINALIZER) || annotation(object, ADOPT).is_some_and(|value| value == "true")
}

fn annotation<'a>(object: &'a Custom<InferenceService>, name: &str) -> Option<&'a str> {
    object.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

fn is_deployed(snapshot: &Snapshot) -> bool {
    snapshot.owned.of_kind(ResourceKind::DEPLOYMENT).next().is_some()
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
        Known::Present(map) => Config::parse(map).map_err(|error| {
            let namespace = &snapshot.config_namespace;
            Unusable::Broken(format!(
                "the ConfigMap inferenceservice-config in namespace {namespace} is not valid: {error}; services stay as they \
                 are until it is corrected"
            ))
        }),
    }
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

fn finish(
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
fn not_deployed(
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

/// A broken configuration changes nothing that runs: the objects embody the last valid one.
fn keep_as_is(
    snapshot: &Snapshot,
    object: &Custom<InferenceService>,
    message: &str,
    now: Timestamp,
) -> ServicePlan {
    let is_current = object.status.as_ref().and_then(|s| s.observed_generation) == Some(object.generation());
    let event = EventDraft { warning: true, reason: "ConfigInvalid", message: message.to_owned() };
    if is_deployed(snapshot) && is_current {
        return Plan { events: vec![event], status: object.status.clone(), ..Plan::default() };
    }
    let plan = not_deployed(object, "ConfigInvalid".into(), message.to_owned(), now);
    Plan { events: vec![event], ..plan }
}

/// Deletes every object, until the annotation is removed.
fn stop(snapshot: &Snapshot, object: &Custom<InferenceService>, now: Timestamp) -> ServicePlan {
    let mut plan = Plan::default();
    let orphans = snapshot.owned.orphans(&[], false);
    plan.actions.extend(orphans.into_iter().map(|target| ClusterAction::Delete(target).into()));
    let mut observed = Observed::default();
    observed.status.deployment_mode = Some("Standard".into());
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
    let built = match components(snapshot, object, spec, config) {
        Ok(built) => built,
        Err(error) => {
            let plan = not_deployed(object, error.reason.into(), error.message.clone(), now);
            let model = model_status::invalid(&error, status::model_status(object));
            let with_model = |status| InferenceServiceStatus { model_status: Some(model), ..status };
            return Plan { status: plan.status.clone().map(with_model), ..plan };
        }
    };
    let none = BTreeMap::new();
    let backends = backends(snapshot, &built);
    let route = RouteBuilder {
        key: &snapshot.key,
        owner: owner(&snapshot.key.name, object.uid()),
        labels: object.metadata.labels.as_ref().unwrap_or(&none),
        annotations: object.metadata.annotations.as_ref().unwrap_or(&none),
        config,
        components: &built.all,
        has_http_routes: snapshot.has_http_routes,
        backends: &backends,
    }
    .build();
    let mut desired: Vec<Desired> = Vec::new();
    for component in &built.all {
        let owner = owner(&snapshot.key.name, object.uid());
        desired.extend(objects(component, owner, config, &snapshot.owned));
    }
    if let Ok(route) = &route {
        desired.extend(route.objects.iter().cloned());
    }
    let applies = apply_actions(&desired, &snapshot.owned, &snapshot.failures);
    let mut plan = Plan { requeue_after: applies.retry_after, ..Plan::default() };
    plan.actions = applies.actions;
    // A predictor that is replaced stays until a route without it is in effect.
    let is_in_effect = |route: &Route| {
        let is_live =
            |d: &Desired| snapshot.owned.get(d.kind, &d.key.name).is_some_and(|live| d.matches(live));
        route.objects.iter().all(is_live) && not_admitted(route, &snapshot.owned).is_none()
    };
    let is_replaced = route.as_ref().is_ok_and(is_in_effect) && has_backends(snapshot, &built, &backends);
    if applies.failures.is_empty() && is_replaced {
        let orphans = snapshot.owned.orphans(&desired, false);
        plan.actions.extend(orphans.into_iter().map(|target| ClusterAction::Delete(target).into()));
    }
    let observed = observe(snapshot, object, &built, &route, &applies.failures);
    let mut plan = finish(object, &observed, now, plan);
    if let Some(status) = &plan.status
        && let Some(left) = status::write_delay(object, status, snapshot.status_age)
    {
        plan.status = None;
        plan.requeue_within(left);
    }
    plan
}

/// The Services that get the predictor's traffic, with weights: canaries that are ready, and the rest for the stable
/// predictor. While a renamed predictor has no ready pod, its predecessor keeps the traffic.
fn backends(snapshot: &Snapshot, built: &Components) -> Vec<(String, i32)> {
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

fn has_ready_pods(live: Option<&OwnedObject>) -> bool {
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
) -> Observed {
    let mut observed = Observed::default();
    let mut not_ready: Option<(ComponentKind, Fact)> = None;
    for component in &built.all {
        let refused = failures.iter().find(|f| f.key == component.key).map(ApplyFailure::condition);
        let fact = match refused {
            Some(refused) => Fact::new(refused.status, refused.reason, refused.message),
            None => component_fact(snapshot, component),
        };
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
        let component_status = component_status(object, component, route.as_ref().ok(), fact.is_true());
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
                Fact::new(fact.status, format!("{}NotReady", title(kind)), fact.message)
            }
            (Ok(route), None, None) => match not_admitted(route, &snapshot.owned) {
                Some((reason, message)) => Fact::new(false, reason, message),
                None => Fact::new(true, "", ""),
            },
        },
    );
    observed.fact(STOPPED, Fact::new(false, "", ""));
    if let Ok(route) = route {
        observed.url(&route.url, &route.address);
    }
    if let Some(predictor) = built.all.first() {
        let pods = pods_of(snapshot, predictor);
        let revision = created_revision(predictor, object);
        let is_done = rollout(snapshot, predictor).is_done();
        let before = status::model_status(object);
        observed.status.model_status = Some(model_status::observed(&pods, is_done, Some(&revision), before));
    }
    observed.status.deployment_mode = Some("Standard".into());
    if let Some(runtime) = &built.runtime {
        let name = Some(runtime.name.clone());
        if runtime.is_cluster_wide {
            observed.status.cluster_serving_runtime_name = name;
        } else {
            observed.status.serving_runtime_name = name;
        }
    }
    observed
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

const fn title(kind: ComponentKind) -> &'static str {
    match kind {
        ComponentKind::Predictor => "Predictor",
        ComponentKind::Transformer => "Transformer",
        ComponentKind::Explainer => "Explainer",
    }
}

/// Pods of a component, newest first.
fn pods_of<'a>(snapshot: &'a Snapshot, component: &Component) -> Vec<&'a Arc<OwnedObject>> {
    let app = component.selector().remove("app");
    let is_of = |pod: &&Arc<OwnedObject>| {
        pod.metadata.labels.as_ref().and_then(|labels| labels.get("app")) == app.as_ref()
            && pod.metadata.deletion_timestamp.is_none()
    };
    let mut pods: Vec<&Arc<OwnedObject>> = snapshot.pods.iter().filter(is_of).collect();
    let created = |pod: &OwnedObject| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    pods.sort_by(|a, b| created(b).cmp(&created(a)).then_with(|| a.metadata.name.cmp(&b.metadata.name)));
    pods
}

fn live<'a>(snapshot: &'a Snapshot, component: &Component) -> Option<&'a OwnedObject> {
    snapshot.owned.get(ResourceKind::DEPLOYMENT, &component.key.name)
}

fn rollout(snapshot: &Snapshot, component: &Component) -> Rollout {
    let live = live(snapshot, component);
    let replicas = live.filter(|_| is_autoscaled(component)).map(|live| live.number("/spec/replicas"));
    Rollout::of(ResourceKind::DEPLOYMENT, live, replicas.unwrap_or_else(|| component.min_replicas().into()))
}

/// A component is ready when all its pods run the latest spec.
fn component_fact(snapshot: &Snapshot, component: &Component) -> Fact {
    let rollout = rollout(snapshot, component);
    if rollout.is_done() {
        return Fact::new(true, "", "");
    }
    if let Some(failed) = pods_of(snapshot, component).iter().find_map(|pod| failure(pod)) {
        return Fact::new(false, failed.reason, format!("pod {}: {}", failed.pod, failed.message));
    }
    let refused = live(snapshot, component).and_then(deployment_failure);
    if let Some((reason, message)) = refused {
        return Fact::new(false, reason, message);
    }
    let selector = format!("app=isvc.{}", component.key.name);
    let message = rollout.condition(&component.key.namespace, &selector).message;
    Fact::new(false, "MinimumReplicasUnavailable", message)
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
) -> ComponentStatus {
    let before = object.status.as_ref().and_then(|s| s.components.get(component.kind.as_str()));
    let created = created_revision(component, object);
    let was_ready = before.and_then(|b| b.latest_ready_revision.clone());
    let ready = if is_ready { Some(created.clone()) } else { was_ready };
    let rolled_out = before.and_then(|b| b.latest_rolledout_revision.clone());
    let previous = before.and_then(|b| b.previous_rolledout_revision.clone());
    let (latest_rolledout_revision, previous_rolledout_revision) = match (is_ready, rolled_out) {
        (true, Some(old)) if old != created => (Some(created.clone()), Some(old)),
        (true, _) => (Some(created.clone()), previous),
        (false, old) => (old, previous),
    };
    let traffic = ready.clone().map(|revision| TrafficTarget {
        revision_name: Some(revision),
        latest_revision: Some(true),
        percent: Some(100),
        ..TrafficTarget::default()
    });
    let address = format!("http://{}.{}.svc.cluster.local", component.key.name, component.key.namespace);
    ComponentStatus {
        latest_ready_revision: ready,
        latest_created_revision: Some(created),
        previous_rolledout_revision,
        latest_rolledout_revision,
        traffic: traffic.into_iter().collect(),
        url: route.and_then(|route| route.components.get(&component.kind).cloned()),
        address: Some(StatusAddress { url: Some(address) }),
        ..ComponentStatus::default()
    }
}
