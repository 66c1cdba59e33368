//! Predicted changes of pipelines and experiments.

use super::{Action, PlannedChange, lines};
use crate::scheduling::{Experiment, Kind, Millis, Pipeline, State, command::Command};
use std::sync::Arc;

pub(super) fn planned_pipeline(
    trial: &mut State,
    command: Command,
    name: Arc<str>,
    now: Millis,
) -> PlannedChange {
    let live = |state: &State| state.pipelines().get(&name).filter(|p| !p.deleted).cloned();
    let number = |pipeline: Option<&Pipeline>| pipeline.and_then(Pipeline::latest).map(|v| v.number);
    let old = live(trial);
    let outcome = trial.apply(command, now);
    let new = live(trial);
    let (from_version, to_version) = (number(old.as_ref()), number(new.as_ref()));
    let (action, effects) = match (outcome, &old, &new) {
        (Err(rejection), ..) => (Action::Reject, lines(&rejection)),
        (_, None, None) => (Action::Unchanged, vec!["already deleted".to_owned()]),
        (_, Some(_), None) => (Action::Delete, vec!["would be removed after its last request".to_owned()]),
        (_, None, Some(new)) => (Action::Create, pipeline(new, None)),
        (_, Some(old), Some(new)) if from_version != to_version => (Action::Update, pipeline(new, Some(old))),
        (_, Some(old), Some(new)) if old.owner != new.owner || old.latest() != new.latest() => {
            (Action::Adjust, Vec::new())
        }
        _ => (Action::Unchanged, vec!["unchanged".to_owned()]),
    };
    let placed = new.as_ref().and_then(Pipeline::latest).is_some_and(|v| v.unready.is_none());
    PlannedChange { kind: Kind::Pipeline, name, action, from_version, to_version, effects, placed }
}

fn pipeline(new: &Pipeline, old: Option<&Pipeline>) -> Vec<String> {
    let serving = old.and_then(Pipeline::routed).map(|v| v.number);
    let unready = new.latest().and_then(|v| v.unready.as_ref());
    let effect = match (unready, serving) {
        (None, None) => "would serve at once".to_owned(),
        (None, Some(old)) => match &new.rollout {
            Some(rollout) => {
                format!("would take the traffic of version {old} in steps of {}", rollout.policy)
            }
            None => format!("would take the traffic of version {old}"),
        },
        (Some(unready), _) => format!("would wait: step {}: {}", unready.name, unready.reason),
    };
    let stays = unready.and(serving).map(|old| format!("version {old} would continue to serve"));
    std::iter::once(effect).chain(stays).collect()
}

pub(super) fn planned_experiment(
    trial: &mut State,
    command: Command,
    name: Arc<str>,
    now: Millis,
) -> PlannedChange {
    let live = |state: &State| state.experiments().get(&name).filter(|e| !e.deleted).cloned();
    let old = live(trial);
    let outcome = trial.apply(command, now);
    let new = live(trial);
    let state = |experiment: &Experiment| match experiment.obstacle() {
        None => "would split traffic at once".to_owned(),
        Some(obstacle) => format!("would not be active: {obstacle}"),
    };
    let (action, effects) = match (outcome, &old, &new) {
        (Err(rejection), ..) => (Action::Reject, lines(&rejection)),
        (_, None, None) => (Action::Unchanged, vec!["already stopped".to_owned()]),
        (_, Some(_), None) => (Action::Delete, vec!["would stop; its candidates stay".to_owned()]),
        (_, None, Some(new)) => (Action::Create, vec![state(new)]),
        (_, Some(old), Some(new)) if old.definition.spec != new.definition.spec => {
            (Action::Update, vec![state(new)])
        }
        (_, Some(old), Some(new)) if old.owner != new.owner || old.definition != new.definition => {
            (Action::Adjust, Vec::new())
        }
        _ => (Action::Unchanged, vec!["unchanged".to_owned()]),
    };
    let placed = new.as_ref().is_some_and(|e| e.obstacle().is_none());
    let (from_version, to_version) = (None, None);
    PlannedChange { kind: Kind::Experiment, name, action, from_version, to_version, effects, placed }
}
