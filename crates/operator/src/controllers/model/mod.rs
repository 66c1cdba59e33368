//! Models.

mod status;
#[cfg(test)]
mod tests;

use super::{
    rollout_policy,
    scheduled::{self, Scheduled, Words},
};
use crate::{
    admission::{AdmissionRequest, Decision, validate_kind},
    caches::Caches,
    cluster::{Custom, Key, Model},
    conditions::ConditionUpdate,
    controller::{Controller, SchedulerRole},
    plan::{Plan, SchedulerAction},
    schedulers::{LoadedView as _, ModelView},
};
use gantry_api::{Condition, INFERENCE_SERVICE, ModelSpec, ModelStatus, TargetKind};
use gantry_proto::scheduler::{self as pb, model_status::ModelState};
use k8s_openapi::jiff::Timestamp;

pub type Snapshot = scheduled::Snapshot<Model>;

/// Facts from other objects.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// A policy that selects the model, as long as the scheduler does not know so.
    pub awaited_policy: Option<String>,
}

#[derive(Clone, Copy, Debug)]
pub struct ModelController;

impl Controller for ModelController {
    type Kind = Model;
    type Snapshot = Snapshot;
    const NAME: &'static str = "model";
    const SCHEDULER: SchedulerRole = SchedulerRole::Client;
    const PATCHES: bool = true;
    const MANY: bool = true;

    fn snapshot(caches: &Caches, key: &Key) -> Snapshot {
        Snapshot::take(caches, key)
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<ModelStatus> {
        scheduled::plan(snapshot, now)
    }

    fn admit(request: &AdmissionRequest, caches: &Caches) -> Decision {
        validate_kind::<Model>(request, caches)
    }
}

impl Scheduled for Model {
    type View = ModelView;
    type Definition = pb::Model;
    type Facts = Facts;
    const FINALIZER: &'static str = "seldon.model.finalizer";
    const WORDS: Words = Words {
        noun: "model",
        loaded: "loaded",
        unloaded: "unloaded",
        confirmed_by: "replica",
        progressing: "ModelProgressing",
        terminating: "ModelTerminating",
        ready: "ModelReady",
        not_ready: "ModelNotReady",
    };

    fn facts(caches: &Caches, key: &Key) -> Facts {
        Facts { awaited_policy: rollout_policy::awaited::<Self>(caches, TargetKind::Model, key) }
    }

    fn definition(object: &Custom<Self>, spec: &ModelSpec, _: &Facts) -> pb::Model {
        let Key { namespace, name } = object.key();
        let mut model = spec.to_proto(&name, Some(&namespace), Some(object.generation()));
        // Gateways serve the Model of an InferenceService by its hosts and paths too.
        if let Some(meta) = model.meta.as_mut().filter(|_| is_of_service(object)) {
            meta.kind = Some(INFERENCE_SERVICE.to_owned());
        }
        model
    }

    fn load(model: pb::Model, replaces: i64) -> SchedulerAction {
        SchedulerAction::LoadModel { model: Box::new(model), replaces }
    }

    fn hold(facts: &Facts) -> Option<ConditionUpdate> {
        facts.awaited_policy.as_ref().map(|policy| rollout_policy::hold(policy, "model"))
    }

    fn unload(key: &Key, generation: i64) -> SchedulerAction {
        SchedulerAction::UnloadModel(pb::UnloadModelRequest {
            model: Some(pb::ModelReference { name: key.name.clone(), version: None }),
            kubernetes_meta: Some(pb::KubernetesMeta { namespace: key.namespace.clone(), generation }),
        })
    }

    fn is_current(view: &ModelView, desired: &pb::Model) -> bool {
        let Some(latest) = &view.latest else { return false };
        let meta = desired.meta.as_ref().and_then(|meta| meta.kubernetes_meta.as_ref());
        let same_meta = view.kubernetes_meta() == meta;
        let Some(known) = &latest.model_defn else { return same_meta };
        same_meta && normalized(known) == normalized(desired)
    }

    fn ready(_: &ModelSpec, view: &ModelView, _: &Facts) -> ConditionUpdate {
        status::of(view)
    }

    fn is_loading(view: &ModelView, _: &ConditionUpdate) -> bool {
        // A model that fits on no server stays so until another object changes.
        matches!(view.state(), ModelState::ModelProgressing | ModelState::ModelCreate)
    }

    fn build_status(
        object: &Custom<Self>,
        ready: &ConditionUpdate,
        view: Option<&ModelView>,
        _: &Facts,
        now: Timestamp,
    ) -> ModelStatus {
        status::build_status(object, ready, view, now)
    }

    fn build_unreachable_status(
        object: &Custom<Self>,
        ready: &ConditionUpdate,
        now: Timestamp,
    ) -> ModelStatus {
        status::unreachable(object, ready, now)
    }

    fn observed(status: &ModelStatus) -> (Option<i64>, &[Condition]) {
        (status.observed_generation, &status.conditions)
    }
}

fn is_of_service(object: &Custom<Model>) -> bool {
    let owners = object.metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().any(|owner| owner.controller == Some(true) && owner.kind == INFERENCE_SERVICE)
}

/// Without the fields that the scheduler adds, and without credentials, which its status does not contain.
fn normalized(model: &pb::Model) -> pb::Model {
    let mut model = model.clone();
    gantry_proto::redact(&mut model);
    if let Some(meta) = &mut model.meta {
        meta.version = None;
        meta.kind = None;
        meta.kubernetes_meta = None;
    }
    if let Some(spec) = &mut model.model_spec {
        spec.model_runtime_info = None;
    }
    model.stream_spec = None;
    model
}
