//! Validation rules of KServe's kinds.

use super::{
    CanarySpec, ClusterStorageContainerSpec, ComponentSpec, FrameworkSpec, InferenceGraphSpec,
    InferenceServiceSpec, PredictorSpec, RouterType, ServingRuntimeSpec, TrainedModelSpec,
    pod_fields::{container_errors, inline_container_errors, pod_errors},
};
use crate::{
    FieldError,
    validation::{CelRule, Check, Rule, Violation},
};
use serde_json::Value;
use std::collections::BTreeSet;

/// The container of a custom predictor.
const MAIN_CONTAINER: &str = "kserve-container";

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

const fn name_rule<T>() -> Rule<T> {
    Rule {
        cel: CelRule {
            ratchet: "oldSelf.hasValue()",
            ..cel(
                "",
                "metadata.name",
                "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
                "must start with a letter, end with a letter or a digit, and contain only lower-case letters, digits and '-'",
            )
        },
        check: Check::Object(|name, _| violation_if(!is_dns_label(name), "metadata.name")),
    }
}

const fn min_not_above_max(
    at: &'static str,
    check: fn(&InferenceServiceSpec) -> Vec<Violation>,
) -> Rule<InferenceServiceSpec> {
    let rule = "!has(self.minReplicas) || !has(self.maxReplicas) || self.maxReplicas == 0 || self.minReplicas <= self.maxReplicas";
    Rule { cel: cel(at, "minReplicas", rule, "must not exceed maxReplicas"), check: Check::Spec(check) }
}

fn exceeds_max(component: &ComponentSpec) -> bool {
    let max = component.max_replicas.filter(|max| *max != 0);
    component.min_replicas.zip(max).is_some_and(|(min, max)| min > max)
}

pub(crate) const INFERENCE_SERVICE: &[Rule<InferenceServiceSpec>] = &[
    name_rule(),
    Rule {
        cel: cel(
            "spec.predictor",
            "",
            "[has(self.sklearn), has(self.xgboost), has(self.tensorflow), has(self.pytorch), has(self.triton), has(self.onnx), \
             has(self.huggingface), has(self.pmml), has(self.lightgbm), has(self.paddle), has(self.model), \
             has(self.containers) && self.containers.exists(c, has(c.name) && c.name == 'kserve-container')]\
             .filter(f, f).size() <= 1",
            "must have exactly one of model, a framework such as sklearn, or a container named kserve-container",
        ),
        check: Check::Spec(|s| violation_if(implementations(&s.predictor) > 1, "spec.predictor")),
    },
    Rule {
        cel: cel(
            "spec.predictor",
            "",
            "has(self.sklearn) || has(self.xgboost) || has(self.tensorflow) || has(self.pytorch) || has(self.triton) || \
             has(self.onnx) || has(self.huggingface) || has(self.pmml) || has(self.lightgbm) || has(self.paddle) || \
             has(self.model) || (has(self.containers) && self.containers.size() > 0)",
            "is empty: set model with modelFormat and storageUri, or containers",
        ),
        check: Check::Spec(|s| {
            let is_empty = implementations(&s.predictor) == 0 && s.predictor.containers.is_empty();
            violation_if(is_empty, "spec.predictor")
        }),
    },
    Rule {
        cel: cel(
            "spec.predictor",
            "storageUris",
            "!has(self.storageUris) || self.storageUris.size() == 0 || !has(self.model) || !has(self.model.storageUri)",
            "is mutually exclusive with storageUri: remove one",
        ),
        check: Check::Spec(|s| {
            let model = s.predictor.model.as_ref();
            let has_uri = model.is_some_and(|model| model.framework.storage_uri.is_some());
            violation_if(has_uri && !s.predictor.storage_uris.is_empty(), "spec.predictor.storageUris")
        }),
    },
    min_not_above_max("spec.predictor", |s| {
        violation_if(exceeds_max(&s.predictor.component), "spec.predictor.minReplicas")
    }),
    min_not_above_max("spec.transformer", |s| {
        let broken = s.transformer.as_ref().is_some_and(|t| exceeds_max(&t.component));
        violation_if(broken, "spec.transformer.minReplicas")
    }),
    min_not_above_max("spec.explainer", |s| {
        let broken = s.explainer.as_ref().is_some_and(|e| exceeds_max(&e.component));
        violation_if(broken, "spec.explainer.minReplicas")
    }),
    Rule {
        cel: cel(
            "spec.transformer",
            "containers",
            "has(self.containers) && self.containers.size() > 0",
            "is empty: a transformer needs a container",
        ),
        check: Check::Spec(|s| {
            let broken = s.transformer.as_ref().is_some_and(|t| t.containers.is_empty());
            violation_if(broken, "spec.transformer.containers")
        }),
    },
    Rule {
        cel: cel(
            "spec.explainer",
            "",
            "has(self.art) || (has(self.containers) && self.containers.size() > 0)",
            "is empty: set art or containers",
        ),
        check: Check::Spec(|s| {
            let broken = s.explainer.as_ref().is_some_and(|e| e.art.is_none() && e.containers.is_empty());
            violation_if(broken, "spec.explainer")
        }),
    },
    Rule {
        cel: cel(
            "spec.canary[]",
            "predictor.name",
            "has(self.predictor.name) && self.predictor.name != ''",
            "is missing: a canary needs a name",
        ),
        check: Check::Spec(|s| {
            let unnamed = s.canary.iter().enumerate().filter(|(_, c)| name_of(c).is_empty());
            unnamed.map(|(i, _)| (format!("spec.canary[{i}].predictor.name"), Vec::new())).collect()
        }),
    },
    Rule {
        cel: cel(
            "spec",
            "canary",
            "!has(self.canary) || self.canary.map(c, c.trafficPercent).sum() <= 100",
            "has more than 100 percent of the traffic",
        ),
        check: Check::Spec(|s| {
            let sum: i64 = s.canary.iter().map(|c| i64::from(c.traffic_percent)).sum();
            violation_if(sum > 100, "spec.canary")
        }),
    },
];

