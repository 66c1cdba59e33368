//! Analysis of a candidate: collects evidence and reaches verdicts.

use super::{
    comparison::{Reference, SequentialState},
    evidence::{Errors, Evidence, Stats, Window},
    policy::{Exposure, Percent, RolloutPolicy, Rules, SequentialRules},
    sequential::Sample,
    thresholds::ThresholdState,
    verdict::{Finding, Reason, Verdict, failures},
};
use crate::scheduling::Millis;
use serde::{Deserialize, Serialize};

/// Requests and failures of one revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    pub sample: Sample,
    pub errors: Errors,
}

impl Totals {
    pub(super) fn add(&mut self, stats: &Stats) {
        self.sample.add(stats.failures());
        self.errors.add(&stats.errors);
    }
}

/// Detects that the stable revision itself fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaselineHealth {
    /// Requests since the last assessment.
    pub recent: Sample,
    /// When it was last found failing, in elapsed time.
    pub failing_at: Option<Millis>,
}

impl BaselineHealth {
    fn observe(&mut self, policy: &RolloutPolicy, stable: Sample, elapsed: Millis) {
        self.recent.add(stable);
        if self.recent.total < policy.min_requests.max(1) {
            return;
        }
        let expected = policy.objectives.budget() * self.recent.total as f64;
        // Three standard deviations above the budget: noise around the objective is no outage.
        let failing = self.recent.bad as f64 > expected + 3.0 * expected.max(1.0).sqrt();
        self.failing_at = failing.then_some(elapsed);
        self.recent = Sample::default();
    }

    /// An assessment expires after two intervals without a newer one.
    fn is_failing(&self, policy: &RolloutPolicy, elapsed: Millis) -> bool {
        let lifetime = policy.interval.saturating_mul(2);
        self.failing_at.is_some_and(|at| elapsed < at.saturating_add(lifetime))
    }
}

/// What the evidence provider last answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Provider {
    #[default]
    Working,
    NoData,
    Failing {
        consecutive: u32,
        message: String,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Method {
    Sequential(Box<SequentialState>),
    Thresholds(Box<ThresholdState>),
}

/// The position of an analysis in its rollout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) exposure: Exposure,
    /// The stage's share of the evidence for promotion.
    pub(super) share: f64,
    /// Whether promotion follows, and no stage was skipped by command.
    pub(super) total: bool,
}

impl Position {
    /// All requests go to the revision, and nothing follows.
    pub(super) const BAKE: Self = Self { exposure: Exposure::Weight(Percent::ALL), share: 1.0, total: false };

    fn reference(self) -> Reference {
        match self.exposure {
            Exposure::Weight(Percent::ALL) => Reference::Objectives,
            Exposure::Mirror(_) | Exposure::Weight(_) => Reference::Concurrent,
        }
    }

