//! Transitions until promotion or rollback.

use super::*;

#[test]
fn overdue_check_without_evidence_is_not_requeued_at_once() {
    let mut harness = Harness::rolling_out(thresholds(&[20]));
    let id = harness.id();
    harness.step(Some(&Evidence::NoData { id }), None);
    for _ in 0..5 {
        harness.wait(harness.policy.interval);
        assert!(harness.stored.requeue_after.unwrap() >= 30_000, "{:?}", harness.stored.requeue_after);
    }
}

const GOOD: (u64, u64) = (100, 0);
const BAD: (u64, u64) = (100, 3);

#[test]
fn first_revision_is_deployed_without_analysis() {
    let mut harness = Harness::new(thresholds(&[20]));
    harness.stored = Rollout::new("a".into()).restored();
    harness.readiness.clear();
    harness.step(None, None);
    assert_eq!(harness.shown(), "Deploying");
    harness.desire("b");
    assert_eq!(harness.stored.state.retained(), ["b".into()]);
    harness.set_ready("b", Readiness::Ready);
    assert_eq!(harness.shown(), "Running b 100");
    assert_eq!(harness.stored.state.history.back().unwrap().outcome, Outcome::Deployed);
}

#[test]
fn good_revision_passes_all_steps() {
    let mut harness = Harness::new(thresholds(&[20, 50]));
    harness.desire("b");
    assert_eq!(harness.shown(), "Progressing a 100", "no traffic before it is ready");
    harness.set_ready("b", Readiness::Ready);
    assert_eq!(harness.shown(), "Progressing a 80 b 20");
    harness.check(GOOD, GOOD);
    assert_eq!(harness.shown(), "Progressing a 50 b 50");
    harness.check(GOOD, GOOD);
    assert_eq!(harness.shown(), "Running b 100");
    assert_eq!(harness.stored.state.history.back().unwrap().outcome, Outcome::Promoted);
    assert_eq!(harness.stored.state.retained(), ["a".into(), "b".into()], "a is kept during the bake");
}

#[test]
fn each_step_needs_its_number_of_checks() {
    let mut policy = thresholds(&[20]);
    policy.rules = Rules::Thresholds(ThresholdRules::default());
    let mut harness = Harness::rolling_out(policy);
    for _ in 0..4 {
        harness.check(GOOD, GOOD);
        assert_eq!(harness.shown(), "Progressing a 80 b 20");
    }
    harness.check(GOOD, GOOD);
    assert_eq!(harness.shown(), "Running b 100");
}

#[test]
fn consecutive_failures_roll_back() {
    let mut harness = Harness::rolling_out(thresholds(&[20]));
    harness.policy.rules = Rules::Thresholds(ThresholdRules { checks: 9, ..ThresholdRules::default() });
    harness.check(GOOD, BAD);
    harness.check(GOOD, BAD);
    harness.check(GOOD, GOOD);
    harness.check(GOOD, BAD);
    harness.check(GOOD, BAD);
    assert_eq!(harness.shown(), "Progressing a 80 b 20", "a passed check starts the count again");
    harness.applies = false;
    harness.check(GOOD, BAD);
    assert_eq!(harness.shown(), "RollingBack a 100");
    assert_eq!(harness.failure(), Some(("b", Reason::HigherFailureRatio)));
    let message = &harness.stored.state.failed[0].finding.message;
    assert_eq!(message, "canary answered 5xx to 3 of 100 (97.00 %, needs 99.00 %)");
}

#[test]
fn rolled_back_revision_stays_loaded_until_the_weights_are_applied() {
    let mut harness = Harness::rolling_out(thresholds(&[20]));
    harness.applies = false;
    harness.window(GOOD, (100, 90));
    assert_eq!(harness.shown(), "RollingBack a 100");
    assert_eq!(harness.stored.state.retained(), ["a".into(), "b".into()]);
    harness.wait(1_000);
    assert_eq!(harness.shown(), "RollingBack a 100");
    harness.applies = true;
    harness.wait(1);
    assert_eq!(harness.shown(), "Running a 100");
    assert_eq!(harness.stored.state.retained(), ["a".into()]);
    let mut unconfirmed = Harness::rolling_out(thresholds(&[20]));
    unconfirmed.applies = false;
    unconfirmed.window(GOOD, (100, 90));
    unconfirmed.wait(30_000);
    assert_eq!(unconfirmed.shown(), "Running a 100", "an unreachable gateway does not keep it for ever");
}

