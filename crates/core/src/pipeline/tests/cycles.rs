//! Pipelines with cycles, beyond those of the table.

use super::*;

/// A counter that continues until it has run `n` times.
pub(super) fn counter(revisits: u32) -> Definition {
    pipeline(
        vec![
            step("count", &["p.inputs", "loop.outputs"]).any(),
            step("end", &["count.outputs.n"]).triggers(&["count.outputs.stop"]),
            step("loop", &["count.outputs.n"]).triggers(&["count.outputs.continue"]),
        ],
        &["end"],
    )
    .cyclic(revisits)
}

fn counts_to(n: usize) -> impl Fn(&str, usize) -> Vec<&'static str> {
    move |step, before| match step {
        "count" if before + 1 < n => vec!["n", "continue"],
        "count" => vec!["n", "stop"],
        _ => vec!["y"],
    }
}

#[test]
fn no_step_starts_after_too_many_revisits() {
    let mut definition = counter(0);
    definition.steps.push(step("slow", &[]));
    definition.steps.push(step("after", &["slow"]));
    let mut run = Run::start(definition.graph(), tensors(&["x"]), 0);
    let (count, slow) = (run.next().unwrap(), run.next().unwrap());
    run.complete(count.step, tensors(&["n", "continue"]), 0);
    let again = run.next().unwrap();
    run.complete(again.step, tensors(&["y"]), 0);
    assert!(matches!(run.outcome(), Some(Err(RunError::TooManyRevisits { limit: 0, .. }))));
    run.complete(slow.step, tensors(&["y"]), 0);
    assert!(run.next().is_none());
}

#[test]
fn round_with_an_absent_source_is_not_joined_with_the_next() {
    // In the first round `l` returns no tensor for the join, and `r` arrives after it.
    let definition = pipeline(
        vec![
            step("head", &["p", "back"]).any(),
            step("l", &["head"]),
            step("r", &["head"]),
            step("back", &["r.outputs.again"]),
            step("join", &["l.outputs.t", "r"]),
        ],
        &["join"],
    )
    .cyclic(5);
    let (response, ran) = execute(&definition, &["x"], |step, before| match (step, before) {
        ("l", 0) => vec!["other"],
        ("l", _) => vec!["t"],
        ("r", 0) => vec!["again"],
        _ => vec!["y"],
    });
    assert_eq!(ran, "head l r back head l r join");
    let head = "y=head(y=back(again=r(y=head(x=1))))";
    assert_eq!(response, format!("y=join(t=l({head}),y=r({head}))"));
}

#[test]
fn outer_join_after_a_cycle_runs_after_the_cycle() {
    // After the first round, both `after` and `head` wait with nothing in flight.
    let definition = pipeline(
        vec![
            step("after", &["head.outputs.partial", "l.outputs.done"]).outer(),
            step("head", &["p", "l", "r"]).outer(),
            step("l", &["head.outputs.again"]),
            step("r", &["head.outputs.other"]),
        ],
        &["after"],
    )
    .cyclic(3);
    let (response, ran) = execute(&definition, &["x"], |step, before| match (step, before) {
        ("head", _) => vec!["partial", "again"],
        ("l", 1) => vec!["done"],
        _ => vec!["y"],
    });
    assert_eq!(ran, "head l head l after");
    assert!(response.starts_with("y=after(partial=head(x=1,y=l("), "{response}");
}

#[test]
fn any_join_on_a_cycle_uses_one_arrival_per_run() {
    let definition = pipeline(
        vec![
            step("work", &["p", "l", "r"]).any().triggers(&["tick"]),
            step("tick", &["p", "work"]).any(),
            step("l", &["tick"]),
            step("r", &["tick"]),
        ],
        &["work.outputs.done"],
    )
    .cyclic(5);
    let mut run = Run::start(definition.graph(), tensors(&["x"]), 0);
    let tick = |run: &mut Run<Traced>| {
        let tick = run.next().unwrap();
        run.complete(tick.step, tensors(&["y"]), 0);
        let started: Vec<_> = std::iter::from_fn(|| run.next()).collect();
        started.into_iter().map(|next| (run.graph().step_name(next.step).to_string(), next)).collect()
    };
    let started: BTreeMap<String, Invocation<Traced>> = tick(&mut run);
    assert_eq!(shown(&started["work"].inputs), "x=1");
    run.complete(started["r"].step, tensors(&["from-r"]), 0);
    run.complete(started["l"].step, tensors(&["from-l"]), 0);
    run.complete(started["work"].step, tensors(&["y"]), 0);
    let started = tick(&mut run);
    assert_eq!(shown(&started["work"].inputs), "from-r=1");
    run.complete(started["work"].step, tensors(&["y"]), 0);
    let started = tick(&mut run);
    assert_eq!(shown(&started["work"].inputs), "from-l=1");
}

#[test]
fn steps_before_a_cycle_run_once() {
    // Both sources of `b` arrive, but without a cycle behind them one run is all.
    let mut definition = counter(10);
    definition.steps.push(step("a", &[]));
    definition.steps.push(step("b", &["p", "a"]).any());
    let (_, ran) = execute(&definition, &["x"], counts_to(2));
    assert_eq!(ran.split(' ').filter(|step| *step == "b").count(), 1);
}
