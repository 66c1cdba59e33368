//! Argo Rollouts' assessment of analyses: the rules for policies that are converted from an `AnalysisTemplate`.

/// Of a measurement, a metric or a run; from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnalysisPhase {
    Successful,
    Running,
    Pending,
    Inconclusive,
    Error,
    Failed,
}

/// The result of a measurement. A condition is `None` when the metric has none; an evaluation error is
/// [`AnalysisPhase::Error`] and does not come here.
pub const fn measurement(success: Option<bool>, failure: Option<bool>) -> AnalysisPhase {
    match (success, failure) {
        (_, Some(true)) | (Some(false), None) => AnalysisPhase::Failed,
        (Some(false), Some(false)) => AnalysisPhase::Inconclusive,
        (None | Some(true), None | Some(false)) => AnalysisPhase::Successful,
    }
}

/// Limits of a metric; `None` is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricLimits {
    /// A negative limit never applies. Default 0.
    pub failure: Option<i32>,
    /// Default 0.
    pub inconclusive: Option<u32>,
    /// Default 4.
    pub consecutive_error: Option<u32>,
    /// 0 never applies.
    pub consecutive_success: Option<u32>,
    /// Measurements after which the metric is complete; unlimited without.
    pub count: Option<u32>,
}

/// Measurements so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricResult {
    /// Completed measurements without errors.
    pub count: u32,
    pub failed: u32,
    pub inconclusive: u32,
    pub consecutive_error: u32,
    pub consecutive_success: u32,
    /// Whether a measurement is in flight.
    pub in_flight: bool,
    /// Whether there is any measurement.
    pub started: bool,
}

impl MetricLimits {
    /// The phase of a metric that was not complete before.
    pub fn assess(&self, result: &MetricResult, terminating: bool) -> AnalysisPhase {
        let stopped = if terminating { AnalysisPhase::Successful } else { AnalysisPhase::Running };
        if !result.started {
            return if terminating { AnalysisPhase::Successful } else { AnalysisPhase::Pending };
        }
        if result.in_flight {
            return AnalysisPhase::Running;
        }
        if let Some(phase) = self.exceeded(result) {
            return phase;
        }
        let successes = self.consecutive_success.filter(|limit| *limit > 0);
        if successes.is_some_and(|limit| result.consecutive_success >= limit) {
            return AnalysisPhase::Successful;
        }
        if self.count.is_none_or(|count| result.count < count) {
            return stopped;
        }
        match (successes, self.failure.is_none_or(|limit| limit >= 0)) {
            (None, _) => AnalysisPhase::Successful,
            (Some(_), true) => AnalysisPhase::Inconclusive,
            (Some(_), false) => AnalysisPhase::Failed,
        }
    }

    /// The limit that is exceeded; errors outrank inconclusive measurements, which outrank failures.
    pub fn exceeded(&self, result: &MetricResult) -> Option<AnalysisPhase> {
        let failures = self.failure.unwrap_or(0);
        if result.consecutive_error > self.consecutive_error.unwrap_or(4) {
            Some(AnalysisPhase::Error)
        } else if result.inconclusive > self.inconclusive.unwrap_or(0) {
            Some(AnalysisPhase::Inconclusive)
        } else if u32::try_from(failures).is_ok_and(|limit| result.failed > limit) {
            Some(AnalysisPhase::Failed)
        } else {
            None
        }
    }
}

/// The phase of a run: the worst of its metrics once all are complete, or as soon as one is worse than successful.
pub fn run(metrics: impl IntoIterator<Item = AnalysisPhase>) -> AnalysisPhase {
    let phases: Vec<AnalysisPhase> = metrics.into_iter().collect();
    let complete = |phase: &&AnalysisPhase| !matches!(phase, AnalysisPhase::Running | AnalysisPhase::Pending);
    let worst = phases.iter().filter(complete).max().copied().unwrap_or(AnalysisPhase::Successful);
    if worst > AnalysisPhase::Successful || phases.iter().all(|phase| complete(&phase)) {
        return worst;
    }
    AnalysisPhase::Running
}

#[cfg(test)]
mod tests {
    use super::{AnalysisPhase::*, *};

    #[test]
    fn conditions_of_a_measurement() {
        for (success, failure, expected) in [
            (None, None, Successful),
            (Some(true), None, Successful),
            (Some(false), None, Failed),
            (None, Some(true), Failed),
            (None, Some(false), Successful),
            (Some(true), Some(true), Failed),
            (Some(true), Some(false), Successful),
            (Some(false), Some(true), Failed),
            (Some(false), Some(false), Inconclusive),
        ] {
            assert_eq!(measurement(success, failure), expected, "{success:?} {failure:?}");
        }
    }