#[test]
fn hard_breach_rolls_back_without_further_checks() {
    let mut harness = Harness::rolling_out(thresholds(&[20]));
    harness.window((200, 0), (49, 49));
    assert_eq!(harness.shown(), "Progressing a 80 b 20", "too few requests");
    harness.window((4, 0), (1, 1));
    assert_eq!(harness.failure(), Some(("b", Reason::HardBreach)));
    // 5 % is the limit of a budget of 1 %; equality is no breach.
    let mut harness = Harness::rolling_out(thresholds(&[20]));
    harness.window(GOOD, (100, 5));
    assert_eq!(harness.failure(), None);
}

#[test]
fn outage_of_both_holds_and_stops_the_deadline() {
    for policy in [thresholds(&[20]), canary(&[20])] {
        let mut harness = Harness::rolling_out(policy);
        for _ in 0..100 {
            harness.check((400, 300), (100, 75));
            assert_eq!(harness.shown(), "Progressing a 80 b 20");
            assert_eq!(harness.verdict(), Some(Reason::BaselineFailing));
        }
    }
}

#[test]
fn outage_ends_and_the_rollout_continues() {
    let mut harness = Harness::rolling_out(canary(&[20]));
    (0..50).for_each(|_| harness.check((400, 300), (100, 75)));
    for _ in 0..40 {
        harness.window((400, 0), (100, 0));
    }
    assert_eq!(harness.shown(), "Running b 100");
}

#[test]
fn missing_evidence_holds_until_the_deadline() {
    for policy in [thresholds(&[20]), canary(&[20])] {
        let mut harness = Harness::rolling_out(policy);
        for _ in 0..20 {
            harness.wait(30_000);
            assert_eq!(harness.shown(), "Progressing a 80 b 20");
        }
        harness.wait(1);
        assert_eq!(harness.shown(), "Running a 100");
        assert_eq!(harness.failure(), Some(("b", Reason::ProgressDeadlineExceeded)));
    }
}

#[test]
fn too_few_requests_are_no_verdict() {
    for policy in [thresholds(&[20]), canary(&[20])] {
        let mut harness = Harness::rolling_out(policy);
        harness.check((200, 0), (49, 0));
        assert_eq!(harness.shown(), "Progressing a 80 b 20");
        assert_eq!(harness.verdict(), Some(Reason::TooFewRequests));
    }
}

#[test]
fn provider_errors_hold_and_are_reported_above_their_limit() {
    for policy in [thresholds(&[20]), canary(&[20])] {
        let mut harness = Harness::rolling_out(policy);
        (0..4).for_each(|_| harness.provider_fails());
        assert_eq!(harness.verdict(), Some(Reason::NoTraffic));
        harness.provider_fails();
        assert_eq!(harness.verdict(), Some(Reason::ProviderFailed));
        assert_eq!(harness.shown(), "Progressing a 80 b 20");
        harness.window((400, 0), (60, 0));
        assert_ne!(harness.verdict(), Some(Reason::ProviderFailed), "an answer resets the count");
        let id = harness.id();
        harness.step(Some(&Evidence::NoData { id }), None);
        assert_eq!(harness.verdict(), Some(Reason::NoData));
    }
}

#[test]
fn candidate_that_is_never_ready_is_rolled_back_at_the_deadline() {
    let mut harness = Harness::new(thresholds(&[20]));
    harness.desire("b");
    for _ in 0..10 {
        assert_eq!(harness.shown(), "Progressing a 100");
        harness.wait(60_000);
    }
    harness.wait(1);
    assert_eq!(harness.failure(), Some(("b", Reason::ProgressDeadlineExceeded)));
    assert_eq!(harness.stored.state.failed[0].finding.message, "not ready in 600 s");
}

#[test]
fn candidate_that_is_not_ready_any_more_loses_its_weight() {
    let mut harness = Harness::rolling_out(thresholds(&[20]));
    harness.set_ready("b", Readiness::NotReady);
    assert_eq!(harness.shown(), "Progressing a 100");
    harness.check(GOOD, GOOD);
    assert_eq!(harness.shown(), "Progressing a 100", "and is not promoted");
    harness.set_ready("b", Readiness::Unknown);
    assert_eq!(harness.shown(), "Progressing a 100");
    harness.set_ready("b", Readiness::Ready);
    assert_eq!(harness.shown(), "Running b 100", "the check had passed");
    harness.set_ready("b", Readiness::NotReady);
    assert_eq!(harness.shown(), "Running a 100", "during the bake the previous revision takes over");
    harness.set_ready("b", Readiness::Unknown);
    assert_eq!(harness.shown(), "Running a 100", "unknown changes nothing");
}