fn name_of(canary: &CanarySpec) -> &str {
    canary.predictor.name.as_deref().unwrap_or_default()
}

/// Implementations of a predictor; containers count by the name that KServe reserves.
fn implementations(predictor: &PredictorSpec) -> usize {
    let is_main = |container: &Value| container.get("name").and_then(Value::as_str) == Some(MAIN_CONTAINER);
    let custom = usize::from(predictor.containers.iter().any(is_main));
    predictor.frameworks().count() + usize::from(predictor.model.is_some()) + custom
}

/// Inline pods and containers, which have no schema, and rules about several canaries.
pub(crate) fn inference_service_errors(_name: &str, spec: &InferenceServiceSpec) -> Vec<FieldError> {
    let mut errors = predictor_errors(&spec.predictor, "spec.predictor");
    if let Some(transformer) = &spec.transformer {
        errors.extend(container_errors(&transformer.containers, "spec.transformer.containers"));
        errors.extend(pod_errors(&transformer.pod, "spec.transformer", &[]));
    }
    if let Some(explainer) = &spec.explainer {
        errors.extend(container_errors(&explainer.containers, "spec.explainer.containers"));
        errors.extend(pod_errors(&explainer.pod, "spec.explainer", &[]));
    }
    let mut names = BTreeSet::from([spec.predictor.name.as_deref().unwrap_or_default()]);
    for (i, canary) in spec.canary.iter().enumerate() {
        let path = format!("spec.canary[{i}].predictor");
        if !names.insert(name_of(canary)) {
            errors.push((format!("{path}.name"), "is used by another predictor: names must differ".into()));
        }
        errors.extend(predictor_errors(&canary.predictor, &path));
        let scaling = &canary.predictor.component;
        let fixed = [
            ("maxReplicas", scaling.max_replicas.is_some()),
            ("scaleTarget", scaling.scale_target.is_some()),
            ("scaleMetric", scaling.scale_metric.is_some()),
            ("autoScaling", scaling.auto_scaling.is_some()),
            ("workerSpec", canary.predictor.worker_spec.is_some()),
        ];
        for (field, _) in fixed.iter().filter(|(_, is_set)| *is_set) {
            let message = "is not allowed in a canary: its replicas follow from its share of the traffic";
            errors.push((format!("{path}.{field}"), message.into()));
        }
    }
    errors
}

