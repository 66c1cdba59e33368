//! Pipelines: defaults, and conversion into a graph's definition.

use crate::scheduler::{Pipeline, PipelineInput, PipelineOutput, PipelineStep, pipeline_step::JoinOp};
use gantry_core::pipeline::{Batch, Definition, Input, Join, Output, Step};

/// A join type that this version does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownJoin(pub i32);

impl std::fmt::Display for UnknownJoin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unknown join {}", self.0)
    }
}

impl std::error::Error for UnknownJoin {}

impl TryFrom<&Pipeline> for Definition {
    type Error = UnknownJoin;

    fn try_from(pipeline: &Pipeline) -> Result<Self, UnknownJoin> {
        let steps: Result<_, _> = pipeline.steps.iter().map(step).collect();
        Ok(Self {
            name: pipeline.name.as_str().into(),
            steps: steps?,
            input: pipeline.input.as_ref().map(input).transpose()?,
            output: pipeline.output.as_ref().map(output).transpose()?,
            clean_topics_on_delete: pipeline.dataflow_spec.as_ref().is_some_and(|d| d.clean_topics_on_delete),
            allow_cycles: pipeline.allow_cycles,
            max_step_revisits: pipeline.max_step_revisits,
        })
    }
}

fn step(step: &PipelineStep) -> Result<Step, UnknownJoin> {
    let batch = step.batch.as_ref();
    Ok(Step {
        name: step.name.as_str().into(),
        inputs: step.inputs.clone(),
        join_window_ms: step.join_window_ms,
        tensor_map: step.tensor_map.clone(),
        inputs_join: join(step.inputs_join)?,
        triggers: step.triggers.clone(),
        triggers_join: join(step.triggers_join)?,
        batch: batch.map(|b| Batch { size: b.size, window_ms: b.window_ms, rolling: b.rolling }),
    })
}

fn input(input: &PipelineInput) -> Result<Input, UnknownJoin> {
    Ok(Input {
        external_inputs: input.external_inputs.clone(),
        external_triggers: input.external_triggers.clone(),
        join_window_ms: input.join_window_ms,
        join: join(input.join_type)?,
        triggers_join: join(input.triggers_join)?,
        tensor_map: input.tensor_map.clone(),
    })
}

fn output(output: &PipelineOutput) -> Result<Output, UnknownJoin> {
    Ok(Output {
        steps: output.steps.clone(),
        join_window_ms: output.join_window_ms,
        join: join(output.steps_join)?,
        tensor_map: output.tensor_map.clone(),
    })
}

/// The messages have one enum each, with the same numbers.
fn join(number: i32) -> Result<Join, UnknownJoin> {
    match JoinOp::try_from(number) {
        Ok(JoinOp::Inner) => Ok(Join::Inner),
        Ok(JoinOp::Outer) => Ok(Join::Outer),
        Ok(JoinOp::Any) => Ok(Join::Any),
        Err(_) => Err(UnknownJoin(number)),
    }
}

/// Names what a reference leaves out: `step` means its outputs, the pipeline's own name its inputs.
pub fn with_default_references(mut pipeline: Pipeline) -> Pipeline {
    let name = pipeline.name.clone();
    let internal = |reference: &mut String| {
        if !reference.contains('.') {
            reference.push_str(if *reference == name { ".inputs" } else { ".outputs" });
        }
    };
    for step in &mut pipeline.steps {
        step.inputs.iter_mut().chain(&mut step.triggers).for_each(internal);
    }
    if let Some(output) = &mut pipeline.output {
        output.steps.iter_mut().for_each(internal);
    }
    if let Some(input) = &mut pipeline.input {
        for reference in input.external_inputs.iter_mut().chain(&mut input.external_triggers) {
            let parts: Vec<&str> = reference.split('.').collect();
            if matches!(*parts, [_] | [_, "step", _]) {
                reference.push_str(".outputs");
            }
        }
    }
    pipeline
}
