//! Tables of pipelines with requests and expected responses, and properties over random graphs.

mod cycles;
mod drawing;
mod joins;
mod naive;
mod properties;
mod table;
mod validation;
mod windows;

use super::*;
use std::{collections::BTreeMap, sync::Arc};

/// A tensor whose value tells which steps made it from what.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Traced {
    name: Arc<str>,
    value: String,
}

impl Tensor for Traced {
    fn name(&self) -> &str {
        &self.name
    }

    fn renamed(self, name: &Arc<str>) -> Self {
        Self { name: name.clone(), ..self }
    }
}

fn tensors(names: &[&str]) -> Vec<Traced> {
    names.iter().map(|name| Traced { name: (*name).into(), value: "1".into() }).collect()
}

/// `x=1,y=1`.
fn shown(tensors: &[Traced]) -> String {
    let tensors: Vec<_> = tensors.iter().map(|t| format!("{}={}", t.name, t.value)).collect();
    tensors.join(",")
}

/// The outputs of a model: each tensor's value is `step(inputs)`.
fn outputs(step: &str, names: &[&str], inputs: &[Traced]) -> Vec<Traced> {
    let value = format!("{step}({})", shown(inputs));
    names.iter().map(|name| Traced { name: (*name).into(), value: value.clone() }).collect()
}

fn step(name: &str, inputs: &[&str]) -> Step {
    Step { name: name.into(), inputs: list(inputs), ..Step::default() }
}

fn list(items: &[&str]) -> Vec<String> {
    items.iter().map(|&item| item.into()).collect()
}

/// The pipeline `p`.
fn pipeline(steps: Vec<Step>, output: &[&str]) -> Definition {
    let output = Output { steps: list(output), ..Output::default() };
    Definition { name: "p".into(), steps, output: Some(output), ..Definition::default() }
}

impl Step {
    fn any(self) -> Self {
        Self { inputs_join: Join::Any, ..self }
    }

    fn outer(self) -> Self {
        Self { inputs_join: Join::Outer, ..self }
    }

    fn triggers(self, triggers: &[&str]) -> Self {
        Self { triggers: list(triggers), ..self }
    }

    fn triggers_join(self, triggers_join: Join) -> Self {
        Self { triggers_join, ..self }
    }
}

impl Definition {
    fn output_join(mut self, join: Join) -> Self {
        self.output.as_mut().unwrap().join = join;
        self
    }

    fn cyclic(self, max_step_revisits: u32) -> Self {
        Self { allow_cycles: true, max_step_revisits, ..self }
    }

    fn graph(&self) -> Arc<Graph> {
        Arc::new(Graph::compile(self).unwrap())
    }
}

/// Executes one request; steps complete in the order in which they start. `model` returns the names of a step's outputs, and
/// knows how often it has run. Returns the response or the error, and the steps that ran.
fn execute<N: AsRef<str>>(
    definition: &Definition,
    request: &[&str],
    model: impl Fn(&str, usize) -> Vec<N>,
) -> (String, String) {
    let mut run = Run::start(definition.graph(), tensors(request), 0);
    let mut ran: Vec<String> = Vec::new();
    while let Some(Invocation { step, inputs }) = run.next() {
        let name = run.graph().step_name(step).clone();
        let before = ran.iter().filter(|ran| **ran == *name).count();
        ran.push(name.to_string());
        assert!(ran.len() < 1_000, "the run does not end");
        let returned = model(&name, before);
        let returned: Vec<&str> = returned.iter().map(AsRef::as_ref).collect();
        run.complete(step, outputs(&name, &returned, &inputs), 0);
    }
    let outcome = match run.outcome().expect("decided when nothing is in flight") {
        Ok(tensors) => shown(&tensors),
        Err(error) => error.to_string(),
    };
    (outcome, ran.join(" "))
}
