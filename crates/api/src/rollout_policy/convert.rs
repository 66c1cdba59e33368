//! A spec as a policy of the rollout engine.

use super::{
    AnalysisSpec, CompareSpec, DriftMeasureSpec, DriftSpec, GANTRY_V1ALPHA1, RolloutPolicySpec,
    SequentialSpec, StepSpec, StrategySpec,
};
use crate::{FieldError, SpecDuration, parse::decode_envelope, yaml};
use gantry_core::rollout::{
    CanarySteps, DriftMeasure, DriftRules, LatencyComparison, LatencyObjective, Margins, ObservedTensor,
    Percent, Ratio, RolloutPolicy, Rules, SequentialRules, Step, Strategy, ThresholdRules,
};
use serde_json::{Value, json};

/// Quantile and tolerance of a latency objective that has none.
const LATENCY_QUANTILE: f64 = 0.99;
const LATENCY_TOLERANCE: f64 = 1.0;
/// Of a comparison of answers.
const ANSWER_TOLERANCE: f64 = 0.001;
const DIFFERENT_TOLERATED: f64 = 0.01;
const DIFFERENT_REJECTED: f64 = 0.05;

/// Parses and validates the `spec` of a RolloutPolicy.
///
/// The error is one sentence.
pub fn policy_of_json(spec: &[u8]) -> Result<RolloutPolicy, String> {
    let spec: Value = serde_json::from_slice(spec).map_err(|e| format!("the spec is not JSON: {e}"))?;
    let object = json!({
        "apiVersion": GANTRY_V1ALPHA1, "kind": "RolloutPolicy", "metadata": { "name": "policy" }, "spec": spec,
    });
    let documents =
        yaml::parse(&object.to_string()).map_err(|e| format!("the spec is invalid: {}", e.message))?;
    let node = documents.first().ok_or("the spec is empty: it needs a strategy")?;
    let object = decode_envelope::<RolloutPolicySpec>(node, "RolloutPolicy").map_err(|errors| {
        let more = errors.len().saturating_sub(1);
        let first = errors.into_iter().next().map(|e| format!("{} {}", e.path, e.message));
        let more = if more == 0 { String::new() } else { format!(" (and {more} more)") };
        format!("{}{more}", first.unwrap_or_default())
    })?;
    object.spec.to_policy().map_err(|(path, message)| format!("{path} {message}"))
}

impl RolloutPolicySpec {
    /// The policy of the engine, with its defaults; the first error of a spec that is not valid.
    pub fn to_policy(&self) -> Result<RolloutPolicy, FieldError> {
        let mut policy = RolloutPolicy::new(self.strategy.to_core()?);
        set(&mut policy.progress_deadline, self.progress_deadline.map(SpecDuration::millis));
        set(&mut policy.bake, self.bake.map(SpecDuration::millis));
        set(&mut policy.cool_down, self.cool_down.map(SpecDuration::millis));
        if let Some(analysis) = &self.analysis {
            analysis.apply(&mut policy)?;
        }
        if let Some(compare) = self.strategy.mirror_first.as_ref().and_then(|mirror| mirror.compare.as_ref())
        {
            compare.apply(&mut policy)?;
        }
        policy.drift = self.drift.as_ref().map(DriftSpec::to_core);
        policy.observed = self.drift.as_ref().and_then(DriftSpec::observed);
        Ok(policy)
    }
}

impl StrategySpec {
    fn to_core(&self) -> Result<Strategy, FieldError> {
        match (&self.canary, &self.blue_green, &self.mirror_first) {
            (Some(canary), None, None) => {
                steps(&canary.steps, "spec.strategy.canary.steps").map(Strategy::Canary)
            }
            (None, Some(blue_green), None) => {
                Ok(Strategy::BlueGreen { hold: millis(blue_green.hold), approval: blue_green.approval })
            }
            (None, None, Some(mirror)) => Ok(Strategy::MirrorFirst {
                percent: percent(mirror.percent, "spec.strategy.mirrorFirst.percent")?,
                hold: millis(mirror.hold),
                then: steps(&mirror.steps, "spec.strategy.mirrorFirst.steps")?,
            }),
            _ => Err(("spec.strategy".into(), super::rules::ONE_STRATEGY.into())),
        }
    }
}

fn steps(steps: &[StepSpec], path: &str) -> Result<CanarySteps, FieldError> {
    let step = |step: &StepSpec| {
        Ok(Step { weight: percent(step.weight, path)?, hold: millis(step.hold), approval: step.approval })
    };
    let steps = steps.iter().map(step).collect::<Result<_, FieldError>>()?;
    CanarySteps::new(steps).map_err(|e| (path.to_owned(), format!("are invalid: {e}")))
}

fn percent(percent: i32, path: &str) -> Result<Percent, FieldError> {
    let valid = u32::try_from(percent).ok().and_then(Percent::new);
    valid.ok_or_else(|| (path.to_owned(), format!("must be between 1 and 100, got {percent}")))
}

