//! Experiments.

mod status;
#[cfg(test)]
mod tests;

use super::{
    scheduled::{self, Scheduled, Words},
    validation,
};
use crate::{
    admission::{AdmissionRequest, Decision, validate_kind},
    caches::Caches,
    cluster::{Custom, Experiment, Key},
    conditions::ConditionUpdate,
    controller::{Controller, SchedulerRole},
    plan::{Plan, SchedulerAction},
    schedulers::{ExperimentView, LoadedView as _},
};
use gantry_api::{Condition, ExperimentSpec, PlainStatus};
use gantry_proto::scheduler as pb;
use k8s_openapi::jiff::Timestamp;

pub type Snapshot = scheduled::Snapshot<Experiment>;

#[derive(Clone, Copy, Debug)]
pub struct ExperimentController;

impl Controller for ExperimentController {
    type Kind = Experiment;
    type Snapshot = Snapshot;
    const NAME: &'static str = "experiment";
    const SCHEDULER: SchedulerRole = SchedulerRole::Client;
    const PATCHES: bool = true;
    const PACED: bool = true;

    fn snapshot(caches: &Caches, key: &Key) -> Snapshot {
        Snapshot::take(caches, key)
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<PlainStatus> {
        scheduled::plan(snapshot, now)
    }

    fn admit(request: &AdmissionRequest, caches: &Caches) -> Decision {
        validate_kind::<Experiment>(request, caches)
    }
}

impl Scheduled for Experiment {
    type View = ExperimentView;
    type Definition = pb::Experiment;
    type Facts = ();
    const FINALIZER: &'static str = "seldon.experiment.finalizer";
    const WORDS: Words = Words {
        noun: "experiment",
        loaded: "started",
        unloaded: "stopped",
        confirmed_by: "gateway",
        progressing: "ExperimentStarting",
        terminating: "ExperimentStopping",
        ready: "ExperimentReady",
        not_ready: "ExperimentNotReady",
    };

    fn definition(object: &Custom<Self>, spec: &ExperimentSpec, (): &()) -> pb::Experiment {
        let Key { namespace, name } = object.key();
        spec.to_proto(&name, Some(&namespace), Some(object.generation()))
    }

    fn load(experiment: pb::Experiment, replaces: i64) -> SchedulerAction {
        SchedulerAction::StartExperiment { experiment: Box::new(experiment), replaces }
    }

    fn unload(key: &Key, _: i64) -> SchedulerAction {
        SchedulerAction::StopExperiment(key.name.clone())
    }

    fn is_current(view: &ExperimentView, desired: &pb::Experiment) -> bool {
        let same_meta = view.kubernetes_meta() == desired.kubernetes_meta.as_ref();
        // Seldon's scheduler does not report the definition.
        same_meta && view.0.definition.as_ref().is_none_or(|known| known == desired)
    }

    fn ready(spec: &ExperimentSpec, view: &ExperimentView, (): &()) -> ConditionUpdate {
        status::Conditions::of(spec, view).ready()
    }

    fn build_status(
        object: &Custom<Self>,
        ready: &ConditionUpdate,
        view: Option<&ExperimentView>,
        (): &(),
        now: Timestamp,
    ) -> PlainStatus {
        let own = status::own(object, ready, view);
        validation::build_status(object, &own.each_ref().map(|(name, c)| (*name, c)), ready, now)
    }

    fn observed(status: &PlainStatus) -> (Option<i64>, &[Condition]) {
        (status.observed_generation, &status.conditions)
    }
}
