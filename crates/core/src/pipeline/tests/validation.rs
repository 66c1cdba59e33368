//! Refused definitions, limits and the size of work and graphs.

use super::*;

fn refused(definition: &Definition) -> (String, String) {
    let invalid = validate(definition).expect_err("invalid");
    assert_eq!(Graph::compile(definition).expect_err("invalid"), invalid);
    (invalid.field, invalid.message)
}

#[test]
fn invalid_definitions_name_the_field_and_the_problem() {
    let good = || vec![step("a", &[]), step("b", &["a"])];
    let named = |name: &str| Definition { name: name.into(), ..pipeline(good(), &["b"]) };
    let input = |inputs: &[&str], triggers: &[&str]| Definition {
        input: Some(Input {
            external_inputs: list(inputs),
            external_triggers: list(triggers),
            ..Input::default()
        }),
        ..pipeline(good(), &["b"])
    };
    let with = |step: Step| pipeline(vec![step, Step { name: "b".into(), ..Step::default() }], &["b"]);
    let cases: Vec<(Definition, &str, &str)> = vec![
        (named("p.x"), "name", "pipeline p.x does not have a valid name"),
        (named(""), "name", "does not have a valid name"),
        (named("P"), "name", "does not have a valid name"),
        (named("-p"), "name", "does not have a valid name"),
        (named(&"p".repeat(254)), "name", "254 bytes, at most 253"),
        (pipeline(vec![], &[]), "steps", "pipeline p has no steps defined"),
        (
            pipeline(good(), &["b"]).cyclic(1001),
            "maxStepRevisits",
            "pipeline p has maxStepRevisits 1001, at most 1000 are allowed",
        ),
        (pipeline(vec![step("p", &[])], &["p"]), "steps[0].name", "same name as the pipeline"),
        (pipeline(vec![step(" ", &[])], &[]), "steps[0].name", "pipeline p has a step without a name"),
        (
            pipeline(vec![step("a", &[]), step("b", &[]), step("a", &[])], &[]),
            "steps[2].name",
            "pipeline p has repeated step a",
        ),
        (with(step("a", &[" "])), "steps[0].inputs[0]", "pipeline p step a has an empty input"),
        (with(step("a", &["b", ".outputs"])), "steps[0].inputs[1]", "pipeline p step a has an empty input"),
        (
            with(step("a", &[]).triggers(&[""])),
            "steps[0].triggers[0]",
            "pipeline p step a has an empty trigger",
        ),
        (with(step("a", &["b.other"])), "steps[0].inputs[0]", "step a has invalid input b.other"),
        (with(step("a", &["b.outputs.t.u"])), "steps[0].inputs[0]", "step a has invalid input b.outputs.t.u"),
        (with(step("a", &["b.outputs."])), "steps[0].inputs[0]", "step a has invalid input b.outputs."),
        (
            with(step("a", &[]).triggers(&["b.x.y"])),
            "steps[0].triggers[0]",
            "pipeline p step a has invalid trigger b.x.y",
        ),
        (
            with(step("a", &["c.outputs.t"])),
            "steps[0].inputs[0]",
            "pipeline p step a has input c for step that does not exist",
        ),
        (
            with(step("a", &[]).triggers(&["b", "missing"])),
            "steps[0].triggers[1]",
            "pipeline p step a has trigger missing for step that does not exist",
        ),
        (pipeline(good(), &["b", "c"]), "output.steps[1]", "pipeline p output step c not found"),
        (pipeline(good(), &["p"]), "output.steps[0]", "pipeline p output step p not found"),
        (pipeline(good(), &["b.other"]), "output.steps[0]", "pipeline p output specifier b.other invalid"),
        (with(step("a", &["a"])), "steps[0].inputs[0]", "pipeline p has a cycle, a → a: remove"),
        (
            pipeline(
                vec![step("a", &["p", "c"]), step("b", &["a"]), step("c", &["p"]).triggers(&["b"])],
                &["c"],
            ),
            "steps[0].inputs[1]",
            "pipeline p has a cycle, a → b → c → a: remove",
        ),
        (
            with(step("a", &[]).triggers(&["b", "a.outputs.t"])),
            "steps[0].triggers[1]",
            "pipeline p has a cycle, a → a: remove",
        ),
        (
            with(step("a", &["b"]).triggers(&["b.outputs"])),
            "steps[0].triggers[0]",
            "pipeline p : inputs and triggers must differ, but found b.outputs in both",
        ),
        (input(&[], &["q"]), "input.externalInputs", "pipeline p input  is invalid: name at least one"),
        (input(&["q", " "], &[]), "input.externalInputs[1]", "is invalid: it is empty"),
        (
            input(&["q.other"], &[]),
            "input.externalInputs[0]",
            "pipeline p input q.other is invalid: after the",
        ),
        (input(&["q.step"], &[]), "input.externalInputs[0]", "after the pipeline's name follows"),
        (
            input(&["q.step.s.x"], &[]),
            "input.externalInputs[0]",
            "after the step's name follows inputs or outputs",
        ),
        (input(&["q.inputs.t.u"], &[]), "input.externalInputs[0]", "nothing follows the tensor"),
        (input(&["q.step.s.outputs.t.u"], &[]), "input.externalInputs[0]", "nothing follows the tensor"),
        (input(&["q", "q.outputs."], &[]), "input.externalInputs[1]", "a name between dots is empty"),
        (input(&["q"], &["q.other"]), "input.externalTriggers[0]", "pipeline p input q.other is invalid"),
    ];
    for (definition, field, part) in cases {
        let (at, message) = refused(&definition);
        assert_eq!(at, field, "{message}");
        assert!(message.contains(part), "{message} does not contain {part}");
    }
}

