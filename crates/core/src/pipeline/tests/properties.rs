//! Properties over random graphs and arbitrary definitions.

use super::{naive::Naive, *};
use proptest::prelude::*;

const TENSORS: [&str; 3] = ["t", "u", "v"];

pub(super) fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

fn tensor() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&TENSORS[..])
}

fn some_tensors() -> impl Strategy<Value = Vec<&'static str>> {
    prop::sample::subsequence(TENSORS.to_vec(), 0..=3)
}

/// A reference to the pipeline or one of the steps before `limit`.
fn reference(limit: usize, step_inputs: bool) -> impl Strategy<Value = String> {
    let name = (0..=limit).prop_map(|i| if i == 0 { "p".to_owned() } else { format!("s{}", i - 1) });
    let forms = if step_inputs { 6 } else { 4_u8 };
    (name, 0..forms, tensor()).prop_map(|(name, form, tensor)| match form {
        0 => name,
        4 => format!("{name}.inputs"),
        5 => format!("{name}.inputs.{tensor}"),
        1 | 2 if name == "p" => format!("{name}.inputs.{tensor}"),
        _ if name == "p" => format!("{name}.inputs"),
        1 | 2 => format!("{name}.outputs.{tensor}"),
        _ => format!("{name}.outputs"),
    })
}

fn references(limit: usize, max: usize, step_inputs: bool) -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(reference(limit, step_inputs), 0..=max)
}

pub(super) fn joins() -> impl Strategy<Value = Join> {
    prop::sample::select(vec![Join::Inner, Join::Outer, Join::Any])
}

fn renames(limit: usize) -> impl Strategy<Value = BTreeMap<String, String>> {
    let key = (reference(limit, true), tensor()).prop_map(|(reference, tensor)| {
        match reference.split('.').count() {
            1 => format!("{reference}.outputs.{tensor}"),
            2 => format!("{reference}.{tensor}"),
            _ => reference,
        }
    });
    prop::collection::btree_map(key, tensor().prop_map(ToOwned::to_owned), 0..3)
}

fn random_step(
    index: usize,
    limit: usize,
    join: BoxedStrategy<Join>,
    inputs: bool,
) -> impl Strategy<Value = Step> {
    (references(limit, 4, inputs), join.clone(), references(limit, 2, inputs), join, renames(limit)).prop_map(
        move |(inputs, inputs_join, triggers, triggers_join, tensor_map)| Step {
            name: format!("s{index}").into(),
            inputs,
            inputs_join,
            triggers,
            triggers_join,
            tensor_map,
            ..Step::default()
        },
    )
}

/// A pipeline of `join`s; with `step_inputs`, steps also read inputs of others, with `cyclic` also steps that follow them.
pub(super) fn random_pipeline(
    join: BoxedStrategy<Join>,
    step_inputs: bool,
    cyclic: bool,
) -> impl Strategy<Value = Definition> {
    (1..7_usize, any::<u64>()).prop_flat_map(move |(count, shuffle)| {
        let limit = move |index| if cyclic { count } else { index };
        let steps: Vec<_> =
            (0..count).map(|index| random_step(index, limit(index), join.clone(), step_inputs)).collect();
        let output = prop::collection::vec((0..count, tensor(), any::<bool>()), 1..4);
        (steps, output, join.clone(), renames(count)).prop_map(
            move |(mut steps, output, join, tensor_map)| {
                for step in &mut steps {
                    // The check that inputs and triggers differ refuses the rest.
                    let inputs = step.inputs.clone();
                    step.triggers
                        .retain(|trigger| !inputs.iter().any(|input| origin(input) == origin(trigger)));
                }
                let middle = shuffle as usize % steps.len();
                steps.rotate_left(middle);
                let written = output.iter().map(|(step, tensor, whole)| match whole {
                    true => format!("s{step}"),
                    false => format!("s{step}.outputs.{tensor}"),
                });
                let output = Output { steps: written.collect(), join, tensor_map, ..Output::default() };
                let definition =
                    Definition { name: "p".into(), steps, output: Some(output), ..Definition::default() };
                if cyclic { definition.cyclic(3) } else { definition }
            },
        )
    })
}

fn origin(reference: &str) -> String {
    let mut parts = reference.split('.');
    let name = parts.next().unwrap();
    let kind = parts.next().unwrap_or(if name == "p" { "inputs" } else { "outputs" });
    format!("{name}.{kind}")
}