    const fn mirrored(self) -> bool {
        matches!(self.exposure, Exposure::Mirror(_))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Analysis {
    pub provider: Provider,
    /// Requests in this stage.
    pub candidate: Totals,
    pub stable: Totals,
    pub baseline: BaselineHealth,
    pub method: Method,
    pub verdict: Verdict,
}

impl Analysis {
    pub(super) fn new(policy: &RolloutPolicy, elapsed: Millis) -> Self {
        Self {
            provider: Provider::Working,
            candidate: Totals::default(),
            stable: Totals::default(),
            baseline: BaselineHealth::default(),
            method: Method::new(&policy.rules, elapsed),
            verdict: Verdict::Inconclusive(Finding::new(Reason::NoTraffic, "canary received no requests")),
        }
    }

    pub(super) fn enter_stage(&mut self, elapsed: Millis) {
        (self.candidate, self.stable) = (Totals::default(), Totals::default());
        match &mut self.method {
            Method::Sequential(state) => state.enter_stage(),
            Method::Thresholds(state) => state.enter_stage(elapsed),
        }
        self.verdict = Verdict::Inconclusive(Finding::new(Reason::NoTraffic, "canary received no requests"));
    }

    /// Whether an outage of the stable revision stops the progress deadline.
    pub(super) fn baseline_failing(&self, policy: &RolloutPolicy, elapsed: Millis) -> bool {
        self.baseline.is_failing(policy, elapsed)
    }

    /// Counts new evidence if it belongs to these weights, then updates the verdict.
    pub(super) fn observe(
        &mut self,
        policy: &RolloutPolicy,
        position: Position,
        generation: u64,
        evidence: Option<&Evidence>,
        elapsed: Millis,
    ) {
        if !self.method.matches(&policy.rules) {
            // The policy was edited: the evidence of the other method does not count.
            self.method = Method::new(&policy.rules, elapsed);
            self.verdict = Verdict::Inconclusive(Finding::new(Reason::NoTraffic, "the policy changed"));
        }
        if let Some(new) = evidence {
            self.provider = match (new, &self.provider) {
                (Evidence::ProviderFailed { message, .. }, Provider::Failing { consecutive, .. }) => {
                    Provider::Failing { consecutive: consecutive.saturating_add(1), message: message.clone() }
                }
                (Evidence::ProviderFailed { message, .. }, _) => {
                    Provider::Failing { consecutive: 1, message: message.clone() }
                }
                (Evidence::NoData { .. }, _) => Provider::NoData,
                (Evidence::Window(_), _) => Provider::Working,
            };
            if let Evidence::Window(window) = new
                && window.generation == generation
            {
                self.count(policy, position, window, elapsed);
            }
        }
        self.assess(policy, position, elapsed);
    }

    fn count(&mut self, policy: &RolloutPolicy, position: Position, window: &Window, elapsed: Millis) {
        // Known before this window, so that leaving out its evidence of fitness is no selection by its result.
        let outage = self.baseline.is_failing(policy, elapsed);
        self.candidate.add(&window.candidate);
        self.stable.add(&window.stable);
        self.baseline.observe(policy, window.stable.failures(), elapsed);
        match (&mut self.method, &policy.rules) {
            (Method::Sequential(state), Rules::Sequential(rules)) => {
                let (reference, mirrored) = (position.reference(), position.mirrored());
                state.observe(policy, rules, window, reference, mirrored, outage);
            }
            (Method::Thresholds(state), _) => state.observe(window),
            (Method::Sequential(_), Rules::Thresholds(_)) => {}
        }
    }

    fn assess(&mut self, policy: &RolloutPolicy, position: Position, elapsed: Millis) {
        match &self.provider {
            Provider::Failing { consecutive, message } if *consecutive > policy.error_limit => {
                let text = format!("{consecutive} consecutive queries failed: {message}");
                self.verdict = Verdict::Error(Finding::new(Reason::ProviderFailed, text));
                return;
            }
            Provider::NoData => {
                self.verdict =
                    Verdict::Inconclusive(Finding::new(Reason::NoData, "the provider has no values"));
                return;
            }
            Provider::Failing { .. } | Provider::Working => {}
        }
        if let Verdict::Error(_) | Verdict::Inconclusive(Finding { reason: Reason::NoData, .. }) =
            self.verdict
        {
            // The provider answers again.
            self.verdict =
                Verdict::Inconclusive(Finding::new(Reason::NotSignificant, "not enough evidence yet"));
        }
        match (&mut self.method, &policy.rules) {
            (Method::Thresholds(state), Rules::Thresholds(rules)) => {
                if let Some(verdict) = state.check(policy, rules, elapsed) {
                    self.verdict = verdict;
                }
            }
            (Method::Sequential(_), Rules::Sequential(rules)) => {
                if let Some(verdict) = self.compare(policy, rules, position, elapsed) {
                    self.verdict = verdict;
                }
            }
            _ => {}
        }
    }

    /// The verdict of the sequential tests; `None` while there is nothing to judge.
    fn compare(
        &self,
        policy: &RolloutPolicy,
        rules: &SequentialRules,
        position: Position,
        elapsed: Millis,
    ) -> Option<Verdict> {
        let Method::Sequential(state) = &self.method else { return None };
        let requests = self.candidate.sample.total;
        if requests == 0 {
            return None;
        }
        let (reference, mirrored) = (position.reference(), position.mirrored());
        if let Some(reason) = state.harmful(rules, reference, mirrored) {
            return Some(Verdict::Fail(Finding::new(reason, self.harm(reason))));
        }
        let inconclusive = |reason, text: String| Some(Verdict::Inconclusive(Finding::new(reason, text)));
        if self.baseline.is_failing(policy, elapsed) {
            let text = failures("stable", &self.stable.errors, self.stable.sample.total);
            return inconclusive(Reason::BaselineFailing, text);
        }
        if requests < policy.min_requests.max(1) {
            let text = format!("canary received {requests} requests, fewer than {}", policy.min_requests);
            return inconclusive(Reason::TooFewRequests, text);
        }
        let fitness = state.fitness(rules, reference, mirrored, position.share, position.total);
        if fitness >= 1.0 {
            return Some(Verdict::Pass);
        }
        let text = format!(
            "{} of {requests} answers good; {:.0} % of the evidence for the next step",
            requests - self.candidate.sample.bad,
            fitness.clamp(0.0, 0.99) * 100.0
        );
        inconclusive(Reason::NotSignificant, text)
    }

    fn harm(&self, reason: Reason) -> String {
        let (canary, stable) = (&self.candidate, &self.stable);
        match reason {
            Reason::HigherLatency => "canary is slower than stable".into(),
            Reason::OutputsDiffer => "canary answers differ from those of stable".into(),
            _ if stable.sample.total == 0 => failures("canary", &canary.errors, canary.sample.total),
            _ => format!(
                "{}, {}",
                failures("canary", &canary.errors, canary.sample.total),
                failures("stable", &stable.errors, stable.sample.total)
            ),
        }
    }

    /// The verdict in words.
    pub fn summary(&self) -> &str {
        match &self.verdict {
            Verdict::Pass => "all checks pass",
            Verdict::Fail(finding) | Verdict::Inconclusive(finding) | Verdict::Error(finding) => {
                &finding.message
            }
        }
    }

    /// The finding for which the candidate has to be rolled back.
    pub(super) fn failed(&self, policy: &RolloutPolicy) -> Option<&Finding> {
        let breach = matches!(&self.verdict, Verdict::Fail(finding) if finding.reason == Reason::HardBreach);
        match (&self.verdict, &self.method, &policy.rules) {
            (_, Method::Thresholds(state), Rules::Thresholds(rules)) if !breach => {
                state.finding.as_ref().filter(|_| state.failed >= rules.failure_threshold.max(1))
            }
            (Verdict::Fail(finding), _, _) => Some(finding),
            _ => None,
        }
    }

    /// Whether the stage has passed.
    pub(super) fn passed(&self, policy: &RolloutPolicy) -> bool {
        match (&self.verdict, &self.method, &policy.rules) {
            (Verdict::Pass, Method::Thresholds(state), Rules::Thresholds(rules)) => {
                state.passed >= rules.checks.max(1)
            }
            (Verdict::Pass, Method::Sequential(_), _) => true,
            _ => false,
        }
    }

    /// When the next check is due, in elapsed time.
    pub(super) fn due(&self, policy: &RolloutPolicy) -> Option<Millis> {
        match &self.method {
            Method::Thresholds(state) => Some(state.since.saturating_add(policy.interval)),
            Method::Sequential(_) => None,
        }
    }
}

impl Method {
    fn new(rules: &Rules, elapsed: Millis) -> Self {
        match rules {
            Rules::Sequential(_) => Self::Sequential(Box::default()),
            Rules::Thresholds(_) => {
                Self::Thresholds(Box::new(ThresholdState { since: elapsed, ..ThresholdState::default() }))
            }
        }
    }

    const fn matches(&self, rules: &Rules) -> bool {
        matches!(
            (self, rules),
            (Self::Sequential(_), Rules::Sequential(_)) | (Self::Thresholds(_), Rules::Thresholds(_))
        )
    }
}
