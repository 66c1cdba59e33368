//! Explains the state of an experiment.

use super::{Answer, CHECK_GATEWAYS, Explanation, Fact, State, ago, cause, fact, managed, unready_model};
use crate::scheduling::{
    Experiment, Millis, Reason, Resource, Unready, dependants, experiment::ExperimentDefinition,
    pipeline::UNACKNOWLEDGED,
};
use crate::traffic::Traffic;

/// `None` for an unknown experiment.
pub fn experiment(state: &State, name: &str, now: Millis) -> Option<Explanation> {
    let experiment = state.experiments().get(name)?;
    let (reason, headline, next) = answer(state, name, experiment, now);
    Some(Explanation { headline, reason, facts: facts(state, experiment), next })
}

fn answer(state: &State, name: &str, experiment: &Experiment, now: Millis) -> Answer {
    if experiment.deleted {
        return (
            Reason::Deleted,
            format!("{name} was stopped {} ago.", ago(now, experiment.since)),
            "apply its manifest again to restart it".to_owned(),
        );
    }
    let candidate = experiment.unready_candidate.as_ref().map(|unready| ("candidate", unready));
    let unready = candidate.or_else(|| experiment.unready_mirror.as_ref().map(|unready| ("mirror", unready)));
    if let Some((role, unready)) = unready {
        let (reason, cause, next) = unready_resource(state, experiment.definition.resource, unready, now);
        let headline = format!("{name} is not active: {role} {}: {cause}.", unready.name);
        return (reason, headline, next);
    }
    if !experiment.status().active {
        let headline = format!("{name} is not active: {UNACKNOWLEDGED}.");
        return (Reason::Routing, headline, CHECK_GATEWAYS.to_owned());
    }
    let split = shares(&experiment.definition);
    let headline = match &experiment.definition.default {
        Some(default) => format!("{name} is active: it splits {default}: {split}."),
        None => format!("{name} is active: {split}."),
    };
    (Reason::Ready, headline, String::new())
}

fn unready_resource(state: &State, resource: Resource, unready: &Unready, now: Millis) -> Answer {
    let name = &unready.name;
    if resource == Resource::Model {
        return unready_model(state, name, now);
    }
    match state.pipelines().get(name).filter(|p| !p.deleted).and_then(|_| super::pipeline(state, name, now)) {
        Some(explained) => (explained.reason, cause(name, &explained), explained.next),
        None => (
            Reason::UnknownPipeline,
            format!("pipeline {name} does not exist"),
            format!("apply a Pipeline named {name}"),
        ),
    }
}

fn shares(definition: &ExperimentDefinition) -> String {
    let traffic = Traffic { backends: definition.candidates.clone(), mirror: None };
    let candidates = traffic.shares().map(|(name, share)| format!("{share:.0} % {name}"));
    let mirror = definition.mirror.iter().map(|(name, percent)| format!("mirror {percent} % {name}"));
    candidates.chain(mirror).collect::<Vec<_>>().join(", ")
}

fn facts(state: &State, experiment: &Experiment) -> Vec<Fact> {
    let definition = &experiment.definition;
    let desired = std::iter::once(shares(definition))
        .chain(definition.default.iter().map(|default| format!("takes over the name {default}")))
        .chain(managed(experiment.owner.as_ref(), definition.generation));
    let width = definition.resources().map(|name| name.len()).max().unwrap_or_default();
    let verdict = |name| {
        let unready = match definition.resource {
            Resource::Model => dependants::unready_model(state.models(), name),
            Resource::Pipeline => dependants::unready_pipeline(state.pipelines(), name),
        };
        match unready {
            None => format!("{name:width$}   available"),
            Some(unready) => format!("{name:width$}   {}", unready.reason),
        }
    };
    let resources = definition.resources().map(verdict);
    [fact("desired", desired), fact("candidates", resources)].into_iter().flatten().collect()
}
