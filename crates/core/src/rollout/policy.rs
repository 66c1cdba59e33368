//! How revisions are rolled out: steps, analysis, bake and drift.

use crate::scheduling::Millis;
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// The most steps of a policy.
pub const MAX_STEPS: usize = 20;

/// A percentage of requests, 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "u32")]
pub struct Percent(u8);

impl From<Percent> for u32 {
    fn from(percent: Percent) -> Self {
        percent.get()
    }
}

impl TryFrom<u32> for Percent {
    type Error = InvalidPolicy;

    fn try_from(percent: u32) -> Result<Self, InvalidPolicy> {
        Self::new(percent).ok_or(InvalidPolicy::Weight { percent })
    }
}

impl Percent {
    pub const ALL: Self = Self(100);

    pub const fn new(percent: u32) -> Option<Self> {
        if percent >= 1 && percent <= 100 { Some(Self(percent as u8)) } else { None }
    }

    pub const fn get(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.0)
    }
}

/// A share or probability, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Ratio(f64);

impl Ratio {
    pub const fn new(ratio: f64) -> Option<Self> {
        if ratio >= 0.0 && ratio <= 1.0 { Some(Self(ratio)) } else { None }
    }

    pub const fn get(self) -> f64 {
        self.0
    }

    /// For constants within the bounds.
    pub(super) const fn constant(ratio: f64) -> Self {
        Self(ratio)
    }
}

/// A share of the traffic, and the conditions for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub weight: Percent,
    /// The shortest time at this weight.
    pub hold: Millis,
    /// Whether a `promote` command is needed to continue.
    pub approval: bool,
}

/// Steps of increasing weight; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanarySteps(Vec<Step>);

impl CanarySteps {
    pub fn new(steps: Vec<Step>) -> Result<Self, InvalidPolicy> {
        match steps.len() {
            0 => Err(InvalidPolicy::NoSteps),
            count if count > MAX_STEPS => Err(InvalidPolicy::TooManySteps { count }),
            _ => match steps.windows(2).find_map(|pair| match pair {
                [before, after] if before.weight >= after.weight => Some((before.weight, after.weight)),
                _ => None,
            }) {
                Some((before, after)) => Err(InvalidPolicy::NotIncreasing { before, after }),
                None => Ok(Self(steps)),
            },
        }
    }

    /// Steps of these weights, without hold or approval.
    pub fn weights(weights: &[u32]) -> Result<Self, InvalidPolicy> {
        let step = |&percent: &u32| match Percent::new(percent) {
            Some(weight) => Ok(Step { weight, hold: 0, approval: false }),
            None => Err(InvalidPolicy::Weight { percent }),
        };
        Self::new(weights.iter().map(step).collect::<Result<_, _>>()?)
    }

    pub fn as_slice(&self) -> &[Step] {
        &self.0
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Increasing shares of the traffic.
    Canary(CanarySteps),
    /// All traffic at once; the stable revision is kept until the analysis passes.
    BlueGreen { hold: Millis, approval: bool },
    /// Copies of requests first, whose answers do not reach clients; then the steps.
    MirrorFirst { percent: Percent, hold: Millis, then: CanarySteps },
}

/// How a stage sends requests to the candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exposure {
    /// Copies of this share of the requests.
    Mirror(Percent),
    /// This share of the requests.
    Weight(Percent),
}

impl Exposure {
    pub const fn percent(self) -> Percent {
        match self {
            Self::Mirror(percent) | Self::Weight(percent) => percent,
        }
    }
}

/// One stage of a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    pub exposure: Exposure,
    pub hold: Millis,
    pub approval: bool,
}

impl Strategy {
    /// The stages in order.
    pub fn stages(&self) -> impl Iterator<Item = Stage> {
        let of_step = |step: &Step| Stage {
            exposure: Exposure::Weight(step.weight),
            hold: step.hold,
            approval: step.approval,
        };
        let (first, steps): (_, &[Step]) = match self {
            Self::Canary(steps) => (None, steps.as_slice()),
            Self::BlueGreen { hold, approval } => {
                let exposure = Exposure::Weight(Percent::ALL);
                (Some(Stage { exposure, hold: *hold, approval: *approval }), &[])
            }
            Self::MirrorFirst { percent, hold, then } => {
                let exposure = Exposure::Mirror(*percent);
                (Some(Stage { exposure, hold: *hold, approval: false }), then.as_slice())
            }
        };
        first.into_iter().chain(steps.iter().map(of_step))
    }

