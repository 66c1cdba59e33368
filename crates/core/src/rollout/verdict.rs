//! Verdicts of an analysis, with a reason for programs and a message for people.

use super::evidence::Errors;
use super::sequential::Sample;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Displayed as its own name, which is part of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reason {
    /// The candidate fails more requests than the stable revision, or than the objective allows.
    HigherFailureRatio,
    /// The candidate is slower than the stable revision, or than the objective allows.
    HigherLatency,
    /// Answers to mirrored requests differ too often.
    OutputsDiffer,
    /// The failure ratio is above a multiple of the error budget.
    HardBreach,
    /// The candidate receives no requests.
    NoTraffic,
    /// The provider has no values.
    NoData,
    TooFewRequests,
    /// The requests so far show neither harm nor fitness.
    NotSignificant,
    /// The stable revision fails, too: probably an outage of something that both need.
    BaselineFailing,
    /// The evidence provider failed.
    ProviderFailed,
    /// The outputs of the stable revision drifted from those recorded during the bake.
    Drifted,
    /// The stable revision misses its objectives after promotion.
    ObjectivesMissed,
    ProgressDeadlineExceeded,
    /// By command.
    Aborted,
    /// By command, after promotion.
    Undone,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub reason: Reason,
    pub message: String,
}

impl Finding {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    Pass,
    Fail(Finding),
    /// Neither; the weights are held.
    Inconclusive(Finding),
    /// The evidence could not be obtained; the weights are held.
    Error(Finding),
}

/// "canary answered 5xx to 17 of 19".
pub(super) fn failures(role: &str, errors: &Errors, requests: u64) -> String {
    let failures = errors.failures().min(requests);
    match errors {
        Errors { timeout: 0, connection: 0, .. } => {
            format!("{role} answered 5xx to {failures} of {requests}")
        }
        Errors { server: 0, connection: 0, .. } => format!("{role} timed out on {failures} of {requests}"),
        Errors { server: 0, timeout: 0, .. } => {
            format!("{role} was unreachable for {failures} of {requests}")
        }
        _ => format!("{role} failed {failures} of {requests}"),
    }
}

/// "99.50 %" of requests that are not bad.
pub(super) fn good_percent(sample: Sample) -> String {
    format!("{:.2} %", (1.0 - sample.ratio()) * 100.0)
}
