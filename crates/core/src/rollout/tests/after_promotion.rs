//! Bake, drift and cool-down.

use super::*;

const GOOD: (u64, u64) = (100, 0);

fn promoted(policy: RolloutPolicy) -> Harness {
    let mut harness = Harness::rolling_out(policy);
    harness.check(GOOD, GOOD);
    assert_eq!(harness.shown(), "Running b 100");
    harness
}

fn drifting() -> RolloutPolicy {
    RolloutPolicy { drift: Some(DriftRules::default()), ..thresholds(&[20]) }
}

fn outputs(bins: [u64; 3]) -> Stats {
    Stats { outputs: Distribution::new(bins), ..stats(bins.iter().sum(), 0) }
}

fn interval(harness: &mut Harness, bins: [u64; 3]) {
    harness.window_of(outputs(bins), Stats::default());
    harness.wait(harness.policy.interval);
}

/// Bakes with outputs of this shape.
fn baked(policy: RolloutPolicy) -> Harness {
    let mut harness = promoted(policy);
    (0..25).for_each(|_| interval(&mut harness, [500, 300, 200]));
    assert!(matches!(harness.stored.state.phase.stable().unwrap().watch, Watch::Drift(_)));
    harness
}

#[test]
fn failures_during_the_bake_return_to_the_previous_revision() {
    for rules in [thresholds(&[20]).rules, canary(&[20]).rules] {
        let mut harness = promoted(thresholds(&[20]));
        harness.policy.rules = rules;
        (0..4).for_each(|_| harness.check((100, 30), (0, 0)));
        assert_eq!(harness.shown(), "Running a 100");
        assert_eq!(harness.failure().unwrap().0, "b");
        let expected = Outcome::RolledBack(harness.failure().unwrap().1);
        assert_eq!(harness.stored.state.history.back().unwrap().outcome, expected);
    }
}

#[test]
fn previous_spec_during_the_bake_returns_at_once() {
    let mut harness = promoted(thresholds(&[20]));
    harness.desire("a");
    assert_eq!(harness.shown(), "Running a 100");
    assert_eq!(harness.failure(), None);
    let mut harness = promoted(thresholds(&[20]));
    (0..20).for_each(|_| harness.wait(60_000));
    harness.desire("a");
    assert_eq!(harness.shown(), "Progressing b 80 a 20", "after the bake it is rolled out like any other");
}

#[test]
fn first_revision_has_nothing_to_return_to() {
    let mut harness = Harness::new(thresholds(&[20]));
    harness.stored = Rollout::new("a".into()).restored();
    harness.step(None, None);
    (0..10).for_each(|_| harness.check((100, 50), (0, 0)));
    assert_eq!(harness.shown(), "Running a 100");
    let degraded = harness.events.iter().filter(|event| matches!(event, Event::Degraded { .. })).count();
    assert_eq!(degraded, 1, "reported once");
}

#[test]
fn drift_returns_to_the_previous_revision() {
    let mut harness = baked(drifting());
    interval(&mut harness, [200, 300, 500]);
    interval(&mut harness, [200, 300, 500]);
    interval(&mut harness, [500, 300, 200]);
    interval(&mut harness, [200, 300, 500]);
    interval(&mut harness, [200, 300, 500]);
    assert_eq!(harness.shown(), "Running b 100", "not three consecutive intervals");
    interval(&mut harness, [200, 300, 500]);
    assert_eq!(harness.shown(), "Running a 100");
    assert_eq!(harness.failure(), Some(("b", Reason::Drifted)));
    assert_eq!(
        harness.stored.state.failed[0].finding.message,
        "PSI of the outputs is 0.55, at least 0.25, over 1000 values"
    );
}

#[test]
fn drift_waits_for_the_previous_revision() {
    let mut harness = baked(drifting());
    harness.set_ready("a", Readiness::NotReady);
    (0..3).for_each(|_| interval(&mut harness, [200, 300, 500]));
    assert_eq!(harness.shown(), "Reverting b 100");
    (0..10).for_each(|_| harness.wait(60_000));
    assert_eq!(harness.shown(), "Running b 100", "given up at the deadline");
    assert!(harness.events.iter().any(|event| matches!(event, Event::RevertFailed { .. })));
    (0..10).for_each(|_| interval(&mut harness, [200, 300, 500]));
    assert_eq!(harness.shown(), "Running b 100");
}

