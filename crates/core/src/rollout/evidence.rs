//! Observations of revisions: traffic statistics per window, and readiness.

use super::{distribution::Distribution, histogram::LatencyHistogram, sequential::Sample};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A version of the rolled-out object, named by the digest of its spec or by its version number.
pub type Revision = Arc<str>;

/// Failed requests by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errors {
    /// Answers with a 5xx status, or gRPC codes that map to one.
    pub server: u64,
    pub timeout: u64,
    /// No answer: refused or lost connections.
    pub connection: u64,
    /// Answers with a 4xx status. They are the client's and do not count as failures.
    pub client: u64,
}

impl Errors {
    pub const fn failures(&self) -> u64 {
        self.server.saturating_add(self.timeout).saturating_add(self.connection)
    }

    pub const fn add(&mut self, other: &Self) {
        self.server = self.server.saturating_add(other.server);
        self.timeout = self.timeout.saturating_add(other.timeout);
        self.connection = self.connection.saturating_add(other.connection);
        self.client = self.client.saturating_add(other.client);
    }
}

/// A score of drift that was measured elsewhere, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DriftScore(u64);

impl DriftScore {
    /// `None` for a score that is not a number.
    pub fn new(score: f64) -> Option<Self> {
        (!score.is_nan()).then(|| Self((score.max(0.0) * 1000.0).round() as u64))
    }

    pub fn get(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

/// Traffic of one revision in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub requests: u64,
    pub errors: Errors,
    pub latency: LatencyHistogram,
    pub outputs: Distribution,
    /// Drift of the outputs, where the source measures it itself.
    pub drift: Option<DriftScore>,
    /// Answers to mirrored requests that were compared, and how many of them differ from the stable revision's.
    pub compared: Sample,
}

impl Stats {
    pub fn failures(&self) -> Sample {
        Sample::new(self.errors.failures(), self.requests)
    }

    pub fn merge(&mut self, other: &Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.errors.add(&other.errors);
        self.latency.merge(&other.latency);
        self.outputs.merge(&other.outputs);
        self.compared.add(other.compared);
    }
}

/// Identifies an observation, so that it counts once. `epoch` changes when the collector restarts; `sequence` increases
/// within an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservationId {
    pub epoch: u64,
    pub sequence: u64,
}

impl ObservationId {
    pub(super) fn follows(self, last: Option<Self>) -> bool {
        last.is_none_or(|last| self.epoch != last.epoch || self.sequence > last.sequence)
    }
}

/// Statistics of a window in which the weights did not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    pub id: ObservationId,
    /// The generation of the weights in effect; statistics of other weights are ignored.
    pub generation: u64,
    pub stable: Stats,
    pub candidate: Stats,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    Window(Box<Window>),
    /// The provider answered without values.
    NoData {
        id: ObservationId,
    },
    ProviderFailed {
        id: ObservationId,
        message: String,
    },
}

impl Evidence {
    pub fn id(&self) -> ObservationId {
        match self {
            Self::Window(window) => window.id,
            Self::NoData { id } | Self::ProviderFailed { id, .. } => *id,
        }
    }
}

/// A revision that could not be read is unknown, which changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    NotReady,
    Unknown,
}
