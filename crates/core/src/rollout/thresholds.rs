//! Analysis by fixed thresholds: one check per interval, with the rules of the reference.

use super::{
    analysis::Totals,
    evidence::{Stats, Window},
    histogram::LatencyHistogram,
    policy::{Objectives, RolloutPolicy, ThresholdRules},
    sequential::Sample,
    verdict::{Finding, Reason, Verdict, failures, good_percent},
};
use crate::scheduling::Millis;
use serde::{Deserialize, Serialize};

/// Statistics of one revision in the current interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub totals: Totals,
    pub latency: LatencyHistogram,
}

impl Tally {
    pub(super) fn add(&mut self, stats: &Stats) {
        self.totals.add(stats);
        self.latency.merge(&stats.latency);
    }

    /// Whether the objectives are missed. Equality passes.
    pub(super) fn missed(&self, role: &str, objectives: &Objectives) -> Option<Finding> {
        let Totals { sample, errors } = &self.totals;
        if sample.total == 0 {
            return None;
        }
        if within(*sample, objectives.budget()) {
            let objective = objectives.latency?;
            let latency = self.latency.quantile_ms(objective.quantile.get())?;
            return (latency > objective.limit_ms()).then(|| {
                let quantile = objective.quantile.get() * 100.0;
                let text = format!(
                    "{role} p{quantile:.0} is {latency:.0} ms, more than {:.0} ms",
                    objective.limit_ms()
                );
                Finding::new(Reason::HigherLatency, text)
            });
        }
        let text = format!(
            "{} ({}, needs {:.2} %)",
            failures(role, errors, sample.total),
            good_percent(*sample),
            objectives.success.get() * 100.0
        );
        Some(Finding::new(Reason::HigherFailureRatio, text))
    }
}

