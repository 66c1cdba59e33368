//! Joins, triggers, conditional flow and tensor maps of acyclic pipelines.

use super::*;

struct Case {
    about: &'static str,
    pipeline: Definition,
    request: &'static [&'static str],
    models: Models<'static>,
    response: &'static str,
    ran: &'static str,
}

fn check(cases: Vec<Case>) {
    for case in cases {
        let (response, ran) = execute(&case.pipeline, case.request, case.models);
        assert_eq!((&*response, &*ran), (case.response, case.ran), "{}", case.about);
    }
}

#[test]
fn sources_reach_the_step_that_names_them() {
    check(vec![
        Case {
            about: "one step",
            pipeline: pipeline(vec![step("a", &[])], &["a"]),
            request: &["x"],
            models: &[],
            response: "y=a(x=1)",
            ran: "a",
        },
        Case {
            about: "chain",
            pipeline: pipeline(vec![step("a", &[]), step("b", &["a"]), step("c", &["b.outputs"])], &["c"]),
            request: &["x"],
            models: &[],
            response: "y=c(y=b(y=a(x=1)))",
            ran: "a b c",
        },
        Case {
            about: "steps in any order of the definition",
            pipeline: pipeline(vec![step("c", &["b"]), step("b", &["a"]), step("a", &["p"])], &["c"]),
            request: &["x"],
            models: &[],
            response: "y=c(y=b(y=a(x=1)))",
            ran: "a b c",
        },
        Case {
            about: "inputs of a step after its renames",
            pipeline: pipeline(
                vec![step("a", &["p.inputs.x"]).renames(&[("p.inputs.x", "z")]), step("b", &["a.inputs"])],
                &["b"],
            ),
            request: &["x", "w"],
            models: &[],
            response: "y=b(z=1)",
            ran: "a b",
        },
        Case {
            about: "inputs of a step as output",
            pipeline: pipeline(vec![step("a", &[])], &["a.inputs.x"]),
            request: &["w", "x"],
            models: &[],
            response: "x=1",
            ran: "a",
        },
        Case {
            about: "selected tensors keep the order of the response",
            pipeline: pipeline(
                vec![step("a", &[]), step("b", &["a.outputs.u", "a.outputs.t"])],
                &["b.inputs"],
            ),
            request: &["x"],
            models: &[("a", &["t", "s", "u"])],
            response: "t=a(x=1),u=a(x=1)",
            ran: "a b",
        },
        Case {
            about: "a name beside its tensors selects the tensors",
            pipeline: pipeline(vec![step("a", &[]), step("b", &["a", "a.outputs.t"])], &["b.inputs"]),
            request: &["x"],
            models: &[("a", &["s", "t"])],
            response: "t=a(x=1)",
            ran: "a b",
        },
        Case {
            about: "output without steps is the pipeline's inputs",
            pipeline: pipeline(vec![step("a", &[])], &[]),
            request: &["x"],
            models: &[],
            response: "x=1",
            ran: "a",
        },
        Case {
            about: "two tensors of the same name",
            pipeline: pipeline(vec![step("a", &[]), step("b", &["a.outputs.t"])], &["b.inputs"]),
            request: &["x"],
            models: &[("a", &["t", "t"])],
            response: "t=a(x=1),t=a(x=1)",
            ran: "a b",
        },
        Case {
            about: "no output",
            pipeline: Definition { output: None, ..pipeline(vec![step("a", &[]), step("b", &["a"])], &[]) },
            request: &["x"],
            models: &[],
            response: "no output for this request: the pipeline has no output: add output.steps",
            ran: "a b",
        },
        Case {
            about: "request without tensors",
            pipeline: pipeline(vec![step("a", &[])], &["a"]),
            request: &[],
            models: &[],
            response: "no output for this request: step a did not run: p.inputs has no tensors",
            ran: "",
        },
    ]);
}

