//! Checks of a definition: the conditions of Seldon Core v2 in its order, triggers included, and limits.

use super::{
    Definition, Invalid, Step,
    reference::{External, Malformed, Reference},
    topology::{self, Edge},
};
use std::{
    collections::{HashMap, HashSet},
    fmt::Display,
};

/// Runs of a step after its first one, for one request: each of them is a call of its model.
pub const MAX_STEP_REVISITS: u32 = 1000;
/// Limits of the custom resource too; `MAX_TENSOR_MAP` and `MAX_REFERENCES` have no schema. The API server limits the cost of
/// the rule for references: the product of steps and inputs cannot be larger.
pub const MAX_STEPS: usize = 640;
/// Inputs and triggers of all steps. A graph numbers them with 16 bits.
const MAX_REFERENCES: usize = 16_384;
const MAX_STEP_INPUTS: usize = 32;
const MAX_EXTERNAL_INPUTS: usize = 256;
const MAX_TENSOR_MAP: usize = 1024;
const MAX_NAME: usize = 253;
const MAX_REFERENCE: usize = 512;
const MAX_EXTERNAL_REFERENCE: usize = 1024;

/// Checks a definition in time linear to its size. The first violated condition is the error.
pub fn validate(definition: &Definition) -> Result<(), Invalid> {
    Checks::new(definition).limits()?;
    conditions(definition)
}

/// The conditions apart from the limits.
pub(super) fn conditions(definition: &Definition) -> Result<(), Invalid> {
    let checks = Checks::new(definition);
    let steps = checks.unique_steps()?;
    checks.names()?;
    checks.forms("input", "inputs", |step| &step.inputs)?;
    checks.forms("trigger", "triggers", |step| &step.triggers)?;
    checks.step_references(&steps)?;
    checks.output(&steps)?;
    checks.cycles(&steps)?;
    checks.inputs_and_triggers_differ()?;
    checks.external()
}

struct Checks<'a> {
    definition: &'a Definition,
    /// The name for messages.
    pipeline: String,
}

type StepIndex<'a> = HashMap<&'a str, usize>;

impl<'a> Checks<'a> {
    fn new(definition: &'a Definition) -> Self {
        Self { definition, pipeline: definition.name.escape_debug().to_string() }
    }

    /// An error with a message that starts with the pipeline's name.
    fn invalid(&self, field: impl Into<String>, problem: impl Display) -> Invalid {
        Invalid { field: field.into(), message: format!("pipeline {} {problem}", self.pipeline) }
    }

    fn limits(&self) -> Result<(), Invalid> {
        let definition = self.definition;
        if definition.name.len() > MAX_NAME {
            let message =
                format!("pipeline name has {} bytes, at most {MAX_NAME} are allowed", definition.name.len());
            return Err(Invalid { field: "name".into(), message });
        }
        let at_most = |field: String, count: usize, limit: usize| {
            if count <= limit {
                return Ok(());
            }
            Err(self.invalid(&*field, format_args!("has {count} {field}, at most {limit} are allowed")))
        };
        let short = |field: &dyn Fn(usize) -> String, items: &[String], limit: usize| {
            let Some(long) = items.iter().position(|item| item.len() > limit) else { return Ok(()) };
            Err(self.invalid(field(long), format_args!("has {} longer than {limit} bytes", field(long))))
        };
        at_most("steps".into(), definition.steps.len(), MAX_STEPS)?;
        if definition.max_step_revisits > MAX_STEP_REVISITS {
            let problem = format!(
                "has maxStepRevisits {}, at most {MAX_STEP_REVISITS} are allowed: each of them calls the model again for \
                 the same request",
                definition.max_step_revisits
            );
            return Err(self.invalid("maxStepRevisits", problem));
        }
        for (i, step) in definition.steps.iter().enumerate() {
            if step.name.len() > MAX_NAME {
                return Err(self.invalid(
                    format!("steps[{i}].name"),
                    format_args!("has a step name longer than {MAX_NAME} bytes"),
                ));
            }
            at_most(format!("steps[{i}].inputs"), step.inputs.len(), MAX_STEP_INPUTS)?;
            at_most(format!("steps[{i}].triggers"), step.triggers.len(), MAX_STEP_INPUTS)?;
            at_most(format!("steps[{i}].tensorMap"), step.tensor_map.len(), MAX_TENSOR_MAP)?;
            short(&|n| format!("steps[{i}].inputs[{n}]"), &step.inputs, MAX_REFERENCE)?;
            short(&|n| format!("steps[{i}].triggers[{n}]"), &step.triggers, MAX_REFERENCE)?;
        }
        let references: usize =
            definition.steps.iter().map(|step| step.inputs.len() + step.triggers.len()).sum();
        if references > MAX_REFERENCES {
            let problem = format!(
                "has {references} inputs and triggers of steps, at most {MAX_REFERENCES} are allowed"
            );
            return Err(self.invalid("steps", problem));
        }
        if let Some(output) = &definition.output {
            at_most("output.steps".into(), output.steps.len(), MAX_STEPS)?;
            at_most("output.tensorMap".into(), output.tensor_map.len(), MAX_TENSOR_MAP)?;
            short(&|n| format!("output.steps[{n}]"), &output.steps, MAX_REFERENCE)?;
        }
        if let Some(input) = &definition.input {
            let (inputs, triggers) = (&input.external_inputs, &input.external_triggers);
            at_most("input.externalInputs".into(), inputs.len(), MAX_EXTERNAL_INPUTS)?;
            at_most("input.externalTriggers".into(), triggers.len(), MAX_EXTERNAL_INPUTS)?;
            at_most("input.tensorMap".into(), input.tensor_map.len(), MAX_TENSOR_MAP)?;
            short(&|n| format!("input.externalInputs[{n}]"), inputs, MAX_EXTERNAL_REFERENCE)?;
            short(&|n| format!("input.externalTriggers[{n}]"), triggers, MAX_EXTERNAL_REFERENCE)?;
        }
        Ok(())
    }