fn millis(duration: Option<SpecDuration>) -> u64 {
    duration.map_or(0, SpecDuration::millis)
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

fn set_ratio(field: &mut Ratio, value: Option<f64>, path: &str) -> Result<(), FieldError> {
    set(field, value.map(|value| ratio(value, path)).transpose()?);
    Ok(())
}

fn ratio(value: f64, path: &str) -> Result<Ratio, FieldError> {
    Ratio::new(value).ok_or_else(|| (path.to_owned(), format!("must be between 0 and 1, got {value}")))
}

/// A count that the schema keeps positive.
fn count(value: Option<i32>) -> Option<u32> {
    value.and_then(|value| u32::try_from(value).ok())
}

impl AnalysisSpec {
    fn apply(&self, policy: &mut RolloutPolicy) -> Result<(), FieldError> {
        set_ratio(&mut policy.objectives.success, self.success_rate, "spec.analysis.successRate")?;
        if let Some(latency) = &self.latency {
            policy.objectives.latency = Some(LatencyObjective {
                target: latency.target.millis(),
                quantile: ratio(
                    latency.quantile.unwrap_or(LATENCY_QUANTILE),
                    "spec.analysis.latency.quantile",
                )?,
                tolerance: latency.tolerance.unwrap_or(LATENCY_TOLERANCE),
            });
        }
        set(&mut policy.min_requests, self.min_requests.and_then(|n| u64::try_from(n).ok()));
        set(&mut policy.interval, self.interval.map(SpecDuration::millis));
        set(&mut policy.error_limit, count(self.error_limit));
        if let Some(sequential) = &self.sequential {
            policy.rules = Rules::Sequential(sequential.to_core()?);
        }
        if let Some(thresholds) = &self.thresholds {
            let mut rules = ThresholdRules::default();
            set(&mut rules.checks, count(thresholds.checks));
            set(&mut rules.failure_threshold, count(thresholds.failure_threshold));
            set(&mut rules.hard_breach, thresholds.hard_breach);
            policy.rules = Rules::Thresholds(rules);
        }
        Ok(())
    }
}

impl CompareSpec {
    fn apply(&self, policy: &mut RolloutPolicy) -> Result<(), FieldError> {
        const PATH: &str = "spec.strategy.mirrorFirst.compare";
        let tolerance = ratio(self.tolerance.unwrap_or(ANSWER_TOLERANCE), &format!("{PATH}.tolerance"))?;
        policy.answer_tolerance = Some((tolerance.get() * 1e6).round() as u32);
        let Rules::Sequential(rules) = &mut policy.rules else {
            return Err((PATH.into(), "needs the sequential tests: remove spec.analysis.thresholds".into()));
        };
        let share =
            |value: Option<f64>, default, field| ratio(value.unwrap_or(default), &format!("{PATH}.{field}"));
        rules.outputs = Some(Margins {
            tolerated: share(self.tolerated, DIFFERENT_TOLERATED, "tolerated")?,
            rejected: share(self.rejected, DIFFERENT_REJECTED, "rejected")?,
        });
        Ok(())
    }
}

impl SequentialSpec {
    pub(super) fn to_core(&self) -> Result<SequentialRules, FieldError> {
        let mut rules = SequentialRules::default();
        let path = "spec.analysis.sequential";
        set_ratio(&mut rules.false_rollback, self.false_rollback, &format!("{path}.falseRollback"))?;
        set_ratio(&mut rules.false_promotion, self.false_promotion, &format!("{path}.falsePromotion"))?;
        if let Some(success) = &self.success {
            margins(&mut rules.success, success.tolerated, success.rejected, &format!("{path}.success"))?;
        }
        if let (Some(latency), Some(LatencyComparison { quantile, margins: of })) =
            (&self.latency, &mut rules.latency)
        {
            let path = format!("{path}.latency");
            set_ratio(quantile, latency.quantile, &format!("{path}.quantile"))?;
            margins(of, latency.tolerated, latency.rejected, &path)?;
        }
        Ok(rules)
    }
}

fn margins(
    margins: &mut Margins,
    tolerated: Option<f64>,
    rejected: Option<f64>,
    path: &str,
) -> Result<(), FieldError> {
    set_ratio(&mut margins.tolerated, tolerated, &format!("{path}.tolerated"))?;
    set_ratio(&mut margins.rejected, rejected, &format!("{path}.rejected"))
}

impl DriftSpec {
    fn observed(&self) -> Option<ObservedTensor> {
        let (name, is_input) = match (&self.output, &self.input) {
            (Some(output), _) => (output, false),
            (None, Some(input)) => (input, true),
            (None, None) => return None,
        };
        Some(ObservedTensor { name: name.as_str().into(), is_input })
    }

    fn to_core(&self) -> DriftRules {
        let mut rules = DriftRules::default();
        let measure = |measure| match measure {
            DriftMeasureSpec::Psi => DriftMeasure::PopulationStabilityIndex,
            DriftMeasureSpec::Ks => DriftMeasure::KolmogorovSmirnov,
        };
        set(&mut rules.measure, self.measure.map(measure));
        set(&mut rules.threshold, self.threshold);
        set(&mut rules.windows, count(self.windows));
        set(&mut rules.min_outputs, self.min_outputs.and_then(|n| u64::try_from(n).ok()));
        set(&mut rules.objectives, self.objectives);
        set(&mut rules.rollback, self.rollback);
        rules
    }
}
