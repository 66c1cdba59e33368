//! The pipeline as `core` executes it, and the errors of its graph.

use super::{JoinType, PipelineSpec, PipelineStep};
use crate::{FieldError, nearest};
use gantry_core::pipeline::{Batch, Definition, Graph, Input, Join, Output, Step, draw, validate};

impl From<JoinType> for Join {
    fn from(join: JoinType) -> Self {
        match join {
            JoinType::Inner => Self::Inner,
            JoinType::Outer => Self::Outer,
            JoinType::Any => Self::Any,
        }
    }
}

/// How a graph is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawing {
    /// For a terminal.
    Text,
    Mermaid,
    Svg,
}

impl PipelineSpec {
    /// A drawing of the graph.
    pub fn draw(&self, name: &str, drawing: Drawing) -> Result<String, String> {
        let graph = Graph::compile(&self.definition(name)).map_err(|invalid| invalid.to_string())?;
        Ok(match drawing {
            Drawing::Text => draw::text(&graph),
            Drawing::Mermaid => draw::mermaid(&graph),
            Drawing::Svg => draw::svg(&graph),
        })
    }

    /// The definition that `core` validates, compiles and draws.
    pub fn definition(&self, name: &str) -> Definition {
        Definition {
            name: name.into(),
            steps: self.steps.iter().map(PipelineStep::definition).collect(),
            input: self.input.as_ref().map(|input| Input {
                external_inputs: input.external_inputs.clone(),
                external_triggers: input.external_triggers.clone(),
                join_window_ms: input.join_window_ms,
                join: input.join_type.into(),
                triggers_join: input.triggers_join_type.into(),
                tensor_map: input.tensor_map.clone(),
            }),
            output: self.output.as_ref().map(|output| Output {
                steps: output.steps.clone(),
                join_window_ms: output.join_window_ms,
                join: output.steps_join.into(),
                tensor_map: output.tensor_map.clone(),
            }),
            clean_topics_on_delete: self.dataflow.as_ref().is_some_and(|d| d.clean_topics_on_delete),
            allow_cycles: self.allow_cycles,
            max_step_revisits: self.max_step_revisits,
        }
    }

    /// The reference in a field such as `steps[2].inputs[0]`.
    fn reference(&self, field: &str) -> Option<&str> {
        let index = |text: &str| text.strip_suffix(']')?.parse::<usize>().ok();
        if let Some(position) = field.strip_prefix("output.steps[") {
            return self.output.as_ref()?.steps.get(index(position)?).map(String::as_str);
        }
        let (step, list) = field.strip_prefix("steps[")?.split_once("].")?;
        let step = self.steps.get(step.parse::<usize>().ok()?)?;
        let (list, position) = list.split_once('[')?;
        let list = match list {
            "inputs" => &step.inputs,
            "triggers" => &step.triggers,
            _ => return None,
        };
        list.get(index(position)?).map(String::as_str)
    }
}

impl PipelineStep {
    fn definition(&self) -> Step {
        Step {
            name: self.name.as_str().into(),
            inputs: self.inputs.clone(),
            join_window_ms: self.join_window_ms,
            tensor_map: self.tensor_map.clone(),
            inputs_join: self.inputs_join_type.into(),
            triggers: self.triggers.clone(),
            triggers_join: self.triggers_join_type.unwrap_or_default().into(),
            batch: self.batch.as_ref().map(|b| Batch {
                size: b.size,
                window_ms: b.window_ms,
                rolling: b.rolling,
            }),
        }
    }
}

/// The first error of the graph: an unknown step, a cycle.
pub(crate) fn graph_errors(name: &str, spec: &PipelineSpec) -> Vec<FieldError> {
    let Err(invalid) = validate(&spec.definition(name)) else { return Vec::new() };
    let hint = spec
        .reference(&invalid.field)
        .map(|reference| reference.split('.').next().unwrap_or(reference))
        .filter(|step| *step != name && spec.steps.iter().all(|s| s.name != *step))
        .and_then(|step| nearest(step, spec.steps.iter().map(|s| s.name.as_str()).chain([name])))
        .map(|near| format!(". Did you mean {near}?"))
        .unwrap_or_default();
    // The manifest names the pipeline already.
    let message = invalid.message.strip_prefix(&format!("pipeline {name} ")).unwrap_or(&invalid.message);
    vec![(format!("spec.{}", invalid.field), format!("{}{hint}", message.trim_start_matches(": ")))]
}
