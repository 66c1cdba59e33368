//! The graph of a predictor as an arena, and its pipeline.
//!
//! The old orchestrator visits a unit on the way in (MODEL, TRANSFORMER, ROUTER) or on the way out (COMBINER,
//! `OUTPUT_TRANSFORMER`). A pass from the root finds what a unit receives, a pass from the leaves what it returns.

use super::{Output, source::Unit};
use crate::{Diagnostic, JoinType, PipelineOutput, PipelineSpec, PipelineStep};
use serde_json::Value;

/// The largest graph.
const MAX_UNITS: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnitType {
    Model,
    Transformer,
    OutputTransformer,
    Combiner,
    Router,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) unit: Unit,
    pub(super) kind: UnitType,
    /// Path in the manifest.
    pub(super) path: String,
    pub(super) children: Vec<usize>,
}

/// Parents come before their children.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
}

impl Graph {
    pub(super) fn read(graph: &Value, path: &str, output: &mut Output<'_>) -> Result<Self, Diagnostic> {
        let mut nodes: Vec<Node> = Vec::new();
        // Unread units: parent, position in the manifest, value.
        let mut unread: Vec<(Option<usize>, String, Value)> = vec![(None, path.to_owned(), graph.clone())];
        while let Some((parent, path, mut value)) = unread.pop() {
            if nodes.len() == MAX_UNITS {
                return Err(output.error(&path, format!("a graph has at most {MAX_UNITS} units")));
            }
            let below = value.as_object_mut().and_then(|unit| unit.remove("children"));
            let unit: Unit = serde_json::from_value(value)
                .map_err(|e| output.error(&path, format!("is not a unit of a graph: {e}")))?;
            let kind = unit_type(&unit, &path, output);
            let index = nodes.len();
            if let Some(parent) = parent.and_then(|p| nodes.get_mut(p)) {
                parent.children.push(index);
            }
            let Value::Array(children) = below.unwrap_or_default() else {
                nodes.push(Node { unit, kind, path, children: Vec::new() });
                continue;
            };
            // Popped from the end: the first child comes first.
            for (i, child) in children.into_iter().enumerate().rev() {
                unread.push((Some(index), format!("{path}.children[{i}]"), child));
            }
            nodes.push(Node { unit, kind, path, children: Vec::new() });
        }
        Ok(Self { nodes })
    }

    /// The graph as steps; `names` are those of the models. Units without a name are no steps.
    pub(super) fn pipeline(&self, names: &[String], output: &mut Output<'_>) -> PipelineSpec {
        let mut steps: Vec<PipelineStep> =
            names.iter().map(|name| PipelineStep { name: name.clone(), ..PipelineStep::default() }).collect();
        // What each unit receives: sources and a trigger. An empty list is the input of the pipeline.
        let mut received: Vec<(Vec<String>, Option<String>)> = vec![(Vec::new(), None); names.len()];
        for (i, (node, name)) in self.nodes.iter().zip(names).enumerate() {
            let (inputs, trigger) = received.get(i).cloned().unwrap_or_default();
            if node.kind.is_visited_first()
                && let Some(step) = steps.get_mut(i)
            {
                step.inputs.clone_from(&inputs);
                step.triggers.extend(trigger.clone());
            }
            for child in &node.children {
                let branch = names.get(*child).map(String::as_str).unwrap_or_default();
                let for_child = match node.kind {
                    UnitType::Model | UnitType::Transformer => (vec![name.clone()], None),
                    UnitType::Router => (inputs.clone(), Some(format!("{name}.outputs.{branch}"))),
                    UnitType::Combiner | UnitType::OutputTransformer => (inputs.clone(), trigger.clone()),
                };
                if let Some(slot) = received.get_mut(*child) {
                    *slot = for_child;
                }
            }
        }
        // What each unit returns: the steps, of which one runs if there are alternatives.
        let mut returned: Vec<(Vec<String>, bool)> = vec![(Vec::new(), false); names.len()];
        for (i, (node, name)) in self.nodes.iter().zip(names).enumerate().rev() {
            let below: Vec<&(Vec<String>, bool)> =
                node.children.iter().filter_map(|child| returned.get(*child)).collect();
            let all: Vec<String> = below.iter().flat_map(|(sources, _)| sources.clone()).collect();
            let alternatives = below.iter().any(|(_, alternatives)| *alternatives);
            let result = match node.kind {
                _ if all.is_empty() => (vec![name.clone()], false),
                UnitType::Router => (all, true),
                // The old orchestrator returned the result of the first child.
                UnitType::Model | UnitType::Transformer => {
                    below.first().map_or_else(Default::default, |b| (*b).clone())
                }
                UnitType::Combiner | UnitType::OutputTransformer => {
                    if let Some(step) = steps.get_mut(i) {
                        step.inputs = all;
                        step.inputs_join_type = match (alternatives, below.len()) {
                            (false, _) => JoinType::Inner,
                            (true, 1) => JoinType::Any,
                            // Alternatives beside other inputs: those that will arrive.
                            (true, _) => JoinType::Outer,
                        };
                    }
                    (vec![name.clone()], false)
                }
            };
            if let Some(slot) = returned.get_mut(i) {
                *slot = result;
            }
        }
        self.notes(output);
        let (sources, alternatives) = returned.first().cloned().unwrap_or_default();
        let steps_join = if alternatives { JoinType::Any } else { JoinType::Inner };
        PipelineSpec {
            steps,
            output: Some(PipelineOutput { steps: sources, steps_join, ..PipelineOutput::default() }),
            ..PipelineSpec::default()
        }
    }

    fn notes(&self, output: &mut Output<'_>) {
        for node in &self.nodes {
            let several = node.children.len() > 1;
            let message = match node.kind {
                UnitType::Router => {
                    "ROUTER: its model has to output a tensor for the branch that it chooses, named as the step; \
                     the number of a branch is not evaluated"
                }
                UnitType::Combiner if several => {
                    "COMBINER: its model receives the tensors of all children; if two have the same name, rename one \
                     in tensorMap"
                }
                UnitType::Model | UnitType::Transformer if several => {
                    "has several children without a COMBINER: the result of the first is returned"
                }
                UnitType::OutputTransformer if several => {
                    "OUTPUT_TRANSFORMER with several children: it receives the tensors of all"
                }
                _ => continue,
            };
            output.note(&node.path, message);
        }
    }
}

impl UnitType {
    /// Whether the unit itself runs before its children.
    const fn is_visited_first(self) -> bool {
        matches!(self, Self::Model | Self::Transformer | Self::Router)
    }
}

fn unit_type(unit: &Unit, path: &str, output: &mut Output<'_>) -> UnitType {
    let implied = match unit.implementation.as_deref() {
        Some("RANDOM_ABTEST" | "SIMPLE_ROUTER") => UnitType::Router,
        Some("AVERAGE_COMBINER") => UnitType::Combiner,
        _ => UnitType::Model,
    };
    match unit.r#type.as_deref() {
        None | Some("UNKNOWN_TYPE") => implied,
        Some("MODEL") => UnitType::Model,
        Some("TRANSFORMER") => UnitType::Transformer,
        Some("OUTPUT_TRANSFORMER") => UnitType::OutputTransformer,
        Some("COMBINER") => UnitType::Combiner,
        Some("ROUTER") => UnitType::Router,
        Some(other) => {
            let message =
                format!("\"{}\" is not a type of a unit; it is used as MODEL", other.escape_debug());
            output.note(&format!("{path}.type"), message);
            UnitType::Model
        }
    }
}