#[test]
fn conditions_are_checked_in_the_order_of_the_reference() {
    let mut definition = Definition {
        name: "p.".into(),
        steps: vec![
            step("a", &["", "b.x", "c", "a", "b"]).triggers(&["", "b.x", "c", "b"]),
            step("b", &[]),
            step("p.", &[]),
            step("b", &[]),
        ],
        input: Some(Input::default()),
        output: Some(Output { steps: list(&["b.x", "c"]), ..Output::default() }),
        ..Definition::default()
    };
    let mut expect = |part: &str, repair: fn(&mut Definition)| {
        let (_, message) = refused(&definition);
        assert!(message.contains(part), "{message} does not contain {part}");
        repair(&mut definition);
    };
    expect("repeated step", |d| drop(d.steps.pop()));
    expect("valid name", |d| d.name = "p".into());
    // The step now has another name than the pipeline.
    expect("empty input", |d| d.steps[2].name = "p".into());
    expect("same name", |d| drop(d.steps.pop()));
    expect("empty input", |d| drop(d.steps[0].inputs.remove(0)));
    expect("invalid input", |d| drop(d.steps[0].inputs.remove(0)));
    expect("empty trigger", |d| drop(d.steps[0].triggers.remove(0)));
    expect("invalid trigger", |d| drop(d.steps[0].triggers.remove(0)));
    expect("input c for step", |d| drop(d.steps[0].inputs.remove(0)));
    expect("trigger c for step", |d| drop(d.steps[0].triggers.remove(0)));
    expect("output step c", |d| drop(d.output.as_mut().unwrap().steps.pop()));
    expect("output specifier b.x", |d| d.output = None);
    expect("cycle", |d| d.allow_cycles = true);
    expect("must differ", |d| d.steps[0].triggers.clear());
    expect("at least one input", |d| d.input = None);
    assert_eq!(validate(&definition), Ok(()));
}

#[test]
fn cycle_of_inputs_alone_is_refused_with_allow_cycles() {
    let definition =
        pipeline(vec![step("a", &["p", "b.inputs"]).any(), step("b", &["a.inputs"])], &["b"]).cyclic(5);
    let (field, message) = refused(&definition);
    assert_eq!(field, "steps[0].inputs[1]");
    assert!(message.contains("a cycle without any outputs, a → b → a"), "{message}");
    let definition = pipeline(vec![step("a", &["p", "b.inputs"]).any(), step("b", &["a"])], &["b"]).cyclic(5);
    assert_eq!(validate(&definition), Ok(()));
}

#[test]
fn definitions_beyond_the_limits_are_refused() {
    let many = |count: usize| (0..count).map(|i| step(&format!("s{i}"), &[])).collect::<Vec<_>>();
    let (field, message) = refused(&pipeline(many(10_000), &["s0"]));
    assert_eq!((&*field, &*message), ("steps", "pipeline p has 10000 steps, at most 640 are allowed"));
    assert_eq!(validate(&pipeline(many(640), &["s0"])), Ok(()));

    let wide = |inputs: usize| Step { inputs: vec!["a".into(); inputs], ..step("b", &[]) };
    assert_eq!(refused(&pipeline(vec![step("a", &[]), wide(33)], &[])).0, "steps[1].inputs");
    assert_eq!(validate(&pipeline(vec![step("a", &[]), wide(32)], &[])), Ok(()));

    let all = |count: usize| {
        let steps = (0..count).map(|i| Step { name: format!("b{i}").into(), ..wide(32) });
        pipeline(std::iter::once(step("a", &[])).chain(steps).collect(), &[])
    };
    let (_, message) = refused(&all(513));
    assert_eq!(message, "pipeline p has 16416 inputs and triggers of steps, at most 16384 are allowed");
    all(512).graph();

    let long = "a".repeat(513);
    assert_eq!(refused(&pipeline(vec![step("a", &[&long])], &[])).0, "steps[0].inputs[0]");
    assert_eq!(refused(&pipeline(vec![step(&long, &[])], &[])).0, "steps[0].name");
    assert_eq!(refused(&pipeline(vec![step("a", &[])], &[&long])).0, "output.steps[0]");
}

