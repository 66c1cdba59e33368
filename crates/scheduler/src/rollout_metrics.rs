//! Metrics of rollouts. Labels name objects only while they have a candidate.

use crate::engine::Handle;
use gantry_core::{
    rollout::{Event, Phase},
    scheduling::{ObjectRollout, RolloutKind, RolloutTarget},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{MetricType, counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    kind: &'static str,
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    kind: &'static str,
    event: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CandidateLabels {
    kind: &'static str,
    name: String,
    policy: String,
}

const KINDS: [RolloutKind; 3] = [RolloutKind::Model, RolloutKind::Pipeline, RolloutKind::Service];
/// Events with a counter from the start: an alert on the increase of a counter does not see that it appears.
const COUNTED_FROM_START: [&str; 4] = ["Promoted", "RolledBack", "Degraded", "RevertFailed"];

pub(crate) struct RolloutMetrics {
    phases: Family<PhaseLabels, Gauge>,
    events: Family<EventLabels, Counter>,
}

impl RolloutMetrics {
    pub(crate) fn new() -> Self {
        let events = Family::<EventLabels, Counter>::default();
        for kind in KINDS.map(RolloutKind::name) {
            for event in COUNTED_FROM_START {
                drop(events.get_or_create(&EventLabels { kind, event }));
            }
        }
        Self { phases: Family::default(), events }
    }

    pub(crate) fn register(&self, registry: &mut Registry, engine: Handle) {
        registry.register("rollouts", "Objects under a rollout policy, by phase", self.phases.clone());
        registry.register("rollout_events", "Events of rollouts", self.events.clone());
        registry.register_collector(Box::new(Candidates(engine)));
    }

    pub(crate) fn happened(&self, target: &RolloutTarget, event: &Event) {
        self.events.get_or_create(&EventLabels { kind: target.kind.name(), event: event.name() }).inc();
    }

    pub(crate) fn changed(
        &self,
        kind: RolloutKind,
        before: Option<&ObjectRollout>,
        after: Option<&ObjectRollout>,
    ) {
        for (rollout, sign) in [(before, -1), (after, 1)] {
            let Some(rollout) = rollout else { continue };
            let labels = PhaseLabels { kind: kind.name(), phase: rollout.state.phase.name() };
            self.phases.get_or_create(&labels).inc_by(sign);
        }
    }
}

/// The weights of candidates, read when scraped, so that the series of an object ends with its rollout.
struct Candidates(Handle);

impl Candidates {
    fn weights(&self) -> Vec<(CandidateLabels, i64)> {
        let read_model = &self.0.read_model;
        let models = read_model.models().into_iter().filter_map(|name| {
            let snapshot = read_model.model(&name)?;
            candidate(RolloutKind::Model, &name, snapshot.model.rollout.as_deref()?)
        });
        let pipelines = read_model.pipeline_snapshots().into_iter().filter_map(|(name, snapshot)| {
            candidate(RolloutKind::Pipeline, &name, snapshot.pipeline.rollout.as_deref()?)
        });
        let services = read_model.services().into_iter().filter_map(|name| {
            let snapshot = read_model.service(&name)?;
            candidate(RolloutKind::Service, &name, snapshot.service.rollout.as_deref()?)
        });
        models.chain(pipelines).chain(services).collect()
    }
}

/// The candidate of an object and its weight.
fn candidate(kind: RolloutKind, name: &str, rollout: &ObjectRollout) -> Option<(CandidateLabels, i64)> {
    let Phase::Progressing { .. } = rollout.state.phase else { return None };
    let candidate = rollout.weights.as_ref().and_then(|weights| weights.candidate.as_ref());
    let weight = candidate.map_or(0, |(_, percent)| i64::from(percent.get()));
    Some((
        CandidateLabels { kind: kind.name(), name: name.to_owned(), policy: rollout.policy.to_string() },
        weight,
    ))
}

impl fmt::Debug for Candidates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Candidates")
    }
}

impl Collector for Candidates {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let name = "rollout_candidate_weight";
        let help = "Percentage of the requests that the candidate of a rollout gets";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, weight) in self.weights() {
            let gauge = Gauge::<i64>::default();
            gauge.set(weight);
            gauge.encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
