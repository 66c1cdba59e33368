//! A pipeline as nodes and edges.

use gantry_proto::scheduler::{Pipeline, PipelineStep};
use serde::Serialize;
use std::collections::BTreeSet;

/// The node of the request.
const INPUT: &str = "";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Edge {
    /// A step; empty for the request.
    pub(crate) from: String,
    /// A step; missing for the response.
    pub(crate) to: Option<String>,
    /// The tensor or the part of the source, if it is not all of its outputs.
    pub(crate) label: String,
    /// It decides whether the step runs, and carries no data.
    pub(crate) trigger: bool,
}

/// The edges of a pipeline, each once.
pub(crate) fn edges(pipeline: &Pipeline) -> Vec<Edge> {
    let steps: Vec<&str> = pipeline.steps.iter().map(|step| step.name.as_str()).collect();
    let mut edges = BTreeSet::new();
    for step in &pipeline.steps {
        let to = Some(step.name.clone());
        for (source, trigger) in sources(step) {
            let (from, label) = split(source, &steps);
            edges.insert(Edge { from, to: to.clone(), label, trigger });
        }
        if step.inputs.is_empty() && step.triggers.is_empty() {
            edges.insert(Edge { from: INPUT.into(), to, label: String::new(), trigger: false });
        }
    }
    for source in pipeline.output.iter().flat_map(|output| &output.steps) {
        let (from, label) = split(source, &steps);
        edges.insert(Edge { from, to: None, label, trigger: false });
    }
    edges.into_iter().collect()
}

/// A tensor of the request that a step reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RequestInput {
    /// Empty for all tensors, under the names of the model.
    tensor: String,
    step: String,
    /// Its name for the model, if it has another one.
    input: Option<String>,
}

/// What the steps read of the request, for a form.
pub(crate) fn request_inputs(pipeline: &Pipeline) -> Vec<RequestInput> {
    let steps: Vec<&str> = pipeline.steps.iter().map(|step| step.name.as_str()).collect();
    let mut inputs = BTreeSet::new();
    for step in &pipeline.steps {
        let name = || step.name.clone();
        if step.inputs.is_empty() {
            inputs.insert(RequestInput { tensor: String::new(), step: name(), input: None });
        }
        for source in &step.inputs {
            let (from, tensor) = split(source, &steps);
            if from == INPUT {
                let input = step.tensor_map.get(source).cloned();
                inputs.insert(RequestInput { tensor, step: name(), input });
            }
        }
    }
    inputs.into_iter().collect()
}

fn sources(step: &PipelineStep) -> impl Iterator<Item = (&str, bool)> {
    let inputs = step.inputs.iter().map(|source| (source.as_str(), false));
    inputs.chain(step.triggers.iter().map(|source| (source.as_str(), true)))
}

/// `step.outputs.tensor`: the step, or the request for anything that is no step of the pipeline, and what of it.
fn split(source: &str, steps: &[&str]) -> (String, String) {
    let is_of = |step: &&&str| {
        source.strip_prefix(**step).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    // A name may have dots: the longest that matches counts.
    let step = steps.iter().filter(is_of).max_by_key(|step| step.len());
    let Some(step) = step else {
        let tensor = source.split_once(".inputs.").map_or("", |(_, tensor)| tensor);
        return (INPUT.into(), tensor.to_owned());
    };
    let part = source.get(step.len() + 1..).unwrap_or_default();
    let label = match part.split_once('.') {
        Some(("outputs", tensor)) => tensor,
        None if part == "outputs" => "",
        Some(_) | None => part,
    };
    ((*step).to_owned(), label.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::scheduler::PipelineOutput;

    fn step(name: &str, inputs: &[&str], triggers: &[&str]) -> PipelineStep {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        PipelineStep {
            name: name.into(),
            inputs: owned(inputs),
            triggers: owned(triggers),
            ..PipelineStep::default()
        }
    }

    #[test]
    fn inputs_of_the_request_have_their_names_for_the_model() {
        let mut mapped = step("b", &["p.inputs.y", "a.outputs"], &[]);
        mapped.tensor_map.insert("p.inputs.y".into(), "input-0".into());
        let steps = vec![step("a", &[], &[]), mapped];
        let pipeline = Pipeline { name: "p".into(), steps, ..Pipeline::default() };
        let of = |tensor: &str, step: &str, input: Option<&str>| RequestInput {
            tensor: tensor.into(),
            step: step.into(),
            input: input.map(str::to_owned),
        };
        assert_eq!(request_inputs(&pipeline), [of("", "a", None), of("y", "b", Some("input-0"))]);
    }

    #[test]
    fn edges_lead_from_the_request_over_steps_to_the_response() {
        let pipeline = Pipeline {
            name: "p".into(),
            steps: vec![
                step("a", &[], &[]),
                step("a.b", &["a.outputs.x", "p.inputs.y"], &["a.outputs.flag"]),
                step("c", &["a.b", "a.inputs"], &[]),
            ],
            output: Some(PipelineOutput { steps: vec!["c.outputs".into()], ..PipelineOutput::default() }),
            ..Pipeline::default()
        };
        let shown: Vec<String> = edges(&pipeline)
            .iter()
            .map(|e| {
                let arrow = if e.trigger { "-->" } else { "->" };
                format!("{}{arrow}{} {}", e.from, e.to.as_deref().unwrap_or("out"), e.label)
            })
            .collect();
        assert_eq!(
            shown,
            ["->a ", "->a.b y", "a-->a.b flag", "a->a.b x", "a->c inputs", "a.b->c ", "c->out "]
        );
    }
}