#[test]
fn joins_wait_for_what_their_type_needs() {
    let diamond = |join: fn(Step) -> Step| {
        pipeline(vec![step("a", &[]), step("b", &["p.inputs.x"]), join(step("c", &["b", "a"]))], &["c"])
    };
    check(vec![
        Case {
            about: "inner join in the written order",
            pipeline: diamond(|s| s),
            request: &["x"],
            models: &[],
            response: "y=c(y=b(x=1),y=a(x=1))",
            ran: "a b c",
        },
        Case {
            about: "inner join without one source",
            pipeline: diamond(|s| s),
            request: &["w"],
            models: &[],
            response: "no output for this request: step c did not run, as step b did not run: tensor p.inputs.x is absent",
            ran: "a",
        },
        Case {
            about: "outer join of both",
            pipeline: diamond(Step::outer),
            request: &["x"],
            models: &[],
            response: "y=c(y=b(x=1),y=a(x=1))",
            ran: "a b c",
        },
        Case {
            about: "outer join without one source",
            pipeline: diamond(Step::outer),
            request: &["w"],
            models: &[],
            response: "y=c(y=a(w=1))",
            ran: "a c",
        },
        Case {
            about: "any join takes the first",
            pipeline: diamond(Step::any),
            request: &["x"],
            models: &[],
            response: "y=c(y=a(x=1))",
            ran: "a b c",
        },
        Case {
            about: "any join without one source",
            pipeline: diamond(Step::any),
            request: &["w"],
            models: &[],
            response: "y=c(y=a(w=1))",
            ran: "a c",
        },
        Case {
            about: "outer join of absent sources",
            pipeline: pipeline(
                vec![step("a", &["p.inputs.u"]), step("b", &["p.inputs.v"]), step("c", &["a", "b"]).outer()],
                &["c"],
            ),
            request: &["w"],
            models: &[],
            response: "no output for this request: step c did not run, as step a did not run: tensor p.inputs.u is absent",
            ran: "",
        },
        Case {
            about: "output joins inner",
            pipeline: pipeline(vec![step("a", &[]), step("b", &[])], &["b", "a"]),
            request: &["x"],
            models: &[("a", &["s"])],
            response: "y=b(x=1),s=a(x=1)",
            ran: "a b",
        },
        Case {
            about: "output joins outer",
            pipeline: pipeline(vec![step("a", &[]), step("b", &["p.inputs.v"])], &["b", "a"])
                .output_join(Join::Outer),
            request: &["x"],
            models: &[],
            response: "y=a(x=1)",
            ran: "a",
        },
        Case {
            about: "output joins any and the other step still runs",
            pipeline: pipeline(vec![step("a", &[]), step("b", &[])], &["b", "a"]).output_join(Join::Any),
            request: &["x"],
            models: &[],
            response: "y=a(x=1)",
            ran: "a b",
        },
        Case {
            about: "output names every absent source",
            pipeline: pipeline(vec![step("a", &["p.inputs.u"]), step("b", &["p.inputs.v"])], &["a", "b"])
                .output_join(Join::Any),
            request: &["x"],
            models: &[],
            response: "no output for this request: step a did not run: tensor p.inputs.u is absent; \
                       step b did not run: tensor p.inputs.v is absent",
            ran: "",
        },
    ]);
}

