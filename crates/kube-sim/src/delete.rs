//! Deletion: preconditions, finalizers and grace period.

use super::{
    create::success,
    failure::{Cause, Failure},
    object::{self, is_terminating, set, text, texts},
    read::{shown, uid},
    registry::Kind,
    request::Request,
    rules,
    selector::Selector,
    state::{Key, Reply, State},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::sync::Arc;

/// Waits for the deletion of dependents.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// Waits until dependents are orphaned.
pub(super) const ORPHAN: &str = "orphan";

/// Propagation policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Options {
    pub(super) grace: Option<i64>,
    pub(super) propagation: Option<Propagation>,
    uid: String,
    version: String,
    dry_run: bool,
}

impl Options {
    fn read(request: &Request) -> Result<Self, Failure> {
        let body = request.body.clone().unwrap_or_else(|| json!({}));
        let option = |name: &str| match request.option(name) {
            "" => body.get(name).cloned(),
            text => Some(serde_json::from_str(text).unwrap_or_else(|_| text.into())),
        };
        let propagation = match option("propagationPolicy").as_ref().and_then(Value::as_str) {
            None => None,
            Some("Background") => Some(Propagation::Background),
            Some("Foreground") => Some(Propagation::Foreground),
            Some("Orphan") => Some(Propagation::Orphan),
            Some(other) => {
                let said = format!("\"{other}\" is none of Background, Foreground, Orphan");
                let cause = Cause::new("FieldValueNotSupported", "propagationPolicy", &said);
                return Err(Failure::invalid_options("DeleteOptions", &cause));
            }
        };
        let dry_run = request.dry_run() || texts(&body, "/dryRun").contains(&"All");
        Ok(Self {
            grace: option("gracePeriodSeconds").as_ref().and_then(Value::as_i64),
            propagation,
            uid: text(&body, "/preconditions/uid").into(),
            version: text(&body, "/preconditions/resourceVersion").into(),
            dry_run,
        })
    }
}

pub(super) enum Deleted {
    /// With its last state.
    Gone(Arc<Value>),
    /// Waits for finalizers or the grace period.
    Waits(Arc<Value>),
}

impl State {
    pub(super) fn delete(&mut self, request: &Request, now: Timestamp) -> Result<Reply, Failure> {
        let options = Options::read(request)?;
        let key = Key::new(&request.kind, &request.namespace, &request.name);
        let kind = &request.kind;
        Ok(match self.delete_object(kind, &key, &options, now)? {
            Deleted::Gone(last) if kind.returns_deleted => {
                Reply::json(200, shown(&last, request.metadata_only))
            }
            Deleted::Gone(last) => Reply::json(200, success(kind, &last)),
            Deleted::Waits(object) => Reply::json(200, shown(&object, request.metadata_only)),
        })
    }

    pub(super) fn delete_collection(&mut self, request: &Request, now: Timestamp) -> Result<Reply, Failure> {
        let options = Options::read(request)?;
        let selector = Selector::read(request)?;
        let chosen: Vec<Key> = self
            .objects_at(&request.kind.id(), self.revision())
            .into_iter()
            .filter(|(key, object)| key.namespace == request.namespace && selector.shows(object))
            .map(|(key, _)| key)
            .collect();
        let listed = self.list(request, self.revision())?;
        for key in chosen {
            match self.delete_object(&request.kind, &key, &options, now) {
                Err(failure) if failure.code != 404 => return Err(failure),
                _ => {}
            }
        }
        Ok(listed)
    }

    pub(super) fn delete_object(
        &mut self,
        kind: &Kind,
        key: &Key,
        options: &Options,
        now: Timestamp,
    ) -> Result<Deleted, Failure> {
        let live = self.objects.get(key).cloned().ok_or_else(|| Failure::not_found(kind, &key.name))?;
        let meets = |wanted: &str, found: &str, what: &str| {
            if wanted.is_empty() || wanted == found {
                return Ok(());
            }
            let said =
                format!("Precondition failed: the requested {what} is {wanted}, the object has {found}");
            let mut failure = Failure::conflict(kind, &key.name, &said);
            failure.detail("kind", &kind.kind);
            Err(failure)
        };
        meets(&options.uid, uid(&live), "uid")?;
        meets(&options.version, text(&live, "/metadata/resourceVersion"), "resourceVersion")?;

        let mut object = Value::clone(&live);
        propagate(&mut object, options.propagation);
        let grace = grace(kind, &live, options);
        let holds = !texts(&object, "/metadata/finalizers").is_empty()
            || grace > 0
            || !rules::may_go(kind, &ended(&object));
        if !holds {
            return if options.dry_run {
                Ok(Deleted::Gone(live))
            } else {
                self.erase(key).map(Deleted::Gone).ok_or_else(|| Failure::not_found(kind, &key.name))
            };
        }
        let shorter = object
            .pointer("/metadata/deletionGracePeriodSeconds")
            .and_then(Value::as_i64)
            .is_some_and(|old| grace < old);
        if !is_terminating(&object) || shorter {
            let end = now.saturating_add(SignedDuration::from_secs(grace)).unwrap_or(now);
            set(&mut object, &["metadata", "deletionTimestamp"], object::time(end));
            if kind.kind != "Namespace" {
                set(&mut object, &["metadata", "deletionGracePeriodSeconds"], grace);
            }
            if let Some(generation) = object.pointer("/metadata/generation").and_then(Value::as_i64) {
                set(&mut object, &["metadata", "generation"], generation + 1);
            }
            if kind.kind == "Namespace" {
                set(&mut object, &["status", "phase"], "Terminating");
            }
        }
        if options.dry_run || object == *live {
            return Ok(Deleted::Waits(Arc::new(object)));
        }
        Ok(Deleted::Waits(self.put(key.clone(), object)))
    }
}

/// The object as it would be while terminating, to decide whether it can be removed.
fn ended(object: &Value) -> Value {
    let mut object = object.clone();
    set(&mut object, &["metadata", "deletionGracePeriodSeconds"], 0);
    object
}

/// Only scheduled pods have a grace period.
fn grace(kind: &Kind, live: &Value, options: &Options) -> i64 {
    if kind.kind != "Pod" || text(live, "/spec/nodeName").is_empty() {
        return 0;
    }
    let own = live.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64);
    options.grace.or(own).unwrap_or(30).max(0)
}

/// The finalizers of the garbage collector.
fn propagate(object: &mut Value, propagation: Option<Propagation>) {
    let Some(propagation) = propagation else { return };
    let mut finalizers: Vec<String> = texts(object, "/metadata/finalizers")
        .into_iter()
        .filter(|name| ![FOREGROUND, ORPHAN].contains(name))
        .map(str::to_owned)
        .collect();
    match propagation {
        Propagation::Foreground => finalizers.push(FOREGROUND.into()),
        Propagation::Orphan => finalizers.push(ORPHAN.into()),
        Propagation::Background => {}
    }
    if finalizers.is_empty() {
        object::unset(object, &["metadata", "finalizers"]);
    } else {
        set(object, &["metadata", "finalizers"], finalizers);
    }
}
