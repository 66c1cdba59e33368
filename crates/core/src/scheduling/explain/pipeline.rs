//! Explains the state of a pipeline.

use super::{
    Answer, CHECK_GATEWAYS, Explanation, Fact, State, ago, fact, managed, many, strip_period, unready_model,
};
use crate::scheduling::{
    Millis, Obstacle, Pipeline, PipelineState, PipelineVersion, Reason, dependants, pipeline::UNACKNOWLEDGED,
};

/// `None` for an unknown pipeline.
pub fn pipeline(state: &State, name: &str, now: Millis) -> Option<Explanation> {
    let pipeline = state.pipelines().get(name)?;
    let version = pipeline.latest()?;
    let (reason, headline, next) = answer(state, name, pipeline, version, now);
    Some(Explanation { headline, reason, facts: facts(state, pipeline, version, now), next })
}

fn answer(state: &State, name: &str, pipeline: &Pipeline, version: &PipelineVersion, now: Millis) -> Answer {
    let older = pipeline.routed().filter(|routed| routed.number != version.number);
    let not_ready = |cause: &str| match older.filter(|older| older.unready.is_none()) {
        Some(older) => {
            let (number, older) = (version.number, older.number);
            format!("{name} version {number} is not ready: {cause}; version {older} serves.")
        }
        None => format!("{name} is not ready: {cause}."),
    };
    let status = pipeline.version_status(version);
    match pipeline.rollout_obstacle(version) {
        Some(rolled_back @ Obstacle::RolledBack(_)) => {
            let next =
                format!("change the pipeline and apply it, or run: gantry rollout retry pipeline/{name}");
            return (Reason::RolledBack, not_ready(strip_period(&rolled_back.to_string())), next);
        }
        Some(obstacle) if version.unready.is_none() && version.failure.is_none() => {
            let next = format!("see the evidence: gantry rollout status pipeline/{name}");
            return (Reason::RollingOut, not_ready(&obstacle.to_string()), next);
        }
        _ => {}
    }
    match (status.state, &version.unready) {
        (PipelineState::Terminated, _) => (
            Reason::Deleted,
            format!("{name} was deleted {} ago.", ago(now, version.since)),
            "apply its manifest again to recreate it".to_owned(),
        ),
        (PipelineState::Terminating, _) => (
            Reason::Terminating,
            format!("{name} is being removed: {UNACKNOWLEDGED}."),
            CHECK_GATEWAYS.to_owned(),
        ),
        (PipelineState::Failed, _) => (
            Reason::NotExecutable,
            not_ready(&format!("a gateway cannot execute version {}: {}", version.number, status.reason)),
            "check that all gateways have the version of the scheduler".to_owned(),
        ),
        (_, Some(unready)) => {
            let (reason, cause, next) = unready_model(state, &unready.name, now);
            let next = match reason {
                Reason::UnknownModel => format!("{next}, or remove the step"),
                _ => next,
            };
            (reason, not_ready(&format!("step {}: {cause}", unready.name)), next)
        }
        (PipelineState::Ready, None) if status.models_ready => {
            let (number, steps) = (version.number, many(version.definition.steps.len(), "step"));
            (Reason::Ready, format!("{name} is ready: version {number} serves, with {steps}."), String::new())
        }
        _ => (Reason::Routing, not_ready(UNACKNOWLEDGED), CHECK_GATEWAYS.to_owned()),
    }
}

fn facts(state: &State, pipeline: &Pipeline, version: &PipelineVersion, now: Millis) -> Vec<Fact> {
    let definition = &version.definition;
    let steps = many(definition.steps.len(), "step");
    let desired = std::iter::once(format!("version {}, {steps}", version.number))
        .chain(managed(pipeline.owner.as_ref(), definition.generation));
    let width = definition.steps.iter().map(|step| step.len()).max().unwrap_or_default();
    let models: Vec<(bool, String)> = definition
        .steps
        .iter()
        .map(|step| match dependants::unready_model(state.models(), step) {
            None => (true, format!("{step:width$}   available")),
            Some(unready) => (false, format!("{step:width$}   {}", unready.reason)),
        })
        .collect();
    // What is missing comes first, because long lists are cut.
    let missing = models.iter().filter(|(available, _)| !available);
    let lines =
        missing.chain(models.iter().filter(|(available, _)| *available)).map(|(_, line)| line.clone());
    let versions = pipeline.versions.iter().rev().map(|v| {
        let status = pipeline.version_status(v);
        format!("version {}   {:?} for {}: {}", v.number, status.state, ago(now, v.since), status.reason)
    });
    [fact("desired", desired), fact("steps", lines), fact("versions", versions)]
        .into_iter()
        .flatten()
        .collect()
}