    pub fn stage(&self, index: usize) -> Option<Stage> {
        self.stages().nth(index)
    }

    /// Share of the evidence for promotion that a stage has to contribute: in proportion to its exposure, so that low
    /// weights are short.
    pub fn evidence_share(&self, index: usize) -> f64 {
        let percent = |stage: Stage| f64::from(stage.exposure.percent().get());
        let total: f64 = self.stages().map(percent).sum();
        self.stage(index).map_or(1.0, percent) / total.max(1.0)
    }
}

/// Bounds of a comparison, as differences of ratios.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margins {
    /// Up to this difference the candidate counts as equal; evidence of a larger one rolls back.
    pub tolerated: Ratio,
    /// Promotion needs evidence of a smaller difference than this one.
    pub rejected: Ratio,
}

/// Compares the share of requests slower than a quantile of the stable revision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyComparison {
    pub quantile: Ratio,
    pub margins: Margins,
}

/// Sequential tests against the stable revision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SequentialRules {
    /// Bound on the probability that a revision within the tolerated difference is rolled back.
    pub false_rollback: Ratio,
    /// Bound on the probability that a revision beyond the rejected difference is promoted.
    pub false_promotion: Ratio,
    pub success: Margins,
    pub latency: Option<LatencyComparison>,
    /// The accepted share of different answers to mirrored requests.
    pub outputs: Option<Margins>,
}

impl Default for SequentialRules {
    fn default() -> Self {
        Self {
            false_rollback: Ratio::constant(0.001),
            false_promotion: Ratio::constant(0.001),
            success: Margins { tolerated: Ratio::constant(0.005), rejected: Ratio::constant(0.02) },
            latency: Some(LatencyComparison {
                quantile: Ratio::constant(0.95),
                margins: Margins { tolerated: Ratio::constant(0.025), rejected: Ratio::constant(0.05) },
            }),
            outputs: None,
        }
    }
}

/// Fixed thresholds per interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThresholdRules {
    /// Passed checks per stage.
    pub checks: u32,
    /// Consecutive failed checks that roll back.
    pub failure_threshold: u32,
    /// A failure ratio above this multiple of the error budget rolls back without further checks.
    pub hard_breach: f64,
}

