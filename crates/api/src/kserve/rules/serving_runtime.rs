//! Rules of `ServingRuntime`, `ClusterStorageContainer` and `TrainedModel`.

use super::{cel, violation_if};
use crate::{
    FieldError,
    kserve::{
        ClusterStorageContainerSpec, ServingRuntimeSpec, SupportedModelFormat, TrainedModelSpec,
        pod_fields::{NoFields, container_errors, inline_container_errors, pod_errors},
    },
    validation::{Check, Rule},
};
use serde_json::Value;

pub(crate) const SERVING_RUNTIME: &[Rule<ServingRuntimeSpec>] = &[Rule {
    cel: cel("spec.containers", "", "self.size() > 0", "is empty: name the container of the model server"),
    check: Check::Spec(|s| violation_if(s.containers.is_empty(), "spec.containers")),
}];

pub(crate) fn serving_runtime_errors(_name: &str, spec: &ServingRuntimeSpec) -> Vec<FieldError> {
    let mut errors = container_errors(&spec.containers, "spec.containers");
    errors.extend(pod_errors::<ServingRuntimeSpec>(&spec.pod, "spec"));
    if let Some(worker) = &spec.worker_spec {
        errors.extend(super::worker_errors(worker, "spec.workerSpec"));
    }
    let formats = &spec.supported_model_formats;
    for (i, format) in formats.iter().enumerate() {
        let other = |f: &&SupportedModelFormat| {
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

pub(crate) fn storage_container_errors(_name: &str, spec: &ClusterStorageContainerSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Value::Object(container) = &spec.container {
        errors.extend(inline_container_errors::<NoFields>(container, "spec.container"));
    }
    for (i, format) in spec.supported_uri_formats.iter().enumerate() {
        let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        if is_set(&format.prefix) == is_set(&format.regex) {
            let message = "must have one of prefix and regex, such as prefix: s3://";
            errors.push((format!("spec.supportedUriFormats[{i}]"), message.into()));
        }
    }
    errors
}

pub(crate) const TRAINED_MODEL: &[Rule<TrainedModelSpec>] = &[Rule {
    cel: cel(
        "spec.inferenceService",
        "",
        "self != ''",
        "is empty: name the InferenceService that serves the model",
    ),
    check: Check::Spec(|s| violation_if(s.inference_service.is_empty(), "spec.inferenceService")),
}];

pub(crate) fn trained_model_errors(name: &str, spec: &TrainedModelSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if name.contains('.') {
        errors.push(("metadata.name".into(), "contains '.': it becomes part of a path, use '-'".into()));
    }
    if !spec.model.storage_uri.contains("://") {
        let message = "must be a URI such as s3://bucket/model";
        errors.push(("spec.model.storageUri".into(), message.into()));
    }
    errors
}
