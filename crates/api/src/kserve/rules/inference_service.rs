//! Rules of `InferenceService`.

use super::{cel, is_dns_label, name_rule, violation_if};
use crate::{
    FieldError,
    kserve::{
        CanarySpec, ComponentSpec, ConfidentialSpec, ExplainerComponent, FrameworkSpec, InferenceServiceSpec,
        PredictorSpec, StorageUri, TransformerComponent,
        pod_fields::{container_errors, inline_container_errors, pod_errors},
    },
    validation::{CelRule, Check, Rule, Violation},
};
use serde_json::Value;
use std::collections::BTreeSet;

/// The container of a custom predictor.
const MAIN_CONTAINER: &str = "kserve-container";
const SEVERAL: &str = "has more than one implementation: keep one of model, a framework such as sklearn, or a container named \
    kserve-container";
const NONE: &str = "is empty: set model with modelFormat and storageUri, or containers";

const fn min_not_above_max(
    at: &'static str,
    check: fn(&InferenceServiceSpec) -> Vec<Violation>,
) -> Rule<InferenceServiceSpec> {
    let cel = CelRule {
        at,
        field: "minReplicas",
        rule: "!has(self.minReplicas) || !has(self.maxReplicas) || self.maxReplicas == 0 || self.minReplicas <= self.maxReplicas",
        message: "is {}, more than maxReplicas {}: lower one or raise the other",
        values: &["self.minReplicas", "self.maxReplicas"],
        ratchet: "",
    };
    Rule { cel, check: Check::Spec(check) }
}