impl Default for ThresholdRules {
    fn default() -> Self {
        Self { checks: 5, failure_threshold: 3, hard_breach: 5.0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rules {
    Sequential(SequentialRules),
    Thresholds(ThresholdRules),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyObjective {
    pub target: Millis,
    pub quantile: Ratio,
    /// Factor on the target, at least 1.
    pub tolerance: f64,
}

impl LatencyObjective {
    pub fn limit_ms(&self) -> f64 {
        self.target as f64 * self.tolerance.max(0.0)
    }
}

/// What a revision has to achieve on its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objectives {
    pub success: Ratio,
    pub latency: Option<LatencyObjective>,
}

impl Objectives {
    /// The accepted failure ratio.
    pub fn budget(&self) -> f64 {
        1.0 - self.success.get()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriftMeasure {
    PopulationStabilityIndex,
    KolmogorovSmirnov,
}

/// A tensor whose values are observed, named as in requests or responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedTensor {
    pub name: Arc<str>,
    /// Of the requests, not of the responses.
    pub is_input: bool,
}

impl fmt::Display for ObservedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", if self.is_input { "input" } else { "output" }, self.name)
    }
}

/// Watches the stable revision after the bake.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriftRules {
    pub measure: DriftMeasure,
    pub threshold: f64,
    /// Consecutive intervals above the threshold.
    pub windows: u32,
    /// Outputs per interval below which it is not compared.
    pub min_outputs: u64,
    /// Whether an interval that misses the objectives counts, too.
    pub objectives: bool,
    /// Return to the previous revision, or only report.
    pub rollback: bool,
}

impl Default for DriftRules {
    fn default() -> Self {
        Self {
            measure: DriftMeasure::PopulationStabilityIndex,
            threshold: 0.25,
            windows: 3,
            min_outputs: 500,
            objectives: true,
            rollback: true,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct RolloutPolicy {
    pub strategy: Strategy,
    pub rules: Rules,
    pub objectives: Objectives,
    /// Length of a threshold check and of a drift window.
    pub interval: Millis,
    /// Candidate requests per stage, or per threshold check, below which there is no verdict.
    pub min_requests: u64,
    /// Consecutive failures of the evidence provider that are reported as an error.
    pub error_limit: u32,
    /// Longest time without progress, beyond the hold of a stage.
    pub progress_deadline: Millis,
    /// How long the previous revision is kept after a promotion.
    pub bake: Millis,
    pub drift: Option<DriftRules>,
    /// Relative difference in millionths up to which the numbers of two answers to a mirrored request are equal. `None`
    /// compares no answers.
    pub answer_tolerance: Option<u32>,
    /// The values that drift compares; none without it.
    pub observed: Option<ObservedTensor>,
    /// Time after a rollback in which drift does not cause another one.
    pub cool_down: Millis,
    /// Limit on one step of the logical clock, so that a jump of the wall clock expires nothing.
    pub max_clock_step: Millis,
}

impl RolloutPolicy {
    /// A policy with defaults for everything else.
    pub fn new(strategy: Strategy) -> Self {
        Self {
            strategy,
            rules: Rules::Sequential(SequentialRules::default()),
            objectives: Objectives { success: Ratio::constant(0.99), latency: None },
            interval: 30_000,
            min_requests: 50,
            error_limit: 4,
            progress_deadline: 600_000,
            bake: 600_000,
            drift: None,
            answer_tolerance: None,
            observed: None,
            cool_down: 600_000,
            max_clock_step: 60_000,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidPolicy {
    NoSteps,
    TooManySteps { count: usize },
    Weight { percent: u32 },
    NotIncreasing { before: Percent, after: Percent },
}

impl fmt::Display for InvalidPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSteps => write!(f, "the policy has no steps: add at least one weight"),
            Self::TooManySteps { count } => {
                write!(f, "the policy has {count} steps: at most {MAX_STEPS} are possible")
            }
            Self::Weight { percent } => write!(f, "a weight of {percent} is not between 1 and 100"),
            Self::NotIncreasing { before, after } => {
                write!(f, "weights must increase, but {after} follows {before}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_increasing_weights_are_steps() {
        let percent = |p| Percent::new(p).unwrap();
        for (weights, expected) in [
            (vec![20], Ok(())),
            (vec![1, 50, 100], Ok(())),
            (vec![], Err(InvalidPolicy::NoSteps)),
            (vec![0, 20], Err(InvalidPolicy::Weight { percent: 0 })),
            (vec![101], Err(InvalidPolicy::Weight { percent: 101 })),
            (vec![20, 20], Err(InvalidPolicy::NotIncreasing { before: percent(20), after: percent(20) })),
            ((1..=21).collect(), Err(InvalidPolicy::TooManySteps { count: 21 })),
        ] {
            assert_eq!(CanarySteps::weights(&weights).map(|_| ()), expected, "{weights:?}");
        }
        assert_eq!(Ratio::new(f64::NAN), None);
        assert_eq!(Ratio::new(1.01), None);
    }

    #[test]
    fn evidence_shares_sum_to_one() {
        let then = CanarySteps::weights(&[5, 20, 50]).unwrap();
        for strategy in [
            Strategy::Canary(then.clone()),
            Strategy::BlueGreen { hold: 0, approval: false },
            Strategy::MirrorFirst { percent: percent_of(10), hold: 0, then },
        ] {
            let sum: f64 = (0..strategy.stages().count()).map(|i| strategy.evidence_share(i)).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{strategy:?}");
        }
    }

    fn percent_of(percent: u32) -> Percent {
        Percent::new(percent).unwrap()
    }
}
