//! Rules of `InferenceGraph`.

use super::{cel, name_rule, violation_if};
use crate::{
    FieldError,
    kserve::InferenceGraphSpec,
    validation::{Check, Rule},
};
use gantry_core::inference_graph::validate;

pub(crate) const INFERENCE_GRAPH: &[Rule<InferenceGraphSpec>] = &[
    name_rule(),
    Rule {
        cel: cel(
            "spec.nodes",
            "",
            "'root' in self",
            "has no node root, where requests enter: rename a node to root",
        ),
        check: Check::Spec(|s| violation_if(!s.nodes.contains_key("root"), "spec.nodes")),
    },
];

pub(crate) fn inference_graph_errors(_name: &str, spec: &InferenceGraphSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (name, node) in &spec.nodes {
        for (i, step) in node.steps.iter().enumerate() {
            if step.targets().count() != 1 {
                let message = "must have exactly one of nodeName, serviceName and serviceUrl";
                errors.push((format!("spec.nodes.{name}.steps[{i}]"), message.into()));
            }
        }
    }
    let invalid = validate(&spec.definition());
    errors.extend(invalid.into_iter().map(|e| (format!("spec.{}", e.field), e.message)));
    errors
}
