//! Windows of outer joins.

use super::*;

/// Starts a run and takes the steps that start at once.
fn start(definition: &Definition, now: u64) -> (Run<Traced>, BTreeMap<String, Invocation<Traced>>) {
    let mut run = Run::start(definition.graph(), tensors(&["x"]), now);
    let started = take(&mut run);
    (run, started)
}

fn take(run: &mut Run<Traced>) -> BTreeMap<String, Invocation<Traced>> {
    std::iter::from_fn(|| run.next().map(|next| (run.graph().step_name(next.step).to_string(), next)))
        .collect()
}

#[test]
fn outer_join_runs_with_what_arrived_when_its_window_closes() {
    let join = Step { join_window_ms: Some(500), ..step("c", &["a", "b"]).outer() };
    let (mut run, started) = start(&pipeline(vec![step("a", &[]), step("b", &[]), join], &["c"]), 1_000);
    assert_eq!(run.wake_at(), None);
    run.complete(started["b"].step, tensors(&["y"]), 1_200);
    assert_eq!(run.wake_at(), Some(1_700));
    run.tick(1_699);
    assert!(run.next().is_none());
    run.tick(1_700);
    let joined = run.next().unwrap();
    assert_eq!(shown(&joined.inputs), "y=1");
    assert_eq!(run.wake_at(), None);
    // A late arrival does not run the step again.
    run.complete(started["a"].step, tensors(&["late"]), 1_800);
    assert!(run.next().is_none());
    run.complete(joined.step, tensors(&["z"]), 1_900);
    assert_eq!(shown(&run.outcome().unwrap().unwrap()), "z=1");
}

#[test]
fn window_starts_with_the_first_arrival_and_ends_with_the_last() {
    let join = step("c", &["a", "b", "d"]).outer();
    let (mut run, started) =
        start(&pipeline(vec![step("a", &[]), step("b", &[]), step("d", &[]), join], &["c"]), 0);
    run.complete(started["a"].step, tensors(&["t"]), 10);
    run.complete(started["b"].step, tensors(&["u"]), 20);
    assert_eq!(run.wake_at(), Some(60_010), "default window");
    run.complete(started["d"].step, tensors(&["v"]), 30);
    assert_eq!(run.wake_at(), None);
    assert_eq!(shown(&run.next().unwrap().inputs), "t=1,u=1,v=1");
}

#[test]
fn absence_completes_an_outer_join_before_its_window() {
    let steps = vec![step("a", &[]), step("b", &["a.outputs.t"]), step("c", &["a", "b"]).outer()];
    let (mut run, started) = start(&pipeline(steps, &["c"]), 0);
    run.complete(started["a"].step, tensors(&["y"]), 10);
    assert_eq!(run.wake_at(), None);
    assert_eq!(shown(&run.next().unwrap().inputs), "y=1");
}

#[test]
fn triggers_have_their_own_window() {
    let steps = vec![
        step("a", &[]),
        step("b", &[]),
        Step { join_window_ms: Some(100), ..step("c", &[]).triggers(&["a", "b"]).triggers_join(Join::Outer) },
    ];
    let (mut run, started) = start(&pipeline(steps, &["c"]), 0);
    run.complete(started["a"].step, tensors(&["y"]), 50);
    assert_eq!(run.wake_at(), Some(150));
    run.tick(150);
    assert_eq!(shown(&run.next().unwrap().inputs), "x=1");
}

#[test]
fn output_has_a_window_and_zero_selects_the_default() {
    for (written, closes) in [(0, 60_005), (20, 25)] {
        let mut definition =
            pipeline(vec![step("a", &[]), step("b", &[])], &["a", "b"]).output_join(Join::Outer);
        definition.output.as_mut().unwrap().join_window_ms = written;
        let (mut run, started) = start(&definition, 0);
        run.complete(started["a"].step, tensors(&["y"]), 5);
        assert_eq!(run.wake_at(), Some(closes));
        assert!(run.outcome().is_none());
        run.tick(closes);
        assert_eq!(shown(&run.outcome().unwrap().unwrap()), "y=1");
        assert_eq!(run.in_flight().count(), 1);
    }
}

#[test]
fn window_of_an_inner_join_has_no_effect() {
    let join = Step { join_window_ms: Some(1), ..step("c", &["a", "b"]) };
    let (mut run, started) = start(&pipeline(vec![step("a", &[]), step("b", &[]), join], &["c"]), 0);
    run.complete(started["a"].step, tensors(&["t"]), 10);
    assert_eq!(run.wake_at(), None);
    run.tick(1_000);
    run.complete(started["b"].step, tensors(&["u"]), 2_000);
    assert_eq!(shown(&run.next().unwrap().inputs), "t=1,u=1");
}