#[test]
fn absent_tensors_select_the_path() {
    let choice = || {
        pipeline(
            vec![
                step("choose", &[]),
                step("left", &["p.inputs.x"]).triggers(&["choose.outputs.l"]),
                step("right", &["p.inputs.x"]).triggers(&["choose.outputs.r"]),
            ],
            &["left", "right"],
        )
        .output_join(Join::Any)
    };
    let after = |join: fn(Step) -> Step| {
        pipeline(
            vec![
                step("a", &[]),
                step("b", &["a.outputs.t"]),
                step("c", &["b"]),
                join(step("d", &["a.outputs.s", "c"])),
            ],
            &["d"],
        )
    };
    check(vec![
        Case {
            about: "left",
            pipeline: choice(),
            request: &["x"],
            models: &[("choose", &["l"])],
            response: "y=left(x=1)",
            ran: "choose left",
        },
        Case {
            about: "right",
            pipeline: choice(),
            request: &["x"],
            models: &[("choose", &["r"])],
            response: "y=right(x=1)",
            ran: "choose right",
        },
        Case {
            about: "neither",
            pipeline: choice(),
            request: &["x"],
            models: &[("choose", &["other"])],
            response: "no output for this request: step left did not run: tensor choose.l is absent; \
                       step right did not run: tensor choose.r is absent",
            ran: "choose",
        },
        Case {
            about: "absence passes through a chain to an inner join",
            pipeline: after(|s| s),
            request: &["x"],
            models: &[("a", &["s"])],
            response: "no output for this request: step d did not run, as step b did not run: tensor a.t is absent",
            ran: "a",
        },
        Case {
            about: "absence passes through a chain to an outer join",
            pipeline: after(Step::outer),
            request: &["x"],
            models: &[("a", &["s"])],
            response: "y=d(s=a(x=1))",
            ran: "a d",
        },
        Case {
            about: "one of several tensors of a source suffices",
            pipeline: pipeline(vec![step("a", &["p.inputs.u", "p.inputs.v"])], &["a"]),
            request: &["v"],
            models: &[],
            response: "y=a(v=1)",
            ran: "a",
        },
        Case {
            about: "all tensors of a source are absent",
            pipeline: pipeline(vec![step("a", &["p.inputs.u", "p.inputs.v"])], &["a"]),
            request: &["w"],
            models: &[],
            response: "no output for this request: step a did not run: tensors p.inputs.u, p.inputs.v are absent",
            ran: "",
        },
        Case {
            about: "a response without tensors",
            pipeline: pipeline(vec![step("a", &[]), step("b", &["a"])], &["b"]),
            request: &["x"],
            models: &[("a", &[])],
            response: "no output for this request: step b did not run: a.outputs has no tensors",
            ran: "a",
        },
        Case {
            about: "inputs of a step that does not run",
            pipeline: pipeline(
                vec![step("a", &["p.inputs.u"]), step("b", &["a.inputs", "p"]).outer()],
                &["b"],
            ),
            request: &["x"],
            models: &[],
            response: "y=b(x=1)",
            ran: "b",
        },
        Case {
            about: "the pipeline's own outputs",
            pipeline: pipeline(vec![step("a", &["p.outputs"]), step("b", &[])], &["a", "b"])
                .output_join(Join::Outer),
            request: &["x"],
            models: &[],
            response: "y=b(x=1)",
            ran: "b",
        },
    ]);
}

#[test]
fn triggers_delay_a_step_and_pass_no_data() {
    let triggered = |join| {
        pipeline(
            vec![
                step("a", &["p.inputs.x"]),
                step("b", &["p.inputs.v"]),
                step("c", &["p.inputs.x"]).triggers(&["a", "b"]).triggers_join(join),
            ],
            &["c"],
        )
    };
    check(vec![
        Case {
            about: "inner: all",
            pipeline: triggered(Join::Inner),
            request: &["x", "v"],
            models: &[],
            response: "y=c(x=1)",
            ran: "a b c",
        },
        Case {
            about: "inner: one is absent",
            pipeline: triggered(Join::Inner),
            request: &["x"],
            models: &[],
            response: "no output for this request: step c did not run, as step b did not run: tensor p.inputs.v is absent",
            ran: "a",
        },
        Case {
            about: "outer: one is absent",
            pipeline: triggered(Join::Outer),
            request: &["x"],
            models: &[],
            response: "y=c(x=1)",
            ran: "a c",
        },
        Case {
            about: "any: the first",
            pipeline: triggered(Join::Any),
            request: &["x", "v"],
            models: &[],
            response: "y=c(x=1)",
            ran: "a b c",
        },
        Case {
            about: "any: one is absent",
            pipeline: triggered(Join::Any),
            request: &["x"],
            models: &[],
            response: "y=c(x=1)",
            ran: "a c",
        },
        Case {
            about: "tensors of the request",
            pipeline: pipeline(vec![step("a", &["p.inputs.x"]).triggers(&["p.inputs.ok"])], &["a"]),
            request: &["x", "ok"],
            models: &[],
            response: "y=a(x=1)",
            ran: "a",
        },
        Case {
            about: "absent tensor of the request",
            pipeline: pipeline(vec![step("a", &["p.inputs.x"]).triggers(&["p.inputs.ok"])], &["a"]),
            request: &["x"],
            models: &[],
            response: "no output for this request: step a did not run: tensor p.inputs.ok is absent",
            ran: "",
        },
        Case {
            about: "trigger without inputs",
            pipeline: pipeline(vec![step("a", &[]), step("b", &[]).triggers(&["a"])], &["b"]),
            request: &["x"],
            models: &[],
            response: "y=b(x=1)",
            ran: "a b",
        },
        Case {
            about: "any inputs wait for the trigger and keep the first",
            pipeline: pipeline(
                vec![
                    step("a", &[]),
                    step("b", &["a"]),
                    step("c", &["b"]),
                    step("d", &["a", "b"]).any().triggers(&["c"]),
                ],
                &["d"],
            ),
            request: &["x"],
            models: &[],
            response: "y=d(y=a(x=1))",
            ran: "a b c d",
        },
    ]);
}

