//! Validation rules of KServe's kinds.

mod inference_graph;
mod inference_service;
mod serving_runtime;

use super::{
    WorkerSpec,
    pod_fields::{container_errors, pod_errors},
};
use crate::{
    FieldError,
    validation::{CelRule, Check, Rule, Violation},
};
pub(crate) use inference_graph::{INFERENCE_GRAPH, inference_graph_errors};
pub(crate) use inference_service::{INFERENCE_SERVICE, inference_service_errors, inference_service_warnings};
pub(crate) use serving_runtime::{
    CLUSTER_STORAGE_CONTAINER, SERVING_RUNTIME, TRAINED_MODEL, serving_runtime_errors,
    storage_container_errors, trained_model_errors,
};

const fn cel(at: &'static str, field: &'static str, rule: &'static str, message: &'static str) -> CelRule {
    CelRule { at, field, rule, message, values: &[], ratchet: "" }
}

fn violation_if(broken: bool, path: impl Into<String>) -> Vec<Violation> {
    if broken { vec![(path.into(), Vec::new())] } else { Vec::new() }
}

/// Names become parts of host names and of names of Services.
fn is_dns_label(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.ends_with(is_word)
        && name.chars().all(|c| is_word(c) || c == '-')
}

/// Beside the rule about DNS labels.
pub(crate) const fn name_rule<T>() -> Rule<T> {
    Rule {
        cel: CelRule {
            ratchet: "oldSelf.hasValue()",
            ..cel(
                "",
                "metadata.name",
                "self.metadata.name.matches('^[a-z]')",
                "must start with a lower-case letter: names of Services are derived from it",
            )
        },
        check: Check::Object(|name, _| {
            violation_if(!name.starts_with(|c: char| c.is_ascii_lowercase()), "metadata.name")
        }),
    }
}

fn worker_errors(worker: &WorkerSpec, path: &str) -> Vec<FieldError> {
    let containers = format!("{path}.containers");
    let mut errors = container_errors(&worker.containers, &containers);
    errors.extend(pod_errors::<WorkerSpec>(&worker.pod, path));
    if worker.containers.len() > 1 {
        errors.push((containers, "has more than one container: a worker has one".into()));
    }
    errors
}
