//! Plan of a `TrainedModel`: its Model, and its status.

use super::{Snapshot, allocated};
use crate::{
    cluster::{Custom, Desired, EventDraft, InferenceService, KindId, TrainedModel},
    conditions::{ConditionStatus, ConditionUpdate, Progress, READY, condition_status, conditions},
    controllers::{
        inference_service::{LABEL, MODELS, is_ours, is_stopped, model_condition},
        validation::validate,
    },
    plan::{ClusterAction, Known, Plan},
    workload::{Owner, apply_actions},
};
use gantry_api::{
    Model,
    kserve::{PredictorSpec, StatusAddress, TrainedModelSpec, TrainedModelStatus},
};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use std::time::Duration;

const SERVICE_READY: &str = "InferenceServiceReady";
const IS_MULTI_MODEL: &str = "IsMMSPredictor";
const MEMORY_AVAILABLE: &str = "MemoryResourceAvailable";
/// Ours: KServe does not report whether the model is loaded.
const MODEL_READY: &str = "ModelReady";
/// The finalizer of KServe's own controller.
const KSERVE_FINALIZER: &str = "trainedmodel.finalizer";
/// How often the URL is compared with the route of the service, which changes without an event of this kind.
const ROUTE_INTERVAL: Duration = Duration::from_secs(1);
/// Of status writes.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

type ModelPlan = Plan<TrainedModelStatus>;

pub(super) fn plan(snapshot: &Snapshot, now: Timestamp) -> ModelPlan {
    // The garbage collector deletes the Model of one that is gone.
    let Some(object) = snapshot.object.as_deref().filter(|object| !object.is_deleted()) else {
        return Plan::default();
    };
    let service = snapshot.service.as_deref().filter(|service| !service.is_deleted());
    let is_of_kserve =
        service.map_or_else(|| object.has_finalizer(KSERVE_FINALIZER), |service| !is_ours(service));
    if is_of_kserve {
        return Plan::default();
    }
    let spec = match validate(object) {
        Ok(spec) => spec,
        // What serves keeps serving.
        Err(invalid) => {
            let url = object.status.as_ref().and_then(|status| status.url.clone());
            return report(object, &[], &invalid, url, now, Plan::default());
        }
    };
    let checks = Checks::of(snapshot, spec, service);
    let wanted = if checks.is_served() { vec![model(snapshot, object, spec)] } else { Vec::new() };
    let applies = apply_actions(&wanted, &snapshot.owned, &snapshot.failures);
    let mut plan = Plan { requeue_after: applies.retry_after, actions: applies.actions, ..Plan::default() };
    let orphans = snapshot.owned.orphans(&wanted, false);
    plan.actions.extend(orphans.into_iter().map(|target| ClusterAction::Delete(target).into()));
    let live = snapshot.owned.get(MODELS, &snapshot.key.name);
    let model = if wanted.is_empty() {
        unknown("ModelNotDesired", "the model is not loaded")
    } else {
        model_condition(live, applies.failures.first())
    };
    let all = [
        (SERVICE_READY, &checks.service),
        (IS_MULTI_MODEL, &checks.predictor),
        (MEMORY_AVAILABLE, &checks.memory),
        (MODEL_READY, &model),
    ];
    let with = |status| all.iter().map(|(_, condition)| *condition).find(|c| c.status == status);
    let ready = with(ConditionStatus::False).or_else(|| with(ConditionStatus::Unknown));
    let ready = ready
        .cloned()
        .unwrap_or_else(|| ConditionUpdate::new(true, "TrainedModelReady", "", Progress::Settled));
    let url = service.map(|service| {
        let path = path(service, &snapshot.key.name);
        let (url, is_final) = url(snapshot, object, service, &path);
        // While the service is not ready, its next status triggers the next plan.
        if !is_final && checks.is_served() && checks.service.status == ConditionStatus::True {
            plan.requeue_within(ROUTE_INTERVAL);
        }
        url
    });
    let plan = report(object, &all, &ready, url, now, plan);
    let address = service.map(|service| {
        let url = format!("{}{}", gateway(snapshot), path(service, &snapshot.key.name));
        StatusAddress { url: Some(url) }
    });
    let status = plan.status.clone().map(|status| TrainedModelStatus { address, ..status });
    pace(snapshot, object, Plan { status, ..plan })
}

/// A model passes through several states within a second. A change of `Ready` is written at once, others at intervals.
fn pace(snapshot: &Snapshot, object: &Custom<TrainedModel>, mut plan: ModelPlan) -> ModelPlan {
    let ready = |status: &TrainedModelStatus| condition_status(&status.conditions, READY);
    let left =
        snapshot.status_age.and_then(|age| STATUS_INTERVAL.checked_sub(age)).filter(|left| !left.is_zero());
    if let (Some(before), Some(status), Some(left)) = (&object.status, &plan.status, left)
        && before.observed_generation == status.observed_generation
        && ready(before) == ready(status)
        && before != status
    {
        plan.status = None;
        plan.requeue_within(left);
    }
    plan
}

/// The URL for predictions, and whether it is final: gateways may not have the latest route of the service yet. What the
/// scheduler has is unknown for a moment after a restart.
fn url(
    snapshot: &Snapshot,
    object: &Custom<TrainedModel>,
    service: &Custom<InferenceService>,
    path: &str,
) -> (String, bool) {
    let inside = format!("{}{path}", gateway(snapshot));
    let of_service = service.status.as_ref().and_then(|status| status.url.as_ref());
    let of_service = of_service.map(|url| format!("{url}{path}"));
    let before = object.status.as_ref().and_then(|status| status.url.clone());
    let before = before.filter(|url| *url == inside || Some(url) == of_service.as_ref());
    match (&snapshot.route, of_service) {
        (Known::Absent, _) | (Known::Present(_), None) => (inside, true),
        (Known::Present(view), Some(url)) if view.route.models.contains(&snapshot.key.name) => {
            let is_kept = before.as_ref() == Some(&url);
            if view.admitted || is_kept { (url, true) } else { (inside, false) }
        }
        (Known::Present(_), Some(_)) => (inside, false),
        (Known::Unknown(_), _) => (before.unwrap_or(inside), false),
    }
}

