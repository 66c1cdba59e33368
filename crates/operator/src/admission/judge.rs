//! What becomes of a question. Without effect, and from what is known here only: the same question in the same world has
//! the same answer.

use super::{
    fixed::Fixed,
    references::Referring,
    review::{Request, Verdict},
};
use crate::{
    caches::Caches,
    cluster::{Custom, CustomKind},
};
use gantry_api::FieldError;

/// An object that says so is told what it would be refused for, and is let through.
pub(super) const LENIENT: (&str, &str) = ("gantry.dev/admission", "warn");

/// Reviews a request by the registered kind. Other kinds, and subresources, are allowed.
pub fn judge(request: &Request, caches: &Caches) -> Verdict {
    let resource = &request.resource;
    match caches.registry.find(&resource.group, &resource.plural) {
        Some(registration) if request.sub_resource.is_empty() => (registration.admit)(request, caches),
        _ => Verdict::default(),
    }
}

/// Reviews a request for a kind with references and immutable fields.
pub(crate) fn judge_kind<K: Referring + Fixed>(request: &Request, caches: &Caches) -> Verdict {
    let read = |value: &serde_json::Value| -> Option<Custom<K>> {
        if value.is_null() { None } else { serde_json::from_value(value.clone()).ok() }
    };
    let (new, old) = (read(&request.object), read(&request.old_object));
    match (request.operation.as_str(), new, old) {
        ("CREATE", Some(new), _) => written(request, &new, None, caches),
        ("UPDATE", Some(new), Some(old)) => {
            // Whatever is wrong with an object that goes, or whose spec stays, was so before: finalizers, labels and
            // owners can always be changed.
            if new.is_deleted() || request.object.get("spec") == request.old_object.get("spec") {
                return Verdict::default();
            }
            written(request, &new, Some(&old), caches)
        }
        ("DELETE", _, Some(old)) => {
            let warnings = K::missed(&named(request, old), caches);
            Verdict { refusal: None, warnings }
        }
        _ => Verdict::default(),
    }
}

/// The object with the names that the request has for it: on its way in it may not say its namespace.
fn named<K: CustomKind>(request: &Request, mut object: Custom<K>) -> Custom<K> {
    let fill = |field: &mut Option<String>, value: &str| {
        if field.as_deref().unwrap_or_default().is_empty() && !value.is_empty() {
            *field = Some(value.to_owned());
        }
    };
    fill(&mut object.metadata.namespace, &request.namespace);
    fill(&mut object.metadata.name, &request.name);
    object
}

fn written<K: Referring + Fixed>(
    request: &Request,
    new: &Custom<K>,
    old: Option<&Custom<K>>,
    caches: &Caches,
) -> Verdict {
    let new = named(request, new.clone());
    let before = old.map(broken).unwrap_or_default();
    // What was wrong before is not held against a change of something else, as Kubernetes does with its own rules.
    let fresh: Vec<FieldError> = broken(&new).into_iter().filter(|problem| !before.contains(problem)).collect();
    let mut refusals: Vec<String> = fresh.iter().map(|(path, why)| format!("{path} {why}")).collect();
    let mut warnings = Vec::new();
    if let Some(stuck) = old.and_then(|old| K::stuck(&new, old, caches)) {
        if is_lenient(&new) { warnings.push(stuck.warning()) } else { refusals.push(stuck.refusal()) }
    }
    if !refusals.is_empty() {
        return Verdict { refusal: Some(refusals.join("; ")), warnings };
    }
    warnings.extend(K::dangling(&new, caches));
    Verdict { refusal: None, warnings }
}

/// Every rule that an object breaks: those that the kinds' schemas have as CEL, for clusters whose schemas are older.
fn broken<K: CustomKind>(object: &Custom<K>) -> Vec<FieldError> {
    match &object.spec {
        Err(why) => vec![("spec".into(), format!("cannot be read: {why}"))],
        Ok(spec) => match object.metadata.name.as_deref() {
            // The API server makes up a name later, from one that is as good.
            None | Some("") => Vec::new(),
            Some(name) => K::violations(name, spec),
        },
    }
}

fn is_lenient<K: CustomKind>(object: &Custom<K>) -> bool {
    let annotations = object.metadata.annotations.as_ref();
    annotations.and_then(|a| a.get(LENIENT.0)).is_some_and(|value| value == LENIENT.1)
}