#[test]
fn stable_that_is_not_ready_holds_the_rollout() {
    let mut harness = Harness::rolling_out(thresholds(&[20]));
    harness.set_ready("a", Readiness::NotReady);
    assert_eq!(harness.shown(), "Progressing b 100", "requests go to ready backends");
    (0..30).for_each(|_| harness.check((0, 0), GOOD));
    assert_eq!(harness.shown(), "Progressing b 100", "neither promoted nor rolled back");
    harness.set_ready("a", Readiness::Ready);
    assert_eq!(harness.shown(), "Running b 100");
    let mut waiting = Harness::new(thresholds(&[20]));
    waiting.set_ready("a", Readiness::NotReady);
    waiting.set_ready("b", Readiness::Ready);
    waiting.desire("b");
    assert_eq!(waiting.shown(), "Progressing a 100", "a candidate without a step gets no traffic");
}

#[test]
fn new_revision_starts_over() {
    let mut harness = Harness::rolling_out(thresholds(&[20, 50]));
    harness.check(GOOD, GOOD);
    assert_eq!(harness.shown(), "Progressing a 50 b 50");
    harness.applies = false;
    harness.desire("c");
    assert_eq!(harness.shown(), "RollingBack a 100", "b loses its weight first");
    harness.applies = true;
    harness.wait(1);
    assert_eq!(harness.shown(), "Progressing a 100");
    harness.set_ready("c", Readiness::Ready);
    assert_eq!(harness.shown(), "Progressing a 80 c 20");
    assert_eq!(harness.failure(), None, "b is not failed");
}

#[test]
fn return_to_the_stable_spec_ends_the_rollout() {
    let mut harness = Harness::rolling_out(thresholds(&[20]));
    harness.desire("a");
    assert_eq!(harness.shown(), "Running a 100");
    assert_eq!(harness.stored.state.history.back().unwrap().outcome, Outcome::Cancelled);
}

#[test]
fn failed_revision_is_not_retried() {
    let mut harness = Harness::rolling_out(thresholds(&[20]));
    harness.window(GOOD, (100, 90));
    assert_eq!(harness.shown(), "Running a 100");
    (0..100).for_each(|_| harness.wait(60_000));
    assert_eq!(harness.shown(), "Running a 100");
    assert!(harness.stored.state.failure("b").is_some());
    harness.desire("a");
    harness.desire("b");
    assert_eq!(harness.shown(), "Running a 100", "applied again, it is the same revision");
    harness.command(Command::Retry { revision: "b".into() });
    assert_eq!(harness.shown(), "Progressing a 80 b 20");
}

#[test]
fn hold_is_the_shortest_time_of_a_step() {
    let weight = Percent::new(20).unwrap();
    let steps = CanarySteps::new(vec![Step { weight, hold: 300_000, approval: false }]).unwrap();
    let mut harness = Harness::rolling_out(RolloutPolicy {
        rules: thresholds(&[20]).rules,
        ..RolloutPolicy::new(Strategy::Canary(steps))
    });
    for _ in 0..9 {
        harness.check(GOOD, GOOD);
        assert_eq!(harness.shown(), "Progressing a 80 b 20");
    }
    harness.check(GOOD, GOOD);
    assert_eq!(harness.shown(), "Running b 100");
}

#[test]
fn blue_green_is_judged_at_all_traffic() {
    let strategy = Strategy::BlueGreen { hold: 0, approval: false };
    for rules in [thresholds(&[20]).rules, canary(&[20]).rules] {
        let policy = RolloutPolicy { rules, ..RolloutPolicy::new(strategy.clone()) };
        let mut harness = Harness::rolling_out(policy.clone());
        assert_eq!(harness.shown(), "Progressing b 100");
        assert_eq!(harness.stored.state.retained(), ["a".into(), "b".into()]);
        (0..10).for_each(|_| harness.window((0, 0), (100, 1)));
        harness.wait(30_000);
        assert_eq!(harness.shown(), "Running b 100");
        let mut harness = Harness::rolling_out(policy);
        harness.window((0, 0), (60, 60));
        assert_eq!(harness.shown(), "Running a 100");
    }
}

#[test]
fn mirrored_revision_gets_no_traffic_before_it_passes() {
    let then = CanarySteps::weights(&[20]).unwrap();
    let percent = Percent::new(50).unwrap();
    let mut policy = RolloutPolicy::new(Strategy::MirrorFirst { percent, hold: 0, then });
    let margins = Margins { tolerated: Ratio::new(0.01).unwrap(), rejected: Ratio::new(0.05).unwrap() };
    policy.rules =
        Rules::Sequential(SequentialRules { outputs: Some(margins), ..SequentialRules::default() });
    let mut harness = Harness::rolling_out(policy.clone());
    assert_eq!(harness.shown(), "Progressing a 100 mirror b 50");
    let same = Stats { compared: Sample::new(0, 100), ..stats(100, 0) };
    let mut windows = 0;
    while harness.shown() == "Progressing a 100 mirror b 50" && windows < 10 {
        harness.window_of(stats(200, 0), same.clone());
        windows += 1;
    }
    assert!(windows > 1, "one window is not enough");
    assert_eq!(harness.shown(), "Progressing a 80 b 20");
    let mut harness = Harness::rolling_out(policy);
    let different = Stats { compared: Sample::new(20, 100), ..stats(100, 0) };
    (0..5).for_each(|_| harness.window_of(stats(200, 0), different.clone()));
    assert_eq!(harness.failure(), Some(("b", Reason::OutputsDiffer)));
}

