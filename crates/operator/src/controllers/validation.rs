//! Spec validation, and the status of kinds that report conditions only.

use crate::{
    cluster::{Custom, CustomKind},
    conditions::{ConditionUpdate, Progress, conditions},
};
use gantry_api::PlainStatus;
use k8s_openapi::jiff::Timestamp;

/// The spec if it is valid; otherwise the `Ready` condition with every violation.
pub(super) fn validate<K: CustomKind>(object: &Custom<K>) -> Result<&K::Spec, ConditionUpdate> {
    validate_ratcheted(object, false)
}

/// Like [`validate`]. The name of an object that has a workload is accepted: it cannot be changed, and the rule may be
/// newer than the object.
pub(super) fn validate_ratcheted<K: CustomKind>(
    object: &Custom<K>,
    has_workload: bool,
) -> Result<&K::Spec, ConditionUpdate> {
    let invalid = |message: String| ConditionUpdate::new(false, "InvalidSpec", message, Progress::Stalled);
    let spec = object.spec.as_ref().map_err(|e| invalid(format!("spec cannot be read: {e}")))?;
    let mut violations = object.violations(spec);
    violations.retain(|(path, _)| !(has_workload && path == "metadata.name"));
    if violations.is_empty() {
        return Ok(spec);
    }
    let sentences: Vec<String> =
        violations.iter().map(|(path, message)| format!("{path} {message}")).collect();
    Err(invalid(sentences.join("; ")))
}

pub(super) fn build_status<K: CustomKind<Status = PlainStatus>>(
    object: &Custom<K>,
    own: &[(&str, &ConditionUpdate)],
    ready: &ConditionUpdate,
    now: Timestamp,
) -> PlainStatus {
    let before = object.status.clone().unwrap_or_default();
    PlainStatus {
        observed_generation: Some(object.generation()),
        conditions: conditions(&before.conditions, own, ready, object.generation(), now),
        annotations: before.annotations,
    }
}
