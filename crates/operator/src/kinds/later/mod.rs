//! Pipelines and Experiments: their manifests are checked and kept, and this version says truthfully that it does not
//! run them. It never holds one: what another operator holds is let go.

#[cfg(test)]
mod tests;

use super::{
    alone::{Snapshot, controller},
    checked::{Checked, check, told},
};
use crate::{
    cluster::{CustomKind, Experiment, Pipeline},
    conditions::{Outlook, Says},
    plan::{Action, Plan},
};
use gantry_api::PlainStatus;
use gantry_core::mutant;
use k8s_openapi::jiff::Timestamp;

/// The controller of Pipelines.
#[derive(Clone, Copy, Debug)]
pub struct Pipelines;

/// The controller of Experiments.
#[derive(Clone, Copy, Debug)]
pub struct Experiments;

/// A kind that is not run yet.
pub trait Later: Checked + CustomKind<Status = PlainStatus> {
    /// What Seldon's operator holds its objects with.
    const FINALIZER: &'static str;
    /// The conditions of Seldon's operator; the first is the one that says whether it runs.
    const CONDITIONS: &'static [&'static str];
    /// What is to be used meanwhile.
    const MEANWHILE: &'static str;
}

impl Later for Pipeline {
    const FINALIZER: &'static str = "seldon.pipeline.finalizer";
    const CONDITIONS: &'static [&'static str] = &["PipelineReady", "PipelineGwReady", "ModelsReady"];
    const MEANWHILE: &'static str = "pipelines are checked but not run by this version: call the models of its steps one \
                                     after the other (POST /v2/models/NAME/infer)";
}

impl Later for Experiment {
    const FINALIZER: &'static str = "seldon.experiment.finalizer";
    const CONDITIONS: &'static [&'static str] = &["ExperimentReady", "CandidatesReady", "MirrorReady"];
    const MEANWHILE: &'static str = "experiments are checked but not run by this version: choose between the candidates \
                                     in the client (POST /v2/models/NAME/infer)";
}

controller!(Pipelines, Pipeline, "pipeline", pipelines, plan);
controller!(Experiments, Experiment, "experiment", experiments, plan);

fn plan<K: Later>(snapshot: &Snapshot<K>, now: Timestamp) -> Plan<PlainStatus> {
    let mut plan = Plan::default();
    let Some(object) = snapshot.object.as_deref() else { return plan };
    if object.is_deleted() {
        // Nothing runs that would have to be ended first.
        if object.has_finalizer(K::FINALIZER) && !mutant::is("keeps_what_seldon_held") {
            plan.actions.push(Action::RemoveFinalizer(K::FINALIZER));
        }
        return plan;
    }
    let says = match check(object) {
        Ok(_) => Says::new(false, "NotSupportedYet", K::MEANWHILE, Outlook::Final),
        Err(says) => says,
    };
    // What another operator said is not true any more.
    let before = object.status.iter().flat_map(|s| &s.conditions);
    let said: Vec<&str> = before.map(|c| c.r#type.as_str()).collect();
    let is_ours = |(i, name): &(usize, &&'static str)| *i == 0 || said.contains(*name);
    let own: Vec<(&str, &Says)> =
        K::CONDITIONS.iter().enumerate().filter(is_ours).map(|(_, name)| (*name, &says)).collect();
    plan.status = Some(told(object, &own, &says, now));
    plan
}