    fn unique_steps(&self) -> Result<StepIndex<'a>, Invalid> {
        let mut steps = HashMap::with_capacity(self.definition.steps.len());
        for (i, step) in self.definition.steps.iter().enumerate() {
            if steps.insert(&*step.name, i).is_some() {
                let problem =
                    format!("has repeated step {}: each step has its own model", step.name.escape_debug());
                return Err(self.invalid(format!("steps[{i}].name"), problem));
            }
        }
        Ok(steps)
    }

    fn names(&self) -> Result<(), Invalid> {
        let name = &*self.definition.name;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        if !name.chars().all(|c| plain(c) || c == '-') || !name.starts_with(plain) || !name.ends_with(plain) {
            let problem = "does not have a valid name: use lower-case letters, digits and '-', no dots, and start and end \
                           with a letter or a digit";
            return Err(self.invalid("name", problem));
        }
        if self.definition.steps.is_empty() {
            return Err(self.invalid("steps", "has no steps defined: add at least one"));
        }
        for (i, step) in self.definition.steps.iter().enumerate() {
            if *step.name == *name {
                let problem = "must not have a step with the same name as the pipeline: rename one of them";
                return Err(self.invalid(format!("steps[{i}].name"), problem));
            }
            if step.name.trim().is_empty() {
                let problem = "has a step without a name: name the model that it calls";
                return Err(self.invalid(format!("steps[{i}].name"), problem));
            }
        }
        Ok(())
    }

    fn forms(&self, noun: &str, field: &str, list: List) -> Result<(), Invalid> {
        for (i, step) in self.definition.steps.iter().enumerate() {
            for (n, written) in list(step).iter().enumerate() {
                let Err(malformed) = Reference::parse(&self.definition.name, written) else { continue };
                let (name, written) = (step.name.escape_debug(), written.escape_debug());
                let problem = match malformed {
                    Malformed::Empty => format!("step {name} has an empty {noun}: name a step"),
                    Malformed::Form => format!(
                        "step {name} has invalid {noun} {written}: write step, step.inputs|outputs or \
                         step.inputs|outputs.tensor"
                    ),
                };
                return Err(self.invalid(format!("steps[{i}].{field}[{n}]"), problem));
            }
        }
        Ok(())
    }

    fn step_references(&self, steps: &StepIndex<'_>) -> Result<(), Invalid> {
        for (field, list) in LISTS {
            for (i, step) in self.definition.steps.iter().enumerate() {
                for (n, reference) in self.references(list(step)) {
                    if !steps.contains_key(reference.name) && reference.name != &*self.definition.name {
                        let (noun, name) = (field.trim_end_matches('s'), step.name.escape_debug());
                        let missing = reference.name.escape_debug();
                        let problem = format!(
                            "step {name} has {noun} {missing} for step that does not exist: add step {missing} or \
                             correct the name"
                        );
                        return Err(self.invalid(format!("steps[{i}].{field}[{n}]"), problem));
                    }
                }
            }
        }
        Ok(())
    }

    fn output(&self, steps: &StepIndex<'_>) -> Result<(), Invalid> {
        let Some(output) = &self.definition.output else { return Ok(()) };
        for (n, written) in output.steps.iter().enumerate() {
            let name = written.split('.').next().unwrap_or_default();
            if !steps.contains_key(name) {
                let problem = format!("output step {} not found: name one of the steps", name.escape_debug());
                return Err(self.invalid(format!("output.steps[{n}]"), problem));
            }
        }
        for (n, written) in output.steps.iter().enumerate() {
            if Reference::parse(&self.definition.name, written).is_err() {
                let written = written.escape_debug();
                let problem = format!(
                    "output specifier {written} invalid: write step, step.inputs|outputs or step.inputs|outputs.tensor"
                );
                return Err(self.invalid(format!("output.steps[{n}]"), problem));
            }
        }
        Ok(())
    }

    fn cycles(&self, steps: &StepIndex<'_>) -> Result<(), Invalid> {
        if !self.definition.allow_cycles {
            let remedy = "remove one of these inputs or triggers, or set allowCycles";
            return self.no_cycle(steps, "a cycle", remedy, |_| true);
        }
        // The inputs of a step are there as soon as it starts: such a cycle would start its steps for ever.
        let remedy = "let one of the steps read outputs";
        self.no_cycle(steps, "a cycle without any outputs", remedy, |reference| reference.inputs)
    }

    fn no_cycle(
        &self,
        steps: &StepIndex<'_>,
        what: &str,
        remedy: &str,
        counts: fn(&Reference<'_>) -> bool,
    ) -> Result<(), Invalid> {
        let defined = &self.definition.steps;
        let mut edges: Vec<Edge> = Vec::new();
        for (to, step) in defined.iter().enumerate() {
            for (_, list) in LISTS {
                let read = self.references(list(step)).filter(|(_, reference)| counts(reference));
                edges.extend(read.filter_map(|(_, reference)| Some((*steps.get(reference.name)?, to))));
            }
        }
        let Some(cycle) = topology::cycle(defined.len(), &edges) else { return Ok(()) };
        let names: Vec<&Step> = cycle.iter().filter_map(|&step| defined.get(step)).collect();
        let (Some(&first), [step, .., last] | [step @ last]) = (cycle.first(), &*names) else {
            return Ok(());
        };
        let found = LISTS.iter().find_map(|(field, list)| {
            let mut read = self.references(list(step));
            read.find(|(_, read)| counts(read) && *read.name == *last.name).map(|(n, _)| (field, n))
        });
        let (field, n) = found.unwrap_or((&"inputs", 0));
        let shown: Vec<&str> = names.iter().chain([step]).map(|step| &*step.name).collect();
        let problem = format!("has {what}, {}: {remedy}", shown.join(" → ").escape_debug());
        Err(self.invalid(format!("steps[{first}].{field}[{n}]"), problem))
    }

    fn inputs_and_triggers_differ(&self) -> Result<(), Invalid> {
        for (i, step) in self.definition.steps.iter().enumerate() {
            let inputs: HashSet<_> = self.references(&step.inputs).map(|(_, reference)| reference).collect();
            for (n, trigger) in self.references(&step.triggers) {
                if inputs.contains(&trigger) {
                    let written = step.triggers.get(n).map(|written| written.escape_debug());
                    let written = written.map(|written| written.to_string()).unwrap_or_default();
                    let problem = format!(": inputs and triggers must differ, but found {written} in both");
                    return Err(self.invalid(format!("steps[{i}].triggers[{n}]"), problem));
                }
            }
        }
        Ok(())
    }

    fn external(&self) -> Result<(), Invalid> {
        let Some(input) = &self.definition.input else { return Ok(()) };
        let error = |field: String, written: &str, reason: &str| {
            Err(self.invalid(field, format_args!("input {} is invalid: {reason}", written.escape_debug())))
        };
        if input.external_inputs.is_empty() {
            let reason = "name at least one input of another pipeline, or remove `input`";
            return error("input.externalInputs".into(), "", reason);
        }
        let lists =
            [("externalInputs", &input.external_inputs), ("externalTriggers", &input.external_triggers)];
        for (field, list) in lists {
            for (n, written) in list.iter().enumerate() {
                if let Err(reason) = External::parse(written) {
                    return error(format!("input.{field}[{n}]"), written, reason);
                }
            }
        }
        Ok(())
    }

    fn references(&self, list: &'a [String]) -> impl Iterator<Item = (usize, Reference<'a>)> {
        list.iter().enumerate().filter_map(|(n, written)| {
            Reference::parse(&self.definition.name, written).ok().map(|parsed| (n, parsed))
        })
    }
}

type List = fn(&Step) -> &Vec<String>;
const LISTS: [(&str, List); 2] = [("inputs", |step| &step.inputs), ("triggers", |step| &step.triggers)];
