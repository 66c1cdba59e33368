//! The rollout policy of a spec.

use gantry_api::{AlgorithmSpec, AnalysisMethod, EvidenceSource};
use gantry_core::rollout::{
    CanarySteps, DriftMeasure, DriftRules, LatencyObjective, Phase, Ratio, Rollout, RolloutPolicy, Rules,
    SequentialRules, Strategy, ThresholdRules,
};
use std::time::Duration;

const COOL_DOWN: u64 = 600_000;
const HARD_BREACH: f64 = 5.0;
const LATENCY_QUANTILE: f64 = 0.99;
/// The shortest limit on a step of the logical clock.
const CLOCK_STEP: u64 = 60_000;

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn seconds(time: Option<u32>, default: u32) -> u64 {
    u64::from(time.unwrap_or(default)) * 1_000
}

pub(super) fn policy(spec: &AlgorithmSpec, state: &Rollout) -> RolloutPolicy {
    let lifecycle = spec.lifecycle.clone().unwrap_or_default();
    let interval = millis(spec.interval());
    let mut policy = RolloutPolicy::new(strategy(spec));
    policy.rules = match lifecycle.analysis.unwrap_or_default() {
        AnalysisMethod::Thresholds => Rules::Thresholds(ThresholdRules {
            checks: lifecycle.checks.unwrap_or(5),
            failure_threshold: lifecycle.failure_threshold.unwrap_or(3),
            hard_breach: HARD_BREACH,
        }),
        AnalysisMethod::Sequential => {
            let rules = SequentialRules::default();
            // Queries return a quantile, not the distribution that a comparison needs.
            let has_distribution = spec.evidence_source() == Some(EvidenceSource::Gateway);
            Rules::Sequential(SequentialRules {
                latency: rules.latency.filter(|_| has_distribution),
                ..rules
            })
        }
    };
    if let Some(success) = lifecycle.success_threshold.and_then(Ratio::new) {
        policy.objectives.success = success;
    }
    policy.objectives.latency =
        spec.target_latency_ms().zip(Ratio::new(LATENCY_QUANTILE)).map(|(target, quantile)| {
            let tolerance = lifecycle.latency_tolerance.unwrap_or(1.0);
            LatencyObjective { target, quantile, tolerance }
        });
    policy.interval = interval;
    policy.min_requests = lifecycle.min_requests.unwrap_or(50).into();
    policy.progress_deadline = seconds(lifecycle.progress_deadline_seconds, 600);
    policy.cool_down = COOL_DOWN;
    policy.max_clock_step = CLOCK_STEP.max(interval.saturating_mul(2));
    let is_watched = lifecycle.rollback_on_drift.unwrap_or_default();
    // The first revision has nothing to return to.
    let has_previous = match &state.phase {
        Phase::Deploying { .. } => false,
        Phase::Running { stable } => stable.previous.is_some(),
        Phase::Progressing { .. } | Phase::RollingBack { .. } | Phase::Reverting { .. } => true,
    };
    policy.bake = if is_watched && has_previous { seconds(lifecycle.bake_seconds, 600) } else { 0 };
    policy.drift = (is_watched || spec.drift.is_some()).then(|| {
        let drift = spec.drift.clone().unwrap_or_default();
        DriftRules {
            measure: DriftMeasure::PopulationStabilityIndex,
            threshold: drift.threshold.unwrap_or(0.25),
            windows: drift.windows.unwrap_or(3),
            min_outputs: DriftRules::default().min_outputs,
            objectives: is_watched,
            rollback: is_watched,
        }
    });
    policy
}

/// A rolling update has no steps; its single stage is skipped.
fn strategy(spec: &AlgorithmSpec) -> Strategy {
    match CanarySteps::weights(&spec.steps()) {
        Ok(steps) => Strategy::Canary(steps),
        Err(_) => Strategy::BlueGreen { hold: 0, approval: false },
    }
}

/// The weights of the first stage.
pub(super) fn first_weight(spec: &AlgorithmSpec) -> u32 {
    spec.steps().first().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_of_the_spec_are_in_the_policy() {
        let spec = |json| serde_json::from_value::<AlgorithmSpec>(json).unwrap();
        let running = Rollout::running("a".into());
        let default = policy(&spec(json!({ "image": "a:1", "lifecycle": { "canaryWeight": 20 } })), &running);
        assert_eq!(default.rules, Rules::Thresholds(ThresholdRules::default()));
        assert_eq!((default.interval, default.min_requests, default.bake), (30_000, 50, 0));
        assert_eq!((default.progress_deadline, default.drift), (600_000, None));
        let weights = |policy: &RolloutPolicy| -> Vec<u32> {
            policy.strategy.stages().map(|stage| stage.exposure.percent().get()).collect()
        };
        assert_eq!(weights(&default), [20]);
        let mut all = spec(json!({
            "image": "a:1", "scaling": { "targetLatencyMs": 40 },
            "lifecycle": {
                "steps": [5, 50], "successThreshold": 0.9, "rollbackOnDrift": true, "interval": "2m", "checks": 2,
                "failureThreshold": 4, "minRequests": 7, "latencyTolerance": 1.5, "progressDeadlineSeconds": 9,
                "bakeSeconds": 11,
            },
            "drift": { "threshold": 0.4, "windows": 6 },
        }));
        let progressing = Rollout::new("a".into());
        assert_eq!(policy(&all, &progressing).bake, 0, "the first revision has no bake");
        let found = policy(&all, &running);
        let rules = ThresholdRules { checks: 2, failure_threshold: 4, hard_breach: 5.0 };
        assert_eq!(found.rules, Rules::Thresholds(rules));
        assert_eq!(weights(&found), [5, 50]);
        assert_eq!((found.interval, found.min_requests, found.progress_deadline), (120_000, 7, 9_000));
        assert!(found.max_clock_step >= 2 * found.interval);
        assert!((found.objectives.budget() - 0.1).abs() < 1e-9);
        assert!((found.objectives.latency.unwrap().limit_ms() - 60.0).abs() < 1e-9);
        let drift = found.drift.unwrap();
        assert_eq!((drift.windows, drift.rollback, drift.objectives), (6, true, true));
        let lifecycle = all.lifecycle.as_mut().unwrap();
        (lifecycle.rollback_on_drift, lifecycle.analysis) = (None, Some(AnalysisMethod::Sequential));
        let alert = policy(&all, &running);
        assert!(matches!(alert.rules, Rules::Sequential(SequentialRules { latency: None, .. })));
        assert!(!alert.drift.unwrap().rollback, "drift is reported only");
        all.expose = Some(gantry_api::AlgorithmExpose::default());
        let by_gateway = policy(&all, &running).rules;
        assert!(
            matches!(by_gateway, Rules::Sequential(SequentialRules { latency: Some(_), .. })),
            "the gateway has the distribution"
        );
    }
}
