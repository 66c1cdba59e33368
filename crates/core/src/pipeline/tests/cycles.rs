//! Pipelines with cycles.

use super::*;

/// Executes a request with models that see how often they have run. Steps complete in the order in which they start.
fn execute(
    definition: &Definition,
    request: &[&str],
    model: impl Fn(&str, usize) -> Vec<&'static str>,
) -> (String, String) {
    let mut run = Run::start(definition.graph(), tensors(request), 0);
    let mut ran: Vec<String> = Vec::new();
    while let Some(Invocation { step, inputs }) = run.next() {
        let name = run.graph().step_name(step).clone();
        let before = ran.iter().filter(|ran| **ran == *name).count();
        ran.push(name.to_string());
        assert!(ran.len() < 1_000, "the run does not end");
        run.complete(step, outputs(&name, &model(&name, before), &inputs), 0);
        if let Some(outcome) = run.outcome() {
            return match outcome {
                Ok(tensors) => (shown(&tensors), ran.join(" ")),
                Err(error) => (error.to_string(), ran.join(" ")),
            };
        }
    }
    (run.outcome().expect("decided when nothing is in flight").unwrap_err().to_string(), ran.join(" "))
}

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
fn loop_runs_until_its_trigger_is_absent() {
    let (response, ran) = execute(&counter(10), &["x"], counts_to(3));
    assert_eq!(ran, "count loop count loop count end");
    assert_eq!(response, "y=end(n=count(y=loop(n=count(y=loop(n=count(x=1))))))");
    let (response, ran) = execute(&counter(0), &["x"], counts_to(1));
    assert_eq!((&*response, &*ran), ("y=end(n=count(x=1))", "count end"));
}

#[test]
fn step_runs_at_most_the_revisits_more() {
    let (_, ran) = execute(&counter(2), &["x"], counts_to(3));
    assert_eq!(ran, "count loop count loop count end");
    let (error, ran) = execute(&counter(1), &["x"], counts_to(3));
    assert_eq!(error, "ERROR: Max step revisits (1) exceeded in step count");
    assert_eq!(ran, "count loop count loop");
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
fn source_outside_the_cycle_is_joined_in_each_round() {
    let definition = pipeline(
        vec![
            step("first", &["p.inputs.x"]),
            step("head", &["first", "tail.outputs.again"]).any(),
            step("tail", &["head", "p.inputs.x"]),
        ],
        &["tail.outputs.done"],
    )
    .cyclic(5);
    let (response, ran) = execute(&definition, &["x"], |step, before| match (step, before) {
        ("tail", 0) => vec!["again"],
        ("tail", _) => vec!["done"],
        _ => vec!["y"],
    });
    assert_eq!(ran, "first head tail head tail");
    assert_eq!(response, "done=tail(y=head(again=tail(y=head(y=first(x=1)),x=1)),x=1)");
}

#[test]
fn inner_join_on_a_cycle_does_not_mix_rounds() {
    let definition = pipeline(
        vec![
            step("head", &["p", "join.outputs.again"]).any(),
            step("l", &["head"]),
            step("r", &["head"]),
            step("join", &["l", "r"]),
        ],
        &["join.outputs.done"],
    )
    .cyclic(5);
    let (response, ran) = execute(&definition, &["x"], |step, before| match (step, before) {
        ("join", 0) => vec!["again"],
        ("join", _) => vec!["done"],
        _ => vec!["y"],
    });
    assert_eq!(ran, "head l r join head l r join");
    let round = "again=join(y=l(y=head(x=1)),y=r(y=head(x=1)))";
    assert_eq!(response, format!("done=join(y=l(y=head({round})),y=r(y=head({round})))"));
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
fn outer_join_on_a_cycle_runs_when_nothing_is_in_flight() {
    let definition = pipeline(
        vec![step("head", &["p", "tail"]).outer(), step("tail", &["head.outputs.again"])],
        &["head.outputs.done"],
    )
    .cyclic(3);
    let (response, ran) = execute(&definition, &["x"], |step, before| match (step, before) {
        ("head", 0) => vec!["again"],
        ("head", _) => vec!["done"],
        _ => vec!["y"],
    });
    assert_eq!(ran, "head tail head");
    // The pipeline's inputs are outside the cycle, so each round joins them.
    assert_eq!(response, "done=head(x=1,y=tail(again=head(x=1)))");
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
fn outer_join_does_not_run_again_without_an_arrival() {
    let steps = vec![step("head", &["p", "tail"]).outer(), step("tail", &["head.outputs.again"])];
    let definition = pipeline(steps, &["head.outputs.done"]).cyclic(3);
    let (error, ran) = execute(&definition, &["x"], |_, _| vec!["y"]);
    assert_eq!((&*error, &*ran), ("no output for this request: tensor head.done is absent", "head"));
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
fn deadlock_on_a_cycle_is_an_error() {
    let definition = pipeline(vec![step("a", &["b"]), step("b", &["a", "p"])], &["b"]).cyclic(3);
    let (error, ran) = execute(&definition, &["x"], |_, _| vec!["y"]);
    assert_eq!(ran, "");
    assert_eq!(
        error,
        "no output for this request: step b did not run, as step a did not run: it waits for a step of its own cycle"
    );
}

#[test]
fn loop_that_never_stops_at_its_trigger_has_no_output() {
    let (error, ran) = execute(&counter(10), &["x"], |_, _| vec!["n"]);
    assert_eq!(ran, "count");
    assert_eq!(error, "no output for this request: step end did not run: tensor count.stop is absent");
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
