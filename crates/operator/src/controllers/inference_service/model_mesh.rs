//! `ModelMesh` mode: the predictor is a Model of the namespace's scheduler, on servers that it shares with others.

use super::{
    LABEL,
    component::transformer_of_model,
    config::Config,
    objects::owner,
    plan::{ServicePlan, deploy_components, finish, not_built, not_deployed},
    snapshot::{RouteScheduler, Snapshot},
    status::{Fact, INGRESS_READY, Observed, PREDICTOR_READY, STOPPED},
};
use crate::{
    cluster::{Custom, Desired, InferenceService, OwnedObject, ResourceKind},
    conditions::{ConditionStatus, ConditionUpdate, Progress},
    plan::{ClusterAction, Plan},
    workload::{ApplyFailure, apply_actions},
};
use gantry_api::{
    Metadata,
    kserve::{
        ComponentStatus, FailureInfo, InferenceServiceSpec, ModelCopies, ModelStates, ModelStatus,
        StatusAddress,
    },
};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

/// The Models of InferenceServices.
pub(in crate::controllers) const MODELS: ResourceKind =
    ResourceKind::new("mlops.seldon.io", "v1alpha1", "Model", "models").with_label(LABEL);

pub(super) fn plan(
    snapshot: &Snapshot,
    object: &Custom<InferenceService>,
    spec: &InferenceServiceSpec,
    config: &Config,
    now: Timestamp,
) -> ServicePlan {
    if spec.predictor.is_multi_model() {
        return plan_multi_model(snapshot, object, spec, now);
    }
    let desired = match model(snapshot, object, spec) {
        Ok(desired) => [desired],
        Err(message) => return not_deployed(object, "NotSupported".into(), message, now),
    };
    if let Some(transformer) = &spec.transformer {
        let [desired] = desired;
        let gateway = format!("seldon-mesh.{}", snapshot.key.namespace);
        return match transformer_of_model(snapshot, object, transformer, config, &gateway) {
            Ok(built) => deploy_components(snapshot, object, built, config, now, Some(desired)),
            Err(error) => not_built(object, &error, now),
        };
    }
    let applies = apply_actions(&desired, &snapshot.owned, &snapshot.failures);
    let mut plan = Plan { requeue_after: applies.retry_after, actions: applies.actions, ..Plan::default() };
    if applies.failures.is_empty() {
        let orphans = snapshot.owned.orphans(&desired, false);
        plan.actions.extend(orphans.into_iter().map(|target| ClusterAction::Delete(target).into()));
    }
    let live = snapshot.owned.get(MODELS, &snapshot.key.name);
    let state = State::of(live, applies.failures.first());
    finish(object, &observe(snapshot, &state), now, plan)
}

/// A service whose models are `TrainedModels`: it has none of its own, and is ready when the gateways can be reached.
fn plan_multi_model(
    snapshot: &Snapshot,
    object: &Custom<InferenceService>,
    spec: &InferenceServiceSpec,
    now: Timestamp,
) -> ServicePlan {
    if spec.transformer.is_some() || spec.explainer.is_some() || !spec.predictor.containers.is_empty() {
        let message = "the deployment mode ModelMesh serves models without pods of their own: remove transformer, explainer and \
                       containers, or use the mode Standard";
        return not_deployed(object, "NotSupported".into(), message.into(), now);
    }
    let ready = match &snapshot.scheduler {
        None => Fact::new(
            false,
            "NoScheduler",
            "there is no scheduler that loads the models: create a SeldonRuntime in this namespace",
        ),
        Some(RouteScheduler { unreachable_for: Some(_), namespace, .. }) => Fact::new(
            ConditionStatus::Unknown,
            "SchedulerUnreachable",
            format!("the scheduler in namespace {namespace} cannot be reached"),
        ),
        Some(_) => Fact::new(true, "", ""),
    };
    let available = i64::try_from(snapshot.trained_models.len()).unwrap_or_default();
    let observed = observe(snapshot, &State { ready, available, has_failed: false });
    let orphans = snapshot.owned.orphans(&[], false);
    let actions = orphans.into_iter().map(|target| ClusterAction::Delete(target).into()).collect();
    finish(object, &observed, now, Plan { actions, ..Plan::default() })
}

/// The Model, with the same name.
fn model(
    snapshot: &Snapshot,
    object: &Custom<InferenceService>,
    spec: &InferenceServiceSpec,
) -> Result<Desired, String> {
    let metadata = Metadata {
        name: snapshot.key.name.clone(),
        namespace: Some(snapshot.key.namespace.clone()),
        ..Metadata::default()
    };
    // It has pods of its own.
    let predictor = InferenceServiceSpec { transformer: None, ..spec.clone() };
    let model = predictor.to_model(&metadata).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(|(path, message)| format!("{path} {message}")).collect();
        format!(
            "the deployment mode ModelMesh serves models without pods of their own: {}",
            errors.join("; ")
        )
    })?;
    let body = json!({
        "metadata": {
            "labels": { LABEL: snapshot.key.name },
            "ownerReferences": owner(&snapshot.key.name, object.uid()).references(),
        },
        "spec": model.spec,
    });
    Ok(Desired::new(MODELS, snapshot.key.clone(), body))
}

