//! Rules of `InferenceGraph`.

use super::{cel, name_rule, violation_if};
use crate::{
    FieldError,
    kserve::{InferenceGraphSpec, RouterType},
    validation::{Check, Rule},
};
use std::collections::BTreeSet;

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
        let path = format!("spec.nodes.{name}");
        if node.steps.is_empty() {
            errors.push((format!("{path}.steps"), "is empty: add a step".into()));
            continue;
        }
        let mut names = BTreeSet::new();
        for (i, step) in node.steps.iter().enumerate() {
            let at = format!("{path}.steps[{i}]");
            if step.name.as_ref().is_some_and(|name| !name.is_empty() && !names.insert(name)) {
                errors.push((
                    format!("{at}.name"),
                    "is used by another step of the node: names must differ".into(),
                ));
            }
            let targets = [&step.node_name, &step.service_name, &step.service_url];
            if targets.iter().filter(|t| t.as_ref().is_some_and(|t| !t.is_empty())).count() != 1 {
                errors.push((
                    at.clone(),
                    "must have exactly one of nodeName, serviceName and serviceUrl".into(),
                ));
            }
            if let Some(target) =
                step.node_name.as_ref().filter(|n| !n.is_empty() && !spec.nodes.contains_key(*n))
            {
                errors.push((format!("{at}.nodeName"), format!("\"{target}\" is not in spec.nodes: add it")));
            }
            let has_weight = step.weight.is_some_and(|weight| weight >= 0);
            if node.router_type == RouterType::Splitter && !has_weight {
                errors.push((
                    format!("{at}.weight"),
                    "is missing: each step of a Splitter needs its percentage of the requests".into(),
                ));
            }
        }
        let sum: i64 = node.steps.iter().filter_map(|step| step.weight).fold(0, i64::saturating_add);
        if node.router_type == RouterType::Splitter && sum != 100 {
            errors.push((
                format!("{path}.steps"),
                format!("have weights that add up to {sum}: they must add up to 100"),
            ));
        }
    }
    errors
}
