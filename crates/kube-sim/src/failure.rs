//! Error responses as Kubernetes `Status`.

use super::{apply::Conflict, registry::Kind};
use serde_json::{Map, Value, json};

/// Reason of plain-text responses.
const PLAIN: &str = "text";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Such as `FieldValueRequired`.
    pub reason: String,
    pub field: String,
    pub message: String,
}

impl Cause {
    pub fn new(reason: &str, field: &str, message: &str) -> Self {
        Self { reason: reason.into(), field: field.into(), message: message.into() }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub code: u16,
    pub reason: String,
    pub message: String,
    /// Empty for some errors.
    pub details: Option<Map<String, Value>>,
    /// Seconds.
    pub retry_after: Option<u32>,
}

impl Failure {
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), message: message.into(), details: None, retry_after: None }
    }

    /// With empty details, where the API server sends them.
    #[must_use]
    pub fn with_empty_details(mut self) -> Self {
        self.details.get_or_insert_default();
        self
    }

    /// Skips empty values.
    pub fn detail(&mut self, name: &str, text: &str) {
        if !text.is_empty() {
            self.details.get_or_insert_default().insert(name.into(), text.into());
        }
    }

    #[must_use]
    fn of(mut self, kind: &Kind, name: &str) -> Self {
        self.detail("name", name);
        self.detail("kind", kind.plural.as_str());
        self.detail("group", kind.group.as_str());
        self
    }

    #[must_use]
    fn because(mut self, causes: &[Cause]) -> Self {
        let shown = |cause: &Cause| {
            let mut map = Map::new();
            for (name, text) in
                [("reason", &cause.reason), ("message", &cause.message), ("field", &cause.field)]
            {
                if !text.is_empty() {
                    map.insert(name.into(), text.clone().into());
                }
            }
            Value::Object(map)
        };
        self.details.get_or_insert_default().insert("causes".into(), causes.iter().map(shown).collect());
        self
    }

    pub fn not_found(kind: &Kind, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} \"{name}\" not found", kind.id())).of(kind, name)
    }

    pub fn no_endpoint(path: &str) -> Self {
        Self::new(404, "NotFound", format!("the server has nothing at {path}")).with_empty_details()
    }

    /// Unknown group: the API server responds with text.
    pub fn no_group(path: &str) -> Self {
        Self::new(404, PLAIN, format!("404 page not found: {path}"))
    }

    pub fn already_exists(kind: &Kind, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} \"{name}\" already exists", kind.id())).of(kind, name)
    }

    /// Resource version or UID differs.
    pub fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        Self::new(
            409,
            "Conflict",
            format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.id()),
        )
        .of(kind, name)
    }

    pub fn apply_conflict(conflicts: &[Conflict]) -> Self {
        let causes: Vec<Cause> = conflicts
            .iter()
            .map(|conflict| {
                let message = format!("conflict with {}", conflict.owner());
                Cause::new("FieldManagerConflict", &conflict.field, &message)
            })
            .collect();
        let shown: Vec<String> =
            causes.iter().map(|cause| format!("{}: {}", cause.message, cause.field)).collect();
        let message = format!("Apply failed with {} conflict(s): {}", causes.len(), shown.join("; "));
        Self::new(409, "Conflict", message).because(&causes)
    }

    pub fn invalid(kind: &Kind, name: &str, causes: &[Cause]) -> Self {
        let shown: Vec<String> =
            causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let message = format!("{} \"{name}\" is invalid: {}", kind.kind, shown.join("; "));
        let mut failure = Self::new(422, "Invalid", message).of(kind, name).because(causes);
        failure.detail("kind", kind.kind.as_str());
        failure
    }

    pub fn invalid_options(kind: &str, cause: &Cause) -> Self {
        let message = format!("{kind}: {}: {}", cause.field, cause.message);
        let mut failure = Self::new(422, "Invalid", message).because(std::slice::from_ref(cause));
        failure.detail("group", "meta.k8s.io");
        failure.detail("kind", kind);
        failure
    }

    /// 500 for requests that the API server does not validate.
    pub fn unexpected(message: impl Into<String>) -> Self {
        Self::new(500, "", message)
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn forbidden(kind: &Kind, name: &str, why: &str, causes: &[Cause]) -> Self {
        let failure = Self::new(403, "Forbidden", format!("{} \"{name}\" is forbidden: {why}", kind.id()))
            .of(kind, name);
        if causes.is_empty() { failure } else { failure.because(causes) }
    }

    pub fn expired(message: &str) -> Self {
        Self::new(410, "Expired", message)
    }

    pub fn too_new(requested: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {requested}, current: {current}");
        let cause = Cause::new("ResourceVersionTooLarge", "", "Too large resource version");
        let mut failure = Self::new(504, "Timeout", message).because(&[cause]);
        failure.retry_after = Some(1);
        failure
    }

    pub fn status(&self) -> Value {
        if self.reason == PLAIN {
            return self.message.clone().into();
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        let mut details = self.details.clone();
        if let Some(seconds) = self.retry_after {
            details.get_or_insert_default().insert("retryAfterSeconds".into(), seconds.into());
        }
        if let Some(map) = status.as_object_mut() {
            if let Some(details) = details {
                map.insert("details".into(), Value::Object(details));
            }
            if self.reason.is_empty() {
                map.remove("reason");
            }
        }
        status
    }
}
