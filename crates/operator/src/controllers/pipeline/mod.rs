//! Pipelines.

mod status;
#[cfg(test)]
mod tests;

use super::{
    rollout_policy,
    scheduled::{self, Scheduled, Words},
    validation,
};
use crate::{
    admission::{AdmissionRequest, Decision, validate_kind},
    caches::Caches,
    cluster::{Custom, Key, Pipeline},
    conditions::{ConditionUpdate, Progress},
    controller::{Controller, SchedulerRole},
    plan::{Plan, SchedulerAction},
    schedulers::{LoadedView as _, PipelineView},
};
use gantry_api::{Condition, KEEP_PAYLOADS, PipelineSpec, PlainStatus, TargetKind};
use gantry_proto::{gantry::RolloutStatus, scheduler as pb};
use k8s_openapi::jiff::Timestamp;

pub type Snapshot = scheduled::Snapshot<Pipeline>;

/// Facts from other objects.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// A policy that selects the pipeline, as long as the scheduler does not know so.
    pub awaited_policy: Option<String>,
    pub rollout: Option<RolloutStatus>,
}

#[derive(Clone, Copy, Debug)]
pub struct PipelineController;

impl Controller for PipelineController {
    type Kind = Pipeline;
    type Snapshot = Snapshot;
    const NAME: &'static str = "pipeline";
    const SCHEDULER: SchedulerRole = SchedulerRole::Client;
    const PATCHES: bool = true;
    const MANY: bool = true;
    const PACED: bool = true;

    fn snapshot(caches: &Caches, key: &Key) -> Snapshot {
        Snapshot::take(caches, key)
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<PlainStatus> {
        scheduled::plan(snapshot, now)
    }

    fn admit(request: &AdmissionRequest, caches: &Caches) -> Decision {
        validate_kind::<Pipeline>(request, caches)
    }
}

impl Scheduled for Pipeline {
    type View = PipelineView;
    type Definition = pb::Pipeline;
    type Facts = Facts;
    const FINALIZER: &'static str = "seldon.pipeline.finalizer";
    const WORDS: Words = Words {
        noun: "pipeline",
        loaded: "loaded",
        unloaded: "unloaded",
        confirmed_by: "gateway",
        progressing: "PipelineCreating",
        terminating: "PipelineTerminating",
        ready: "PipelineReady",
        not_ready: "PipelineNotReady",
    };

    fn facts(caches: &Caches, key: &Key) -> Facts {
        Facts {
            awaited_policy: rollout_policy::awaited::<Self>(caches, TargetKind::Pipeline, key),
            rollout: caches.schedulers.rollout_of(TargetKind::Pipeline, key),
        }
    }

    fn definition(object: &Custom<Self>, spec: &PipelineSpec, _: &Facts) -> pb::Pipeline {
        let Key { namespace, name } = object.key();
        let keep_payloads = object.annotation(KEEP_PAYLOADS) == Some("true");
        let pipeline = spec.to_proto(&name, Some(&namespace), Some(object.generation()));
        pb::Pipeline { keep_payloads, ..pipeline }
    }

    fn load(pipeline: pb::Pipeline, replaces: i64) -> SchedulerAction {
        SchedulerAction::LoadPipeline { pipeline: Box::new(pipeline), replaces }
    }

    fn hold(facts: &Facts) -> Option<ConditionUpdate> {
        facts.awaited_policy.as_ref().map(|policy| rollout_policy::hold(policy, "pipeline"))
    }

    fn unload(key: &Key, _: i64) -> SchedulerAction {
        SchedulerAction::UnloadPipeline(key.name.clone())
    }

    fn is_current(view: &PipelineView, desired: &pb::Pipeline) -> bool {
        let same_meta = view.kubernetes_meta() == desired.kubernetes_meta.as_ref();
        // Seldon's scheduler reports no owner, and leaves out a part of the definition.
        let is_partial = view.manager.is_empty();
        same_meta && (is_partial || normalized(&view.pipeline) == normalized(desired))
    }

    fn ready(spec: &PipelineSpec, view: &PipelineView, facts: &Facts) -> ConditionUpdate {
        let ready = status::Conditions::of(spec, view).ready();
        let rollout = facts.rollout.as_ref().filter(|_| ready.progress != Progress::Stalled);
        rollout.and_then(|rollout| status::of_rollout(view, rollout)).unwrap_or(ready)
    }

    fn build_status(
        object: &Custom<Self>,
        ready: &ConditionUpdate,
        view: Option<&PipelineView>,
        _: &Facts,
        now: Timestamp,
    ) -> PlainStatus {
        let own = status::own(object, ready, view);
        validation::build_status(object, &own.each_ref().map(|(name, c)| (*name, c)), ready, now)
    }

    fn observed(status: &PlainStatus) -> (Option<i64>, &[Condition]) {
        (status.observed_generation, &status.conditions)
    }
}

/// With the defaults of references, and without the fields that the scheduler adds.
fn normalized(pipeline: &pb::Pipeline) -> pb::Pipeline {
    let pipeline = pb::Pipeline { uid: String::new(), version: 0, kubernetes_meta: None, ..pipeline.clone() };
    gantry_proto::with_default_references(pipeline)
}