/// The gateways of the namespace, inside the cluster.
fn gateway(snapshot: &Snapshot) -> String {
    format!("http://seldon-mesh.{}", snapshot.key.namespace)
}

/// The path of predictions, by the protocol of the service.
fn path(service: &Custom<InferenceService>, name: &str) -> String {
    let model = service.spec.as_ref().ok().and_then(|spec| spec.predictor.model());
    let protocol = model.and_then(|model| model.framework.protocol_version);
    match protocol.as_deref() {
        Some("v2" | "grpc-v2") => format!("/v2/models/{name}/infer"),
        _ => format!("/v1/models/{name}:predict"),
    }
}

fn unknown(reason: &str, message: &str) -> ConditionUpdate {
    ConditionUpdate::new(ConditionStatus::Unknown, reason, message, Progress::InProgress)
}

/// KServe's conditions of a `TrainedModel`.
struct Checks {
    service: ConditionUpdate,
    predictor: ConditionUpdate,
    memory: ConditionUpdate,
    is_stopped: bool,
}

impl Checks {
    fn of(snapshot: &Snapshot, spec: &TrainedModelSpec, service: Option<&Custom<InferenceService>>) -> Self {
        let name = &spec.inference_service;
        let wait = |reason, message| ConditionUpdate::new(false, reason, message, Progress::InProgress);
        let fulfilled = || ConditionUpdate::new(true, "", "", Progress::Settled);
        let Some(service) = service else {
            let message = format!("there is no InferenceService {name} in this namespace: create it");
            let other = || unknown("InferenceServiceNotFound", "");
            return Self {
                service: wait("InferenceServiceNotFound", message),
                predictor: other(),
                memory: other(),
                is_stopped: false,
            };
        };
        let is_stopped = is_stopped(service);
        let is_ready = service.status.as_ref().is_some_and(|status| {
            status.observed_generation == Some(service.generation())
                && condition_status(&status.conditions, READY) == Some(ConditionStatus::True)
        });
        let service_ready = match () {
            () if is_stopped => wait("Stopped", format!("InferenceService {name} is stopped")),
            () if is_ready => fulfilled(),
            () => wait("InferenceServiceNotReady", format!("InferenceService {name} is not ready")),
        };
        let predictor = service.spec.as_ref().ok().map(|spec| &spec.predictor);
        let is_multi_model = predictor.is_some_and(PredictorSpec::is_multi_model);
        let has_memory = predictor
            .is_some_and(|predictor| allocated(predictor, &snapshot.models).contains(&snapshot.key.name));
        Self {
            service: service_ready,
            predictor: if is_multi_model {
                fulfilled()
            } else {
                let message = format!(
                    "InferenceService {name} has a model of its own: remove storageUri and storage from its predictor, or name \
                     another service"
                );
                wait("IsNotMMSPredictor", message)
            },
            memory: if has_memory {
                fulfilled()
            } else {
                let message = format!(
                    "{} does not fit into the memory limit of InferenceService {name} beside its older models: raise the \
                     limit, or delete one of them",
                    spec.model.memory
                );
                wait("MemoryResourceNotAvailable", message)
            },
            is_stopped,
        }
    }

    /// Whether the scheduler gets the model. It is loaded while the pods of the service start.
    fn is_served(&self) -> bool {
        let holds = |condition: &ConditionUpdate| condition.status == ConditionStatus::True;
        holds(&self.predictor) && holds(&self.memory) && !self.is_stopped
    }
}

/// The Model, with the same name.
fn model(snapshot: &Snapshot, object: &Custom<TrainedModel>, spec: &TrainedModelSpec) -> Desired {
    let mut model = Model::named(&snapshot.key.name, &spec.model.storage_uri);
    model.spec.requirements = vec![spec.model.framework.clone()];
    model.spec.memory = Some(spec.model.memory.clone());
    let owner = Owner { kind: KindId::of::<TrainedModel>(), name: &snapshot.key.name, uid: object.uid() };
    let body = json!({
        "metadata": {
            "labels": { LABEL: spec.inference_service },
            "ownerReferences": owner.references(),
        },
        "spec": model.spec,
    });
    Desired::new(MODELS, snapshot.key.clone(), body)
}

fn report(
    object: &Custom<TrainedModel>,
    own: &[(&str, &ConditionUpdate)],
    ready: &ConditionUpdate,
    url: Option<String>,
    now: Timestamp,
    mut plan: ModelPlan,
) -> ModelPlan {
    let before = object.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let was_ready = condition_status(before, READY) == Some(ConditionStatus::True);
    let event = |warning, reason, message: &str| EventDraft { warning, reason, message: message.into() };
    plan.events.extend(match (was_ready, ready.status == ConditionStatus::True) {
        (false, true) => Some(event(false, "TrainedModelReady", "the model is loaded")),
        (true, false) => Some(event(true, "TrainedModelNotReady", &ready.message)),
        _ => None,
    });
    plan.status = Some(TrainedModelStatus {
        observed_generation: Some(object.generation()),
        conditions: conditions(before, own, ready, object.generation(), now),
        url,
        address: object.status.as_ref().and_then(|status| status.address.clone()),
    });
    plan
}