#[test]
fn drift_within_the_cool_down_is_only_reported() {
    let mut harness = baked(drifting());
    harness.desire("c");
    harness.set_ready("c", Readiness::Ready);
    harness.command(Command::Abort);
    assert_eq!(harness.shown(), "Running b 100");
    (0..4).for_each(|_| interval(&mut harness, [200, 300, 500]));
    assert_eq!(harness.shown(), "Running b 100");
    assert!(matches!(harness.events.last(), Some(Event::Degraded { .. })), "{:?}", harness.events.last());
    (0..20).for_each(|_| interval(&mut harness, [200, 300, 500]));
    assert_eq!(harness.shown(), "Running a 100", "after the cool-down it returns");
}

#[test]
fn drift_without_rollback_is_reported_once() {
    let rules = DriftRules { rollback: false, ..DriftRules::default() };
    let mut harness = baked(RolloutPolicy { drift: Some(rules), ..drifting() });
    (0..20).for_each(|_| interval(&mut harness, [200, 300, 500]));
    assert_eq!(harness.shown(), "Running b 100");
    let degraded = harness.events.iter().filter(|event| matches!(event, Event::Degraded { .. })).count();
    assert_eq!(degraded, 1);
}

#[test]
fn missed_objectives_count_as_drift() {
    let mut harness = baked(drifting());
    (0..3).for_each(|_| harness.check((100, 20), (0, 0)));
    assert_eq!(harness.failure(), Some(("b", Reason::ObjectivesMissed)));
}

#[test]
fn few_outputs_and_provider_errors_are_no_drift() {
    let mut harness = baked(drifting());
    for _ in 0..10 {
        interval(&mut harness, [10, 10, 100]);
        harness.provider_fails();
        harness.wait(30_000);
    }
    assert_eq!(harness.shown(), "Running b 100");
}

#[test]
fn score_of_another_source_is_drift() {
    let mut harness = baked(drifting());
    let score = |harness: &mut Harness, score: f64| {
        harness.window_of(Stats { drift: DriftScore::new(score), ..stats(100, 0) }, Stats::default());
        harness.wait(harness.policy.interval);
    };
    for value in [0.25, 0.3, 0.249, 0.25, 0.25] {
        score(&mut harness, value);
    }
    assert_eq!(harness.shown(), "Running b 100", "not three consecutive intervals");
    score(&mut harness, 0.25);
    assert_eq!(harness.failure(), Some(("b", Reason::Drifted)));
    assert_eq!(harness.stored.state.failed[0].finding.message, "drift score is 0.25, at least 0.25");
    assert_eq!(DriftScore::new(f64::NAN), None);
}

#[test]
fn kolmogorov_smirnov_measures_drift_too() {
    let rules =
        DriftRules { measure: DriftMeasure::KolmogorovSmirnov, threshold: 0.2, ..DriftRules::default() };
    let mut harness = baked(RolloutPolicy { drift: Some(rules), ..drifting() });
    (0..3).for_each(|_| interval(&mut harness, [350, 300, 350]));
    assert_eq!(harness.shown(), "Running b 100");
    (0..3).for_each(|_| interval(&mut harness, [200, 300, 500]));
    assert_eq!(harness.shown(), "Running a 100");
}

#[test]
fn rollback_of_a_candidate_keeps_the_watch_of_the_stable_revision() {
    let mut harness = baked(drifting());
    harness.desire("c");
    harness.command(Command::Abort);
    let stable = harness.stored.state.phase.stable().unwrap();
    assert_eq!((&*stable.revision, stable.previous.as_deref()), ("b", Some("a")));
    assert!(matches!(stable.watch, Watch::Drift(_)));
}

#[test]
fn history_and_failed_revisions_are_bounded() {
    let mut harness = Harness::new(thresholds(&[20]));
    for number in 0..30 {
        harness.desire(&format!("r{number}"));
        harness.command(Command::Abort);
    }
    assert_eq!(harness.stored.state.history.len(), MAX_HISTORY);
    assert_eq!(harness.stored.state.failed.len(), MAX_FAILED);
    assert_eq!(harness.failure(), Some(("r29", Reason::Aborted)));
}
