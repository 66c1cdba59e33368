//! Reasons of steps that do not run, and joins of other pipelines. The table has the other cases.

use super::*;

/// Servers refuse them; the graph does not depend on it.
#[test]
fn selection_passes_on_two_tensors_of_the_same_name() {
    let definition = pipeline(vec![step("a", &[]), step("b", &["a.outputs.t"])], &["b.inputs"]);
    let (response, _) = execute(&definition, &["x"], |_, _| vec!["t", "t"]);
    assert_eq!(response, "t=a(x=1),t=a(x=1)");
}

/// Gateways refuse it.
#[test]
fn request_without_tensors_has_no_output() {
    let (error, ran) = execute(&pipeline(vec![step("a", &[])], &["a"]), &[], |_, _| vec!["y"]);
    let expected = "no output for this request: step a did not run: p.inputs has no tensors";
    assert_eq!((&*error, &*ran), (expected, ""));
}

#[test]
fn skipped_steps_name_the_reason() {
    let steps = vec![
        step("tokenize", &[]),
        step("classify", &["tokenize"]),
        step("explain", &["classify.outputs.uncertain"]),
        step("report", &["explain"]),
        step("late", &["slow"]),
        step("slow", &[]),
    ];
    let mut run = Run::start(pipeline(steps, &["classify"]).graph(), tensors(&["text"]), 0);
    while let Some(Invocation { step, inputs }) = run.next() {
        let name = run.graph().step_name(step).clone();
        if &*name != "slow" {
            run.complete(step, outputs(&name, &["y"], &inputs), 0);
        }
    }
    assert_eq!(run.in_flight().map(|name| &**name).collect::<Vec<_>>(), ["slow"]);
    assert!(run.outcome().unwrap().is_ok());
    assert!(run.outcome().is_none(), "the outcome is returned once");
    let skipped = run.skipped();
    let skipped: Vec<_> = skipped.iter().map(|skipped| (&*skipped.step, &*skipped.reason)).collect();
    assert_eq!(
        skipped,
        [
            ("explain", "tensor classify.uncertain is absent"),
            ("report", "step explain did not run"),
            ("late", "the request ended before step slow did"),
        ]
    );
}

#[test]
fn completion_of_a_step_that_is_not_in_flight_is_ignored() {
    let graph = pipeline(vec![step("a", &[]), step("b", &["a"])], &["b"]).graph();
    let mut run = Run::start(graph.clone(), tensors(&["x"]), 0);
    run.complete(StepId(1), tensors(&["y"]), 0);
    run.complete(StepId(7), tensors(&["y"]), 0);
    assert!(run.outcome().is_none());
    let first = run.next().unwrap();
    run.complete(first.step, tensors(&["y"]), 0);
    run.complete(first.step, tensors(&["z"]), 0);
    let second = run.next().unwrap();
    assert_eq!((graph.step_name(second.step).as_ref(), shown(&second.inputs)), ("b", "y=1".into()));
    assert!(run.next().is_none());
}

#[test]
fn reason_does_not_name_a_step_that_is_in_flight() {
    let graph = pipeline(vec![step("a", &[]), step("b", &[])], &["a.outputs.t", "b.outputs.t"]).graph();
    let mut run = Run::start(graph, tensors(&["x"]), 0);
    let (_, b) = (run.next().unwrap(), run.next().unwrap());
    run.complete(b.step, tensors(&["u"]), 0);
    let reason = "tensor b.t is absent".to_owned();
    assert_eq!(run.outcome(), Some(Err(RunError::NoOutput { reason })));
}

/// What has arrived of `left` and `right`: `None` if its run has not ended.
#[test]
fn join_of_other_pipelines_waits_for_their_runs() {
    use JoinStatus::{Impossible, Ready, Waiting};
    let (y, none) = (Some(true), Some(false));
    for (join, left, right, open, closed) in [
        (Join::Inner, y, None, Waiting, Impossible),
        (Join::Inner, y, y, Ready, Ready),
        (Join::Inner, none, None, Impossible, Impossible),
        (Join::Outer, y, None, Waiting, Ready),
        (Join::Outer, none, None, Waiting, Impossible),
        (Join::Outer, none, y, Ready, Ready),
        (Join::Outer, none, none, Impossible, Impossible),
        (Join::Any, y, None, Ready, Ready),
        (Join::Any, none, None, Waiting, Impossible),
        (Join::Any, none, none, Impossible, Impossible),
    ] {
        let external = list(&["left.outputs", "right.outputs"]);
        for triggers in [false, true] {
            let input = if triggers {
                let (external_inputs, external_triggers) = (list(&["left.inputs"]), external.clone());
                Input { external_inputs, external_triggers, triggers_join: join, ..Input::default() }
            } else {
                Input { external_inputs: external.clone(), join, ..Input::default() }
            };
            let graph = Definition { input: Some(input), ..pipeline(vec![step("a", &[])], &["a"]) }.graph();
            let externals = graph.external().unwrap();
            let mut data = ExternalJoin::new(externals);
            for (name, arrived) in [("left", left), ("right", right)] {
                let Some(arrived) = arrived else { continue };
                let is_there = |source: &External| arrived || source.kind == ExternalKind::Inputs;
                let is_source = |source: &External| &*source.pipeline == name;
                data.arrive(externals, is_source, |s| tensors(if is_there(s) { &["y"] } else { &[] }));
            }
            let found = (data.status(externals, false), data.status(externals, true));
            assert_eq!(found, (open, closed), "{join:?} {left:?} {right:?} {triggers}");
        }
    }
}