fn replica_violations(component: &ComponentSpec, path: &str) -> Vec<Violation> {
    let max = component.max_replicas.filter(|max| *max != 0);
    let broken = component.min_replicas.zip(max).filter(|(min, max)| min > max);
    let violation = |(min, max): (i32, i32)| (path.to_owned(), vec![min.to_string(), max.to_string()]);
    broken.map(violation).into_iter().collect()
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
            SEVERAL,
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
            NONE,
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
        replica_violations(&s.predictor.component, "spec.predictor.minReplicas")
    }),
    min_not_above_max("spec.transformer", |s| {
        let component = s.transformer.as_ref().map(|c| &c.component);
        component.map(|c| replica_violations(c, "spec.transformer.minReplicas")).unwrap_or_default()
    }),
    min_not_above_max("spec.explainer", |s| {
        let component = s.explainer.as_ref().map(|c| &c.component);
        component.map(|c| replica_violations(c, "spec.explainer.minReplicas")).unwrap_or_default()
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
            "is missing: a canary needs a name, which becomes part of the names of its objects",
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
            "!has(self.canary) || self.canary.map(c, has(c.trafficPercent) ? c.trafficPercent : 0).sum() <= 100",
            "has more than 100 percent of the traffic: lower trafficPercent",
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

/// The artifacts of a predictor, with the fields that hold them.
fn artifacts(predictor: &PredictorSpec) -> impl Iterator<Item = (&'static str, &FrameworkSpec)> {
    let model = predictor.model.iter().map(|model| ("model", &model.framework));
    model.chain(predictor.frameworks().map(|(framework, spec)| (framework.as_str(), spec)))
}

/// Inline pods and containers, which have no schema, and rules about lists.
pub(crate) fn inference_service_errors(_name: &str, spec: &InferenceServiceSpec) -> Vec<FieldError> {
    let mut errors = predictor_errors(&spec.predictor, "spec.predictor");
    if let Some(transformer) = &spec.transformer {
        errors.extend(container_errors(&transformer.containers, "spec.transformer.containers"));
        errors.extend(pod_errors::<TransformerComponent>(&transformer.pod, "spec.transformer"));
        errors.extend(storage_uri_errors(&transformer.storage_uris, "spec.transformer"));
    }
    if let Some(explainer) = &spec.explainer {
        errors.extend(container_errors(&explainer.containers, "spec.explainer.containers"));
        errors.extend(pod_errors::<ExplainerComponent>(&explainer.pod, "spec.explainer"));
        errors.extend(storage_uri_errors(&explainer.storage_uris, "spec.explainer"));
    }
    let mut names = BTreeSet::from([spec.predictor.name.as_deref().unwrap_or_default()]);
    for (i, canary) in spec.canary.iter().enumerate() {
        let path = format!("spec.canary[{i}].predictor");
        if !names.insert(name_of(canary)) {
            errors.push((format!("{path}.name"), "is used by another predictor: names must differ".into()));
        }
        errors.extend(canary_errors(canary, &spec.predictor, &path));
    }
    errors
}

fn canary_errors(canary: &CanarySpec, stable: &PredictorSpec, path: &str) -> Vec<FieldError> {
    let predictor = &canary.predictor;
    let mut errors = match implementations(predictor) {
        0 if predictor.containers.is_empty() => vec![(path.to_owned(), NONE.to_owned())],
        0 | 1 => Vec::new(),
        _ => vec![(path.to_owned(), SEVERAL.to_owned())],
    };
    errors.extend(predictor_errors(predictor, path));
    let scaling = &predictor.component;
    let fixed = [
        ("maxReplicas", scaling.max_replicas.is_some()),
        ("scaleTarget", scaling.scale_target.is_some()),
        ("scaleMetric", scaling.scale_metric.is_some()),
        ("autoScaling", scaling.auto_scaling.is_some()),
        ("workerSpec", predictor.worker_spec.is_some()),
    ];
    for (field, _) in fixed.iter().filter(|(_, is_set)| *is_set) {
        let message = "is not allowed in a canary: remove it, a canary has a fixed number of replicas";
        errors.push((format!("{path}.{field}"), message.into()));
    }
    let of_stable = stable.component.min_replicas.unwrap_or(1);
    if let Some(min) = scaling.min_replicas.filter(|min| *min > of_stable) {
        let message = format!("is {min}, more than the {of_stable} of spec.predictor: lower it");
        errors.push((format!("{path}.minReplicas"), message));
    }
    errors
}

fn predictor_errors(predictor: &PredictorSpec, path: &str) -> Vec<FieldError> {
    let mut errors = container_errors(&predictor.containers, &format!("{path}.containers"));
    errors.extend(pod_errors::<PredictorSpec>(&predictor.pod, path));
    if predictor.name.as_deref().is_some_and(|name| !name.is_empty() && !is_dns_label(name)) {
        let message = "must start with a letter and contain only lower-case letters, digits and '-'";
        errors.push((format!("{path}.name"), message.into()));
    }
    for (field, spec) in artifacts(predictor) {
        let path = format!("{path}.{field}");
        errors.extend(inline_container_errors::<FrameworkSpec>(&spec.container, &path));
        if spec.container.get("name").and_then(Value::as_str).is_some_and(|name| !name.is_empty()) {
            errors.push((
                format!("{path}.name"),
                "is not allowed: remove it, the runtime names its container".into(),
            ));
        }
        if let Some(confidential) = &spec.confidential {
            let has_uri = spec.storage_uri.is_some();
            errors.extend(confidential_errors(confidential, has_uri, &format!("{path}.confidential")));
        }
    }
    if let Some(worker) = &predictor.worker_spec {
        errors.extend(super::worker_errors(worker, &format!("{path}.workerSpec")));
    }
    errors.extend(storage_uri_errors(&predictor.storage_uris, path));
    errors
}

fn confidential_errors(confidential: &ConfidentialSpec, has_uri: bool, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if confidential.enabled && !has_uri {
        errors.push((path.to_owned(), "needs storageUri: set it to the encrypted artifact".into()));
    }
    let is_key = |id: &String| {
        let parts = id.strip_prefix("kbs:///").map(|key| key.split('/').collect::<Vec<_>>());
        parts.is_some_and(|parts| parts.len() == 3 && parts.iter().all(|part| !part.is_empty()))
    };
    if confidential.resource_id.as_ref().is_some_and(|id| !id.is_empty() && !is_key(id)) {
        let message = "must be of the form kbs:///repository/type/tag";
        errors.push((format!("{path}.resourceId"), message.into()));
    }
    errors
}

fn storage_uri_errors(uris: &[StorageUri], path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    // One volume is mounted at the parent directory of all downloads.
    let mut parent: Option<&str> = None;
    let mut claims = BTreeSet::new();
    for (i, storage) in uris.iter().enumerate() {
        let at = format!("{path}.storageUris[{i}]");
        if storage.uri.trim().is_empty() {
            errors.push((format!("{at}.uri"), "is empty: set it to the location of the artifact".into()));
        }
        let mount = storage.mount_path.as_deref().unwrap_or("/mnt/models");
        let at = format!("{at}.mountPath");
        if !mount.starts_with('/') || mount == "/" || mount.split('/').any(|part| part == "..") {
            errors.push((at, "must be an absolute path other than / and without ..".into()));
            continue;
        }
        if storage.uri.starts_with("pvc://") {
            if !claims.insert(mount) {
                errors.push((at, format!("\"{mount}\" is used by another volume: choose another path")));
            }
            continue;
        }
        let top = mount.trim_start_matches('/').split('/').next().unwrap_or_default();
        if *parent.get_or_insert(top) != top {
            let message = "must have the same first directory as the other downloads: use /mnt/models/…";
            errors.push((at, message.into()));
        }
    }
    errors
}

/// Findings that KServe accepts, but which are mistakes more often than not.
pub(crate) fn inference_service_warnings(spec: &InferenceServiceSpec) -> Vec<FieldError> {
    let predictor = &spec.predictor;
    let has_runtime = predictor.model.as_ref().is_some_and(|model| model.runtime.is_some());
    if has_runtime || !predictor.storage_uris.is_empty() {
        return Vec::new();
    }
    // A container with arguments, variables or volumes of its own may find its model by them.
    let is_bare = |framework: &FrameworkSpec| {
        let has_own = ["args", "command", "env", "envFrom", "image", "volumeMounts"]
            .iter()
            .any(|field| framework.container.contains_key(*field));
        framework.storage_uri.is_none() && framework.storage.is_none() && !has_own
    };
    let missing = artifacts(predictor).filter(|(_, framework)| is_bare(framework));
    let message = "is missing: the server starts without a model. Set it to the location of the artifact";
    missing.map(|(field, _)| (format!("spec.predictor.{field}.storageUri"), message.to_owned())).collect()
}