#[test]
fn tensor_maps_rename_per_reader() {
    check(vec![
        Case {
            about: "a selected tensor",
            pipeline: pipeline(
                vec![step("a", &[]), step("b", &["a.outputs.t"]).renames(&[("a.outputs.t", "z")])],
                &["b.inputs"],
            ),
            request: &["x"],
            models: &[("a", &["t", "s"])],
            response: "z=a(x=1)",
            ran: "a b",
        },
        Case {
            about: "one of all tensors",
            pipeline: pipeline(
                vec![step("a", &[]), step("b", &["a"]).renames(&[("a.outputs.t", "z")])],
                &["b.inputs"],
            ),
            request: &["x"],
            models: &[("a", &["s", "t"])],
            response: "s=a(x=1),z=a(x=1)",
            ran: "a b",
        },
        Case {
            about: "other readers keep the name",
            pipeline: pipeline(
                vec![
                    step("a", &[]),
                    step("b", &["a"]).renames(&[("a.outputs.t", "z")]),
                    step("c", &["a"]),
                    step("d", &["a.outputs.t"]),
                ],
                &["b.inputs", "c.inputs", "d.inputs"],
            ),
            request: &["x"],
            models: &[("a", &["t"])],
            response: "z=a(x=1),t=a(x=1),t=a(x=1)",
            ran: "a b c d",
        },
        Case {
            about: "two sources with the same tensor",
            pipeline: pipeline(
                vec![
                    step("a", &[]),
                    step("b", &[]),
                    step("c", &["a", "b"]).renames(&[("a.outputs.y", "left"), ("b.outputs.y", "right")]),
                ],
                &["c.inputs"],
            ),
            request: &["x"],
            models: &[],
            response: "left=a(x=1),right=b(x=1)",
            ran: "a b c",
        },
        Case {
            about: "pipeline inputs and the output",
            pipeline: pipeline(vec![step("a", &[]).renames(&[("p.inputs.x", "z")])], &["a"])
                .output_renames(&[("a.outputs.y", "result")]),
            request: &["x"],
            models: &[],
            response: "result=a(z=1)",
            ran: "a",
        },
        Case {
            about: "keys of other steps, of tensors that are not selected and without a tensor have no effect",
            pipeline: pipeline(
                vec![
                    step("a", &[]),
                    step("b", &["a.outputs.t"]).renames(&[
                        ("a.outputs.s", "z"),
                        ("a.inputs.t", "z"),
                        ("c.outputs.t", "z"),
                        ("a.t", "z"),
                        ("a", "z"),
                    ]),
                ],
                &["b.inputs"],
            ),
            request: &["x"],
            models: &[("a", &["s", "t"])],
            response: "t=a(x=1)",
            ran: "a b",
        },
        Case {
            about: "a tensor's name with dots",
            pipeline: pipeline(
                vec![step("a", &[]), step("b", &["a"]).renames(&[("a.outputs.t.0", "z")])],
                &["b.inputs"],
            ),
            request: &["x"],
            models: &[("a", &["t.0"])],
            response: "z=a(x=1)",
            ran: "a b",
        },
    ]);
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
                data.arrive(externals, name, |source| tensors(if is_there(source) { &["y"] } else { &[] }));
            }
            let found = (data.status(externals, false), data.status(externals, true));
            assert_eq!(found, (open, closed), "{join:?} {left:?} {right:?} {triggers}");
        }
    }
}