/// Whether a failure ratio is within a budget, up to rounding.
fn within(sample: Sample, budget: f64) -> bool {
    sample.bad as f64 <= budget * sample.total as f64 + 1e-9
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThresholdState {
    /// Start of the interval, in elapsed time.
    pub since: Millis,
    pub candidate: Tally,
    pub stable: Tally,
    pub passed: u32,
    pub failed: u32,
    /// Why the last check failed.
    pub finding: Option<Finding>,
}

impl ThresholdState {
    pub(super) fn enter_stage(&mut self, elapsed: Millis) {
        *self = Self { since: elapsed, ..Self::default() };
    }

    pub(super) fn observe(&mut self, window: &Window) {
        self.candidate.add(&window.candidate);
        self.stable.add(&window.stable);
    }

    /// Completes the check if its interval has passed.
    pub(super) fn check(
        &mut self,
        policy: &RolloutPolicy,
        rules: &ThresholdRules,
        elapsed: Millis,
    ) -> Option<Verdict> {
        if let Some(breach) = self.hard_breach(policy, rules) {
            return Some(Verdict::Fail(breach));
        }
        if elapsed < self.since.saturating_add(policy.interval) {
            return None;
        }
        let verdict = judge(policy, &self.candidate, &self.stable);
        match &verdict {
            Verdict::Pass => {
                self.passed = self.passed.saturating_add(1);
                self.failed = 0;
            }
            Verdict::Fail(finding) => {
                self.failed = self.failed.saturating_add(1);
                self.finding = Some(finding.clone());
            }
            Verdict::Inconclusive(_) | Verdict::Error(_) => {}
        }
        (self.since, self.candidate, self.stable) = (elapsed, Tally::default(), Tally::default());
        Some(verdict)
    }

    fn hard_breach(&self, policy: &RolloutPolicy, rules: &ThresholdRules) -> Option<Finding> {
        let Totals { sample, errors } = &self.candidate.totals;
        let limit = policy.objectives.budget() * rules.hard_breach;
        let breached = sample.total >= policy.min_requests.max(1) && !within(*sample, limit);
        let stable_fine = self.stable.missed("stable", &policy.objectives).is_none();
        (breached && stable_fine).then(|| {
            let text = format!(
                "{} ({}, more than {:.1} times the error budget)",
                failures("canary", errors, sample.total),
                good_percent(*sample),
                rules.hard_breach
            );
            Finding::new(Reason::HardBreach, text)
        })
    }
}

/// The verdict of one check.
fn judge(policy: &RolloutPolicy, candidate: &Tally, stable: &Tally) -> Verdict {
    let requests = candidate.totals.sample.total;
    let inconclusive = |reason, message: String| Verdict::Inconclusive(Finding { reason, message });
    if requests == 0 {
        return inconclusive(Reason::NoTraffic, "canary received no requests".into());
    }
    if requests < policy.min_requests {
        let text = format!("canary received {requests} requests, fewer than {}", policy.min_requests);
        return inconclusive(Reason::TooFewRequests, text);
    }
    if let Some(finding) = stable.missed("stable", &policy.objectives) {
        return inconclusive(Reason::BaselineFailing, finding.message);
    }
    match candidate.missed("canary", &policy.objectives) {
        Some(finding) => Verdict::Fail(finding),
        None => Verdict::Pass,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::{
        evidence::Errors,
        policy::{CanarySteps, LatencyObjective, Ratio, Strategy},
    };

    fn tally(requests: u64, bad: u64, latency: f64) -> Tally {
        let errors = Errors { server: bad, ..Errors::default() };
        let mut tally = Tally::default();
        tally.add(&Stats { requests, errors, ..Stats::default() });
        (0..requests).for_each(|_| tally.latency.record(latency));
        tally
    }

    #[test]
    fn verdict_table() {
        let mut policy = RolloutPolicy::new(Strategy::Canary(CanarySteps::weights(&[20]).unwrap()));
        policy.objectives.latency =
            Some(LatencyObjective { target: 50, quantile: Ratio::new(0.99).unwrap(), tolerance: 1.0 });
        let name = |verdict: Verdict| match verdict {
            Verdict::Pass => "pass".to_owned(),
            Verdict::Fail(finding) => format!("fail {}", finding.reason),
            Verdict::Inconclusive(finding) => format!("inconclusive {}", finding.reason),
            Verdict::Error(finding) => format!("error {}", finding.reason),
        };
        for ((requests, bad, latency), stable, expected) in [
            ((0, 0, 10.0), (400, 0, 10.0), "inconclusive NoTraffic"),
            ((49, 0, 10.0), (400, 0, 10.0), "inconclusive TooFewRequests"),
            ((50, 0, 10.0), (400, 0, 10.0), "pass"),
            // Equality passes.
            ((100, 1, 10.0), (400, 4, 10.0), "pass"),
            ((100, 2, 10.0), (400, 4, 10.0), "fail HigherFailureRatio"),
            ((100, 0, 90.0), (400, 0, 10.0), "fail HigherLatency"),
            // An outage of both holds.
            ((100, 50, 10.0), (400, 200, 10.0), "inconclusive BaselineFailing"),
            ((100, 0, 90.0), (400, 0, 90.0), "inconclusive BaselineFailing"),
            // Without traffic of the stable revision the objectives decide alone.
            ((100, 2, 10.0), (0, 0, 10.0), "fail HigherFailureRatio"),
            ((100, 0, 10.0), (0, 0, 10.0), "pass"),
        ] {
            let candidate = tally(requests, bad, latency);
            let stable = tally(stable.0, stable.1, stable.2);
            assert_eq!(name(judge(&policy, &candidate, &stable)), expected, "{:?}", candidate.totals);
        }
        let Verdict::Fail(finding) = judge(&policy, &tally(100, 17, 10.0), &tally(400, 0, 10.0)) else {
            panic!("17 failures pass")
        };
        assert_eq!(finding.message, "canary answered 5xx to 17 of 100 (83.00 %, needs 99.00 %)");
    }
}
