//! Commands, in and out of season.

use super::*;

const GOOD: (u64, u64) = (100, 0);

fn rejection(harness: &Harness) -> Option<CommandRejection> {
    match harness.events.last() {
        Some(Event::CommandRejected { rejection, .. }) => Some(*rejection),
        _ => None,
    }
}

#[test]
fn paused_rollout_neither_advances_nor_ends() {
    let mut harness = Harness::rolling_out(thresholds(&[20, 50]));
    harness.command(Command::Pause);
    (0..50).for_each(|_| harness.check(GOOD, GOOD));
    assert_eq!(harness.shown(), "Progressing a 80 b 20");
    harness.command(Command::Resume);
    assert_eq!(harness.shown(), "Progressing a 50 b 50");
    harness.command(Command::Resume);
    assert_eq!(rejection(&harness), Some(CommandRejection::NotPaused));
}

#[test]
fn paused_rollout_is_still_rolled_back() {
    let mut harness = Harness::rolling_out(canary(&[20]));
    harness.command(Command::Pause);
    harness.window((400, 0), (100, 100));
    assert_eq!(harness.shown(), "Running a 100");
}

#[test]
fn abort_rolls_back_and_is_not_retried() {
    let mut harness = Harness::rolling_out(thresholds(&[20]));
    harness.command(Command::Abort);
    assert_eq!(harness.shown(), "Running a 100");
    assert_eq!(harness.failure(), Some(("b", Reason::Aborted)));
    harness.command(Command::Abort);
    assert_eq!(rejection(&harness), Some(CommandRejection::NotProgressing));
}

#[test]
fn promote_skips_one_step_and_promote_full_all() {
    let mut harness = Harness::rolling_out(thresholds(&[20, 50]));
    harness.command(Command::Promote);
    assert_eq!(harness.shown(), "Progressing a 50 b 50");
    harness.command(Command::Promote);
    assert_eq!(harness.shown(), "Running b 100");
    let mut harness = Harness::rolling_out(thresholds(&[20, 50]));
    harness.command(Command::PromoteFull);
    assert_eq!(harness.shown(), "Running b 100");
}

#[test]
fn candidate_that_is_not_ready_is_not_promoted() {
    for command in [Command::Promote, Command::PromoteFull] {
        let mut harness = Harness::new(thresholds(&[20]));
        harness.desire("b");
        harness.command(command);
        assert_eq!(harness.shown(), "Progressing a 100");
        assert_eq!(rejection(&harness), Some(CommandRejection::NotReady));
    }
}

#[test]
fn approval_is_needed_after_the_checks() {
    let weight = Percent::new(20).unwrap();
    let steps = CanarySteps::new(vec![Step { weight, hold: 0, approval: true }]).unwrap();
    let mut harness = Harness::rolling_out(RolloutPolicy {
        rules: thresholds(&[20]).rules,
        ..RolloutPolicy::new(Strategy::Canary(steps))
    });
    harness.check(GOOD, GOOD);
    assert_eq!(harness.events.last(), Some(&Event::ApprovalNeeded { revision: "b".into() }));
    (0..50).for_each(|_| harness.wait(60_000));
    assert_eq!(harness.shown(), "Progressing a 80 b 20", "the deadline does not run");
    harness.command(Command::Promote);
    assert_eq!(harness.shown(), "Running b 100");
}

#[test]
fn command_is_handled_once() {
    let mut harness = Harness::rolling_out(thresholds(&[20, 50, 80]));
    let request = Request { id: 7, command: Command::Promote };
    harness.step(None, Some(&request));
    harness.step(None, Some(&request));
    harness.step(None, Some(&Request { id: 6, command: Command::Abort }));
    assert_eq!(harness.shown(), "Progressing a 50 b 50");
}

#[test]
fn retry_of_a_revision_that_has_not_failed_is_rejected() {
    let mut harness = Harness::new(thresholds(&[20]));
    harness.command(Command::Retry { revision: "b".into() });
    assert_eq!(rejection(&harness), Some(CommandRejection::NotFailed));
}

#[test]
fn undo_returns_to_the_previous_revision() {
    let mut harness = Harness::rolling_out(thresholds(&[20]));
    harness.command(Command::Undo);
    assert_eq!(rejection(&harness), Some(CommandRejection::NothingToUndo));
    harness.check(GOOD, GOOD);
    assert_eq!(harness.shown(), "Running b 100");
    // After the bake the previous revision has been unloaded.
    (0..20).for_each(|_| harness.wait(60_000));
    assert_eq!(harness.stored.state.retained(), ["b".into()]);
    harness.set_ready("a", Readiness::NotReady);
    harness.command(Command::Undo);
    assert_eq!(harness.shown(), "Reverting b 100", "b serves until a is ready");
    assert_eq!(harness.stored.state.retained(), ["a".into(), "b".into()]);
    harness.set_ready("a", Readiness::Ready);
    assert_eq!(harness.shown(), "Running a 100");
    assert_eq!(harness.failure(), Some(("b", Reason::Undone)));
    (0..20).for_each(|_| harness.wait(60_000));
    assert_eq!(harness.shown(), "Running a 100", "the spec still has b");
    harness.command(Command::Undo);
    assert_eq!(rejection(&harness), Some(CommandRejection::NothingToUndo), "no ping-pong");
}
