//! Validation of admission requests: a pure function of the request and the caches.

use super::{
    immutable_fields::ImmutableFields,
    references::References,
    review::{AdmissionRequest, Decision},
};
use crate::{
    caches::Caches,
    cluster::{Custom, CustomKind},
};
use gantry_api::FieldError;
use kube::core::{DynamicObject, admission::Operation};

/// On objects with this annotation, changes of immutable fields cause a warning instead of a rejection.
pub(super) const WARN_ONLY: (&str, &str) = ("gantry.dev/admission", "warn");

/// Validates a request by its registered kind. Other kinds and subresources are allowed.
pub fn validate(request: &AdmissionRequest, caches: &Caches) -> Decision {
    let resource = &request.resource;
    let is_subresource = request.sub_resource.as_deref().is_some_and(|name| !name.is_empty());
    match caches.registry.find(&resource.group, &resource.resource) {
        Some(registration) if !is_subresource => (registration.admit)(request, caches),
        _ => Decision::default(),
    }
}

/// Validates a request for a kind with references and immutable fields.
pub(crate) fn validate_kind<K: References + ImmutableFields>(
    request: &AdmissionRequest,
    caches: &Caches,
) -> Decision {
    match (&request.operation, &request.object, &request.old_object) {
        (Operation::Create, Some(new), _) => validate_write(&decode::<K>(request, new), None, caches),
        (Operation::Update, Some(new), Some(old)) => {
            let is_same_spec = new.data.get("spec") == old.data.get("spec");
            let (new, old) = (decode::<K>(request, new), decode(request, old));
            let is_same = is_same_spec && K::SWITCHES.iter().all(|s| new.annotation(s) == old.annotation(s));
            // Other metadata can always be changed, also of invalid objects: finalizers must be removable.
            if new.is_deleted() || is_same {
                return Decision::default();
            }
            validate_write(&new, Some(&old), caches)
        }
        (Operation::Delete, _, Some(old)) => {
            let warnings = K::dependents(&decode(request, old), caches);
            Decision { rejection: None, warnings }
        }
        _ => Decision::default(),
    }
}

/// Takes name and namespace from the request where the object lacks them.
fn decode<K: CustomKind>(request: &AdmissionRequest, object: &DynamicObject) -> Custom<K> {
    let is_empty = |field: &Option<String>| field.as_deref().unwrap_or_default().is_empty();
    let mut metadata = object.metadata.clone();
    if is_empty(&metadata.namespace) {
        metadata.namespace.clone_from(&request.namespace);
    }
    if is_empty(&metadata.name) && !request.name.is_empty() {
        metadata.name = Some(request.name.clone());
    }
    let spec = object.data.get("spec").cloned().unwrap_or_default();
    let spec = serde_json::from_value(spec).map_err(|e| e.to_string());
    Custom { metadata, spec, status: None, is_disabled: false }
}

fn validate_write<K: References + ImmutableFields>(
    new: &Custom<K>,
    old: Option<&Custom<K>>,
    caches: &Caches,
) -> Decision {
    // Ratcheting, as in Kubernetes: errors of the old object do not block other changes.
    let known = old.map(violations).unwrap_or_default();
    let introduced = violations(new).into_iter().filter(|violation| !known.contains(violation));
    let mut rejections: Vec<String> = introduced.map(|(path, error)| format!("{path} {error}")).collect();
    let mut warnings = Vec::new();
    if let Some(change) = old.and_then(|old| K::immutable_change(new, old, caches)) {
        if is_warn_only(new) { warnings.push(change.warning()) } else { rejections.push(change.rejection()) }
    }
    if !rejections.is_empty() {
        return Decision { rejection: Some(rejections.join("; ")), warnings };
    }
    warnings.extend(K::dangling(new, caches));
    Decision { rejection: None, warnings }
}

/// Violations of the validation rules, for clusters whose CRDs are older than the rules.
fn violations<K: CustomKind>(object: &Custom<K>) -> Vec<FieldError> {
    match &object.spec {
        Err(error) => vec![("spec".into(), format!("cannot be decoded: {error}"))],
        Ok(spec) => object.violations(spec),
    }
}

fn is_warn_only<K: CustomKind>(object: &Custom<K>) -> bool {
    object.annotation(WARN_ONLY.0) == Some(WARN_ONLY.1)
}