    fn done(count: u32, failed: u32) -> MetricResult {
        MetricResult { count, failed, started: true, ..MetricResult::default() }
    }

    /// Facts of `analysis/analysis_test.go`: the phase while running, and when terminating.
    #[test]
    fn metric_assessment_table() {
        let none = MetricLimits::default();
        let failure = |limit| MetricLimits { failure: Some(limit), ..none };
        let success =
            |limit, failure, count| MetricLimits { consecutive_success: Some(limit), failure, count, ..none };
        let seven = |consecutive_success| MetricResult { consecutive_success, ..done(7, 3) };
        let mixed =
            |count, failed, consecutive_success| MetricResult { consecutive_success, ..done(count, failed) };
        let errors = |consecutive_error| MetricResult { consecutive_error, ..done(5, 0) };
        let inconclusive = |inconclusive| MetricResult { inconclusive, ..done(3, 0) };
        for (number, (limits, result, running, terminating)) in [
            // No measurement, or one in flight.
            (none, MetricResult::default(), Pending, Successful),
            (none, MetricResult { in_flight: true, ..done(0, 0) }, Running, Running),
            // Failure limit.
            (failure(2), done(3, 3), Failed, Failed),
            (failure(3), done(3, 3), Running, Successful),
            (none, done(1, 1), Failed, Failed),
            // Inconclusive limit.
            (MetricLimits { inconclusive: Some(2), ..none }, inconclusive(3), Inconclusive, Inconclusive),
            (MetricLimits { inconclusive: Some(3), ..none }, inconclusive(3), Running, Successful),
            // Consecutive errors.
            (none, errors(5), Error, Error),
            (none, errors(4), Running, Successful),
            // Count reached.
            (MetricLimits { count: Some(10), ..none }, done(10, 0), Successful, Successful),
            (
                MetricLimits { count: Some(10), ..none },
                MetricResult { inconclusive: 5, ..done(10, 0) },
                Inconclusive,
                Inconclusive,
            ),
            // Consecutive successes without a failure limit.
            (success(3, Some(-1), None), seven(3), Successful, Successful),
            (success(5, Some(-1), None), seven(3), Running, Successful),
            (success(5, Some(-1), Some(7)), seven(3), Failed, Failed),
            (success(3, Some(-1), Some(7)), seven(3), Successful, Successful),
            (success(3, Some(-1), Some(9)), seven(3), Successful, Successful),
            (success(5, Some(-1), Some(9)), seven(3), Running, Successful),
            // Both limits, unlimited count.
            (success(4, Some(4), None), mixed(7, 3, 3), Running, Successful),
            (success(4, Some(4), None), mixed(9, 5, 0), Failed, Failed),
            (success(4, Some(4), None), mixed(8, 3, 4), Successful, Successful),
            (success(4, Some(4), None), mixed(10, 5, 4), Failed, Failed),
            // Both limits, count of 10.
            (success(4, Some(4), Some(10)), mixed(10, 4, 3), Inconclusive, Inconclusive),
            (success(4, Some(4), Some(10)), mixed(10, 5, 3), Failed, Failed),
            (success(4, Some(4), Some(10)), mixed(10, 4, 4), Successful, Successful),
            (success(4, Some(4), Some(10)), mixed(10, 5, 4), Failed, Failed),
            (success(4, Some(4), Some(10)), mixed(8, 3, 3), Running, Successful),
            (success(4, Some(4), Some(10)), mixed(8, 5, 3), Failed, Failed),
            (success(4, Some(4), Some(10)), mixed(8, 3, 4), Successful, Successful),
            (success(4, Some(4), Some(10)), mixed(9, 5, 4), Failed, Failed),
            // Errors outrank the others.
            (none, MetricResult { inconclusive: 1, ..done(2, 1) }, Inconclusive, Inconclusive),
            (none, MetricResult { inconclusive: 1, consecutive_error: 5, ..done(2, 1) }, Error, Error),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(limits.assess(&result, false), running, "row {number} running");
            assert_eq!(limits.assess(&result, true), terminating, "row {number} terminating");
        }
    }

    #[test]
    fn run_is_as_good_as_its_worst_metric() {
        for (metrics, expected) in [
            (vec![], Successful),
            (vec![Successful, Successful], Successful),
            (vec![Successful, Running], Running),
            (vec![Successful, Pending], Running),
            (vec![Running, Failed], Failed),
            (vec![Inconclusive, Error], Error),
            (vec![Inconclusive, Error, Failed, Successful], Failed),
        ] {
            assert_eq!(run(metrics.clone()), expected, "{metrics:?}");
        }
    }
}