/// Executes a request; `choices` select which of the steps in flight completes next and which tensors it returns.
fn execute(
    definition: &Definition,
    request: &[&str],
    mut choices: impl FnMut(&[Invocation<Traced>], &Run<Traced>) -> (usize, Vec<&'static str>),
    mut completed: impl FnMut(&str, Vec<Traced>),
) -> (Vec<(String, String)>, Result<String, RunError>) {
    let mut run = Run::start(definition.graph(), tensors(request), 0);
    let (mut flight, mut started, mut outcome) = (Vec::new(), Vec::new(), None);
    loop {
        while let Some(next) = run.next() {
            started.push((run.graph().step_name(next.step).to_string(), shown(&next.inputs)));
            flight.push(next);
        }
        outcome = outcome.or_else(|| run.outcome());
        if flight.is_empty() {
            break;
        }
        let (position, names) = choices(&flight, &run);
        let Invocation { step, inputs } = flight.remove(position);
        let name = run.graph().step_name(step).to_string();
        let outputs = outputs(&name, &names, &inputs);
        completed(&name, outputs.clone());
        run.complete(step, outputs, 0);
    }
    let outcome = outcome.expect("decided when nothing is in flight");
    (started, outcome.map(|tensors| shown(&tensors)))
}

fn inner_and_outer() -> BoxedStrategy<Join> {
    prop::sample::select(vec![Join::Inner, Join::Outer]).boxed()
}

type Choices = Vec<(prop::sample::Index, Vec<&'static str>)>;

fn choices(count: usize) -> impl Strategy<Value = Choices> {
    prop::collection::vec((any::<prop::sample::Index>(), some_tensors()), count)
}

fn compare_with_naive(
    definition: &Definition,
    request: &[&str],
    choices: Choices,
) -> Result<(), TestCaseError> {
    let mut naive = Naive::start(definition, tensors(request));
    let mut choices = choices.into_iter();
    let choose = |flight: &[Invocation<Traced>], _: &Run<Traced>| {
        let (index, names) = choices.next().unwrap();
        (index.index(flight.len()), names)
    };
    let (mut started, outcome) =
        execute(definition, request, choose, |step, outputs| naive.complete(definition, step, outputs));
    started.sort();
    naive.started.sort();
    prop_assert_eq!(started, naive.started);
    prop_assert_eq!(outcome.map_err(|_| ()), naive.response.unwrap());
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_graph_gives_what_the_naive_interpreter_gives(
        definition in random_pipeline(joins().boxed(), false, false),
        request in some_tensors(),
        choices in choices(8),
        allow_cycles in any::<bool>(),
    ) {
        let definition = if allow_cycles { definition.cyclic(0) } else { definition };
        compare_with_naive(&definition, &request, choices)?;
    }

    // The order in which two steps start at once is open, and with it the first input of an `any` join.
    #[test]
    fn random_graph_with_inputs_of_steps_gives_what_the_naive_interpreter_gives(
        definition in random_pipeline(inner_and_outer(), true, false),
        request in some_tensors(),
        choices in choices(8),
        allow_cycles in any::<bool>(),
    ) {
        let definition = if allow_cycles { definition.cyclic(0) } else { definition };
        compare_with_naive(&definition, &request, choices)?;
    }

    #[test]
    fn completion_order_does_not_change_inner_and_outer_joins(
        definition in random_pipeline(inner_and_outer(), true, false),
        request in some_tensors(),
        returned in prop::collection::vec(some_tensors(), 7),
        order in prop::collection::vec(any::<prop::sample::Index>(), 8),
    ) {
        let returns = |next: &Invocation<Traced>, run: &Run<Traced>| {
            let step: usize = run.graph().step_name(next.step)[1..].parse().unwrap();
            returned[step].clone()
        };
        let first = execute(&definition, &request, |flight, run| (0, returns(&flight[0], run)), |_, _| ());
        let mut order = order.into_iter();
        let choose = |flight: &[Invocation<Traced>], run: &Run<Traced>| {
            let position = order.next().unwrap().index(flight.len());
            (position, returns(&flight[position], run))
        };
        let (mut started, outcome) = execute(&definition, &request, choose, |_, _| ());
        let (mut expected, expected_outcome) = first;
        started.sort();
        expected.sort();
        prop_assert_eq!(started, expected);
        // The reason names the first absence.
        prop_assert_eq!(outcome.map_err(|_| ()), expected_outcome.map_err(|_| ()));
    }

    #[test]
    fn random_cycles_end_within_the_revisits(
        definition in random_pipeline(joins().boxed(), false, true),
        request in some_tensors(),
        choices in choices(8 * 5),
    ) {
        let mut choices = choices.into_iter();
        let choose = |flight: &[Invocation<Traced>], _: &Run<Traced>| {
            let (index, names) = choices.next().expect("more runs than the revisits allow");
            (index.index(flight.len()), names)
        };
        let (started, outcome) = execute(&definition, &request, choose, |_, _| ());
        for step in &definition.steps {
            prop_assert!(started.iter().filter(|(name, _)| **name == *step.name).count() <= 4);
        }
        if let Err(RunError::TooManyRevisits { limit, .. }) = outcome {
            prop_assert_eq!(limit, 3);
        }
    }

    #[test]
    fn arbitrary_text_does_not_panic(
        steps in prop::collection::vec(
            ("[ab.p]{0,3}", prop::collection::vec("[abp.]{0,2}(\\.(inputs|outputs|step))?(\\.[a.é\n]{0,2})?", 0..3), joins()),
            0..4,
        ),
        output in prop::option::of(prop::collection::vec("\\PC{0,3}|[ab](\\.outputs)?", 0..3)),
        external in prop::option::of(prop::collection::vec("\\PC{0,4}|q(\\.(inputs|outputs|step)){0,3}(\\.a){0,3}", 0..3)),
        name in "p|\\PC{0,3}",
        allow_cycles in any::<bool>(),
    ) {
        let steps = steps.into_iter().map(|(name, references, inputs_join)| {
            let tensor_map = references.iter().map(|reference| (reference.clone(), name.clone())).collect();
            let triggers = references.iter().skip(1).cloned().collect();
            let inputs = references.into_iter().take(1).collect();
            Step { name: name.into(), inputs, triggers, inputs_join, tensor_map, ..Step::default() }
        });
        let definition = Definition {
            name: name.into(),
            steps: steps.collect(),
            input: external.map(|external| Input {
                external_triggers: external.clone(),
                external_inputs: external,
                ..Input::default()
            }),
            output: output.map(|steps| Output { steps, ..Output::default() }),
            allow_cycles,
            max_step_revisits: 2,
            ..Definition::default()
        };
        if let Err(invalid) = Graph::compile(&definition) {
            prop_assert!(!invalid.message.is_empty() && !invalid.field.is_empty());
        } else {
            // It ends with an outcome.
            let _ = execute(&definition, &["a"], |_, _| (0, vec!["t"]), |_, _| ());
        }
    }
}
