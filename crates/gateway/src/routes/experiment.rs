//! Experiments: traffic splits in front of models or pipelines.

use super::table::Named;
use crate::metrics::{CandidateMetrics, Metrics};
use gantry_core::traffic::Traffic;
use gantry_proto::{gantry as pb, scheduler::ResourceType};
use memchr::memmem;
use std::{fmt, sync::Arc, time::Duration};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Model,
    Pipeline,
}

pub(crate) struct Experiment {
    pub(crate) name: Arc<str>,
    pub(crate) kind: Kind,
    /// An inactive experiment gets no traffic.
    pub(crate) active: bool,
    pub(crate) reason: String,
    default: Option<Arc<str>>,
    traffic: Traffic<Candidate>,
}

/// A model or pipeline of an experiment.
pub(crate) struct Candidate {
    pub(crate) name: Arc<str>,
    /// The part of `x-seldon-route` that names it: `:<model>_` or `:<name>.pipeline:`.
    sticky: String,
    pub(crate) metrics: CandidateMetrics,
}

impl Named for Experiment {
    fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "experiment {}", self.name)
    }
}

impl Experiment {
    /// `None` without a definition.
    pub(super) fn new(wanted: &pb::ExperimentRoute, metrics: &Metrics) -> Option<Self> {
        let definition = wanted.definition.as_ref()?;
        let kind = match definition.resource_type() {
            ResourceType::Model => Kind::Model,
            ResourceType::Pipeline => Kind::Pipeline,
        };
        let candidate = |name: &str| Candidate {
            name: name.into(),
            sticky: match kind {
                Kind::Model => format!(":{name}_"),
                Kind::Pipeline => format!(":{name}.pipeline:"),
            },
            metrics: metrics.candidate(&definition.name, name),
        };
        let traffic = Traffic {
            backends: definition.candidates.iter().map(|c| (candidate(&c.name), c.weight)).collect(),
            mirror: definition.mirror.as_ref().map(|m| (candidate(&m.name), m.percent)),
        };
        Some(Self {
            name: definition.name.as_str().into(),
            kind,
            active: wanted.active,
            reason: wanted.reason.clone(),
            default: definition.default.as_deref().map(Into::into),
            traffic,
        })
    }

    /// The name that the experiment takes over.
    pub(super) fn takeover(&self) -> Option<(Kind, Arc<str>)> {
        let default = self.default.as_ref().filter(|_| self.active)?;
        Some((self.kind, Arc::clone(default)))
    }

    /// The candidate that `sticky` names, else one by weight.
    pub(crate) fn pick(&self, sticky: Option<&[u8]>, random: u64) -> Option<&Candidate> {
        let is_named =
            |c: &Candidate| sticky.is_some_and(|route| memmem::find(route, c.sticky.as_bytes()).is_some());
        let named = self.traffic.backends.iter().map(|(candidate, _)| candidate).find(|c| is_named(c));
        let picked = named.or_else(|| self.traffic.pick(random))?;
        picked.metrics.requests.inc();
        Some(picked)
    }

    /// A call of a candidate has ended.
    pub(crate) fn record(&self, candidate: &str, is_error: bool, took: Duration) {
        let mut candidates = self.traffic.backends.iter().map(|(candidate, _)| candidate);
        let Some(found) = candidates.find(|c| *c.name == *candidate) else { return };
        found.metrics.seconds.observe(took.as_secs_f64());
        if is_error {
            found.metrics.errors.inc();
        }
    }

    /// The mirror, if this request is copied to it.
    pub(crate) fn mirror(&self, random: u64) -> Option<&Candidate> {
        self.traffic.mirror(random)
    }
}