#[test]
fn latency_of_mirrored_requests_is_not_compared() {
    let then = CanarySteps::weights(&[20]).unwrap();
    let percent = Percent::new(50).unwrap();
    let policy = RolloutPolicy::new(Strategy::MirrorFirst { percent, hold: 0, then });
    let mut harness = Harness::rolling_out(policy);
    let mut slow = stats(100, 0);
    slow.latency = LatencyHistogram::default();
    (0..100).for_each(|_| slow.latency.record(80.0));
    let mut windows = 0;
    while harness.shown() == "Progressing a 100 mirror b 50" && windows < 20 {
        harness.window_of(stats(200, 0), slow.clone());
        windows += 1;
    }
    assert_eq!(harness.shown(), "Progressing a 80 b 20", "copies are slower than requests of clients");
    while harness.shown() == "Progressing a 80 b 20" {
        harness.window((200, 0), (50, 0));
    }
    assert_eq!(harness.shown(), "Running b 100");
}

#[test]
fn sequential_analysis_compares_latency() {
    let slow = |requests| {
        let mut slow = stats(requests, 0);
        slow.latency = LatencyHistogram::default();
        (0..requests).for_each(|_| slow.latency.record(80.0));
        slow
    };
    let mut harness = Harness::rolling_out(canary(&[20]));
    for _ in 0..10 {
        harness.window_of(stats(80, 0), slow(20));
    }
    assert_eq!(harness.failure(), Some(("b", Reason::HigherLatency)));
    let mut harness = Harness::rolling_out(canary(&[20]));
    for _ in 0..10 {
        harness.window_of(slow(80), slow(20));
    }
    assert_eq!(harness.failure(), None);
}

#[test]
fn all_failures_are_rolled_back_after_a_few_requests() {
    let mut harness = Harness::rolling_out(canary(&[20]));
    harness.window((16, 0), (4, 4));
    assert_eq!(harness.shown(), "Progressing a 80 b 20");
    harness.window((16, 0), (4, 4));
    assert_eq!(harness.shown(), "Running a 100");
    let message = &harness.stored.state.failed[0].finding.message;
    assert_eq!(message, "canary answered 5xx to 8 of 8, stable answered 5xx to 0 of 32");
}

#[test]
fn late_and_repeated_evidence_does_not_count() {
    let mut harness = Harness::rolling_out(canary(&[20]));
    let before = harness.stored.state.generation - 1;
    let id = harness.id();
    let late = Window { id, generation: before, stable: stats(400, 0), candidate: stats(100, 100) };
    harness.step(Some(&Evidence::Window(Box::new(late))), None);
    assert_eq!(harness.shown(), "Progressing a 80 b 20");
    let repeated = Window {
        id: ObservationId { epoch: 1, sequence: 1 },
        generation: harness.stored.state.generation,
        stable: stats(400, 0),
        candidate: stats(100, 100),
    };
    harness.step(Some(&Evidence::Window(Box::new(repeated.clone()))), None);
    assert_eq!(harness.shown(), "Progressing a 80 b 20");
    let id = ObservationId { epoch: 2, sequence: 1 };
    harness.step(Some(&Evidence::Window(Box::new(Window { id, ..repeated }))), None);
    assert_eq!(harness.shown(), "Running a 100", "a collector that restarted counts from 1");
}

#[test]
fn clock_jumps_do_not_expire_the_deadline() {
    let mut harness = Harness::rolling_out(canary(&[20]));
    harness.wait(86_400_000);
    assert_eq!(harness.shown(), "Progressing a 80 b 20");
    harness.now = 5;
    harness.wait(0);
    assert_eq!(harness.shown(), "Progressing a 80 b 20");
    (0..10).for_each(|_| harness.wait(60_000));
    assert_eq!(harness.failure(), Some(("b", Reason::ProgressDeadlineExceeded)));
}

#[test]
fn edited_policy_keeps_the_weights_of_the_stage() {
    let mut harness = Harness::rolling_out(thresholds(&[20, 50, 80]));
    harness.check(GOOD, GOOD);
    assert_eq!(harness.shown(), "Progressing a 50 b 50");
    harness.policy = canary(&[10]);
    harness.wait(1);
    assert_eq!(harness.shown(), "Progressing a 50 b 50");
    (0..20).for_each(|_| harness.window(GOOD, GOOD));
    assert_eq!(harness.shown(), "Running b 100");
}