fn predictor_errors(predictor: &PredictorSpec, path: &str) -> Vec<FieldError> {
    let mut errors = container_errors(&predictor.containers, &format!("{path}.containers"));
    errors.extend(pod_errors(&predictor.pod, path, &[]));
    if predictor.name.as_deref().is_some_and(|name| !name.is_empty() && !is_dns_label(name)) {
        let message = "must start with a letter and contain only lower-case letters, digits and '-'";
        errors.push((format!("{path}.name"), message.into()));
    }
    let mut check = |spec: &FrameworkSpec, field: &str| {
        let path = format!("{path}.{field}");
        errors.extend(inline_container_errors(&spec.container, &path, &[]));
        if spec.container.get("name").and_then(Value::as_str).is_some_and(|name| !name.is_empty()) {
            errors.push((format!("{path}.name"), "is not allowed: the runtime names its container".into()));
        }
    };
    if let Some(model) = &predictor.model {
        check(&model.framework, "model");
    }
    for (framework, spec) in predictor.frameworks() {
        check(spec, framework.as_str());
    }
    for (i, storage) in predictor.storage_uris.iter().enumerate() {
        let at = format!("{path}.storageUris[{i}]");
        if storage.uri.trim().is_empty() {
            errors.push((format!("{at}.uri"), "is empty: set it to the location of the artifact".into()));
        }
        let mount = storage.mount_path.as_deref().unwrap_or("/mnt/models");
        if !mount.starts_with('/') || mount == "/" || mount.split('/').any(|part| part == "..") {
            let message = "must be an absolute path other than / and without ..";
            errors.push((format!("{at}.mountPath"), message.into()));
        }
    }
    errors
}

pub(crate) const SERVING_RUNTIME: &[Rule<ServingRuntimeSpec>] = &[Rule {
    cel: cel("spec.containers", "", "self.size() > 0", "is empty: name the container of the model server"),
    check: Check::Spec(|s| violation_if(s.containers.is_empty(), "spec.containers")),
}];

pub(crate) fn serving_runtime_errors(_name: &str, spec: &ServingRuntimeSpec) -> Vec<FieldError> {
    let mut errors = container_errors(&spec.containers, "spec.containers");
    errors.extend(pod_errors(&spec.pod, "spec", &[]));
    let formats = &spec.supported_model_formats;
    for (i, format) in formats.iter().enumerate() {
        let other = |f: &&super::SupportedModelFormat| {
            f.name == format.name && f.version == format.version && f.priority != format.priority
        };
        if formats.iter().take(i).any(|f| other(&f)) {
            let message = "differs from the priority of the same format above: use one priority";
            errors.push((format!("spec.supportedModelFormats[{i}].priority"), message.into()));
        }
    }
    errors
}

pub(crate) const CLUSTER_STORAGE_CONTAINER: &[Rule<ClusterStorageContainerSpec>] = &[Rule {
    cel: cel(
        "spec",
        "workloadType",
        "!has(self.workloadType) || self.workloadType in ['', 'initContainer', 'localModelDownloadJob']",
        "must be initContainer or localModelDownloadJob",
    ),
    check: Check::Spec(|s| {
        let workload = s.workload_type.as_deref().unwrap_or_default();
        let known = ["", "initContainer", "localModelDownloadJob"].contains(&workload);
        violation_if(!known, "spec.workloadType")
    }),
}];

pub(crate) const TRAINED_MODEL: &[Rule<TrainedModelSpec>] = &[Rule {
    cel: cel(
        "spec.inferenceService",
        "",
        "self != ''",
        "is empty: name the InferenceService that serves the model",
    ),
    check: Check::Spec(|s| violation_if(s.inference_service.is_empty(), "spec.inferenceService")),
}];

pub(crate) const INFERENCE_GRAPH: &[Rule<InferenceGraphSpec>] = &[
    name_rule(),
    Rule {
        cel: cel("spec.nodes", "", "'root' in self", "has no node root, where requests enter"),
        check: Check::Spec(|s| violation_if(!s.nodes.contains_key("root"), "spec.nodes")),
    },
];

pub(crate) fn inference_graph_errors(_name: &str, spec: &InferenceGraphSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (name, node) in &spec.nodes {
        let path = format!("spec.nodes.{name}");
        let mut names = BTreeSet::new();
        for (i, step) in node.steps.iter().enumerate() {
            let at = format!("{path}.steps[{i}]");
            if step.name.as_ref().is_some_and(|name| !name.is_empty() && !names.insert(name)) {
                errors.push((format!("{at}.name"), "is used by another step of the node".into()));
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
                errors.push((format!("{at}.nodeName"), format!("\"{target}\" is not a node of the graph")));
            }
            let has_weight = step.weight.is_some_and(|weight| weight >= 0);
            if node.router_type == RouterType::Splitter && !has_weight {
                errors.push((
                    format!("{at}.weight"),
                    "is missing: each step of a Splitter needs a share".into(),
                ));
            }
        }
        let sum: i64 = node.steps.iter().filter_map(|step| step.weight).fold(0, i64::saturating_add);
        if node.router_type == RouterType::Splitter && sum != 100 {
            errors
                .push((format!("{path}.steps"), format!("have weights that add up to {sum} instead of 100")));
        }
    }
    errors
}