/// Adds the state of a Model to that of the transformer in front of it.
pub(super) fn report(snapshot: &Snapshot, failures: &[ApplyFailure], observed: &mut Observed) {
    let live = snapshot.owned.get(MODELS, &snapshot.key.name);
    let state = State::of(live, failures.iter().find(|f| f.kind == MODELS));
    let of_model = observe(snapshot, &state);
    observed.fact(PREDICTOR_READY, state.ready);
    observed.status.components.extend(of_model.status.components);
    observed.status.model_status = of_model.status.model_status;
    observed.status.deployment_mode = of_model.status.deployment_mode;
}

/// The state of the Model.
struct State {
    ready: Fact,
    /// Replicas that serve.
    available: i64,
    /// Whether a replica could not load it.
    has_failed: bool,
}

impl State {
    fn of(live: Option<&OwnedObject>, failure: Option<&ApplyFailure>) -> Self {
        let waiting = |message: &str| Self {
            ready: Fact::new(ConditionStatus::Unknown, "ModelNotObserved", message),
            available: 0,
            has_failed: false,
        };
        if let Some(failure) = failure {
            let condition = failure.condition();
            let ready = Fact::new(condition.status, condition.reason, condition.message);
            return Self { ready, ..waiting("") };
        }
        let Some(live) = live else { return waiting("the Model is being created") };
        let available = live.number("/status/availableReplicas");
        let conditions = live.data.pointer("/status/conditions").and_then(Value::as_array);
        let is_ready = |condition: &&Value| text(condition, "type") == "Ready";
        let ready = conditions.into_iter().flatten().find(is_ready);
        // The condition of an older spec says nothing about this one.
        let is_current =
            live.number("/status/observedGeneration") == live.metadata.generation.unwrap_or_default();
        let Some(ready) = ready.filter(|_| is_current) else {
            return Self { available, ..waiting("the scheduler has not seen the latest Model yet") };
        };
        let status = match text(ready, "status") {
            "True" => ConditionStatus::True,
            "False" => ConditionStatus::False,
            _ => ConditionStatus::Unknown,
        };
        let reason = text(ready, "reason");
        let is_true = status == ConditionStatus::True;
        let ready = Fact::new(
            status,
            if is_true { "" } else { reason },
            if is_true { "" } else { text(ready, "message") },
        );
        Self { ready, available, has_failed: FAILED.contains(&reason) }
    }
}

/// The condition of a Model that another kind owns.
pub(in crate::controllers) fn model_condition(
    live: Option<&OwnedObject>,
    failure: Option<&ApplyFailure>,
) -> ConditionUpdate {
    let Fact { status, reason, message } = State::of(live, failure).ready;
    let progress = if status == ConditionStatus::True { Progress::Settled } else { Progress::InProgress };
    ConditionUpdate::new(status, reason, message, progress)
}

/// Reasons of Models that cannot be loaded.
const FAILED: [&str; 3] = ["ModelFailed", "LoadFailed", "LoadFailedMemory"];
/// Reasons of Models that are being loaded.
const LOADING: [&str; 3] = ["ModelProgressing", "Loading", "Routing"];

fn text<'a>(condition: &'a Value, field: &str) -> &'a str {
    condition.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn observe(snapshot: &Snapshot, state: &State) -> Observed {
    let mut observed = Observed::default();
    let namespace = &snapshot.key.namespace;
    let (rest, grpc) =
        (format!("http://seldon-mesh.{namespace}:80"), format!("grpc://seldon-mesh.{namespace}:80"));
    observed.url(&grpc, &grpc);
    observed.status.components.insert(
        "predictor".into(),
        ComponentStatus {
            url: Some(grpc.clone()),
            rest_url: Some(rest),
            grpc_url: Some(grpc.clone()),
            address: Some(StatusAddress { url: Some(grpc) }),
            ..ComponentStatus::default()
        },
    );
    // A Model is ready when every gateway has its route.
    observed.fact(PREDICTOR_READY, state.ready.clone());
    observed.fact(INGRESS_READY, state.ready.clone());
    observed.fact(STOPPED, Fact::new(false, "", ""));
    observed.status.deployment_mode = Some("ModelMesh".into());
    observed.status.model_status = Some(model_status(state));
    observed
}

fn model_status(state: &State) -> ModelStatus {
    let copies =
        Some(ModelCopies { failed_copies: i64::from(state.has_failed), total_copies: Some(state.available) });
    let loaded = if state.available > 0 { "Loaded" } else { "Pending" };
    let (transition, active, target) = match () {
        // Scaled to zero.
        () if state.ready.is_true() && state.available == 0 => ("UpToDate", "Standby", "Standby"),
        () if state.ready.is_true() => ("UpToDate", "Loaded", "Loaded"),
        () if state.has_failed => ("BlockedByFailedLoad", loaded, "FailedToLoad"),
        () if LOADING.contains(&state.ready.reason.as_str()) => ("InProgress", loaded, "Loading"),
        () => ("InProgress", loaded, "Pending"),
    };
    ModelStatus {
        transition_status: transition.into(),
        states: Some(ModelStates { active_model_state: active.into(), target_model_state: target.into() }),
        last_failure_info: state.has_failed.then(|| FailureInfo {
            reason: Some("ModelLoadFailed".into()),
            message: Some(state.ready.message.clone()),
            ..FailureInfo::default()
        }),
        copies,
    }
}