#[test]
fn external_references_are_parsed_in_all_forms() {
    let references = ["q", "q.inputs", "q.outputs.t", "q.step.s", "q.step.s.inputs", "q.step.s.outputs.t"];
    let input =
        Input { external_inputs: list(&references), external_triggers: list(&["r"]), ..Input::default() };
    let graph = Definition { input: Some(input), ..pipeline(vec![step("a", &[])], &["a"]) }.graph();
    let external =
        |kind, tensor: Option<&str>| External { pipeline: "q".into(), kind, tensor: tensor.map(Into::into) };
    let expected = [
        external(ExternalKind::Outputs, None),
        external(ExternalKind::Inputs, None),
        external(ExternalKind::Outputs, Some("t")),
        external(ExternalKind::StepOutputs("s".into()), None),
        external(ExternalKind::StepInputs("s".into()), None),
        external(ExternalKind::StepOutputs("s".into()), Some("t")),
    ];
    let external = graph.external().unwrap();
    assert_eq!(&*external.inputs, expected);
    assert_eq!(external.triggers.len(), 1);
}

/// `count` diamonds one after the other, three steps each.
fn diamonds(count: usize) -> Definition {
    let mut steps = vec![step("s0", &[])];
    for i in 0..count {
        let top = format!("s{i}");
        steps.push(step(&format!("l{i}"), &[&top]));
        steps.push(step(&format!("r{i}"), &[&top]));
        steps.push(step(&format!("s{}", i + 1), &[&format!("l{i}"), &format!("r{i}")]));
    }
    pipeline(steps, &[&format!("s{count}")])
}

/// Work along paths would not end: there are 2^200.
#[test]
fn two_hundred_stacked_diamonds_run_within_linear_work() {
    let definition = diamonds(200);
    let mut run = Run::start(definition.graph(), tensors(&["x"]), 0);
    let mut steps = 0;
    while let Some(Invocation { step, .. }) = run.next() {
        run.complete(step, tensors(&["y"]), 0);
        steps += 1;
    }
    assert_eq!(steps, 601);
    assert!(run.outcome().unwrap().is_ok());
}

/// Every step after the first reads every step before it.
#[test]
fn dense_graph_and_wide_join_run_within_linear_work() {
    let names: Vec<_> = (0..32).map(|i| format!("s{i}")).collect();
    let mut steps: Vec<_> =
        (0..32).map(|i| Step { inputs: names[..i].to_vec(), ..step(&names[i], &[]) }).collect();
    let wide = (0..192).map(|i| step(&format!("w{i}"), &[&format!("s31.outputs.t{i}")]));
    let output: Vec<_> = (0..192).map(|i| format!("w{i}")).collect();
    steps.extend(wide);
    let mut definition = pipeline(steps, &[]);
    definition.output.as_mut().unwrap().steps = output;
    let all: Vec<_> = (0..192).map(|i| format!("t{i}")).collect();
    let all: Vec<_> = all.iter().map(|name| &**name).collect();
    let mut run = Run::start(definition.graph(), tensors(&["x"]), 0);
    while let Some(Invocation { step, inputs }) = run.next() {
        match step.index() {
            0 => assert_eq!(inputs.len(), 1),
            index @ 1..32 => assert_eq!(inputs.len(), index),
            index => assert_eq!(shown(&inputs), format!("t{}=1", index - 32)),
        }
        run.complete(step, tensors(if step.index() == 31 { &all } else { &["y"] }), 0);
    }
    assert_eq!(run.outcome().unwrap().unwrap().len(), 192);
}

#[test]
fn graph_of_five_steps_takes_less_than_two_kilobytes() {
    let mut steps: Vec<_> =
        (1..5).map(|i| step(&format!("step-{i}"), &[&format!("step-{}.outputs.t", i - 1)])).collect();
    steps.insert(0, step("step-0", &[]));
    let graph = pipeline(steps, &["step-4"]).graph();
    let strings = graph.nodes.iter().map(|node| node.name.len() + 16).sum::<usize>()
        + graph.tensors.iter().map(|tensor| tensor.name.len() + 16).sum::<usize>();
    let tables = size_of_val(&*graph.nodes)
        + size_of_val(&*graph.sources)
        + size_of_val(&*graph.origins)
        + size_of_val(&*graph.readers)
        + size_of_val(&*graph.tensors)
        + size_of_val(&*graph.deliveries)
        + size_of_val(&*graph.renames);
    let total = size_of::<Graph>() + strings + tables;
    assert!(total < 2048, "{total} bytes");
}
