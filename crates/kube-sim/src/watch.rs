//! Watches: cursors into the change log.

use super::{
    failure::{Cause, Failure},
    faults::Trouble,
    object::set,
    read::{revision_option, shown},
    registry::Kind,
    request::Request,
    selector::Selector,
    state::{Change, Reply, State},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// Annotation of the bookmark that ends the initial events.
const INITIAL_END: &str = "k8s.io/initial-events-end";

const LASTS: i64 = 1800;

#[derive(Clone, Debug)]
pub struct Watch {
    pub kind: Arc<Kind>,
    namespace: String,
    selector: Selector,
    metadata_only: bool,
    pub bookmarks: bool,
    pub until: Timestamp,
    cursor: u64,
    first: VecDeque<Value>,
    sent: u64,
    ended: bool,
    pub trouble: Trouble,
}

impl State {
    pub(super) fn watch(&self, request: &Request, now: Timestamp) -> Result<Reply, Failure> {
        self.watch_at(request, self.revision(), now)
    }

    /// Starts at a revision.
    pub(super) fn watch_at(&self, request: &Request, newest: u64, now: Timestamp) -> Result<Reply, Failure> {
        let seconds = match request.option("timeoutSeconds") {
            "" => LASTS,
            text => text
                .parse()
                .map_err(|_| Failure::bad_request(format!("timeoutSeconds: {text} is not a number")))?,
        };
        let initial = request.flag("sendInitialEvents");
        if initial && request.option("resourceVersionMatch") != "NotOlderThan" {
            let said = "must be NotOlderThan where sendInitialEvents is on";
            let cause = Cause::new("FieldValueForbidden", "resourceVersionMatch", said);
            return Err(Failure::invalid_options("ListOptions", &cause));
        }
        let mut watch = Watch {
            kind: Arc::clone(&request.kind),
            namespace: request.namespace.clone(),
            selector: Selector::read(request)?,
            metadata_only: request.metadata_only,
            bookmarks: request.flag("allowWatchBookmarks"),
            until: now.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX),
            cursor: newest,
            first: VecDeque::new(),
            sent: 0,
            ended: false,
            trouble: Trouble::default(),
        };
        let requested = revision_option(request).map_err(|failure| Failure::unexpected(failure.message))?;
        match requested {
            Some(revision) if !initial => watch.cursor = revision,
            _ => {
                for (key, object) in self.objects_at(&request.kind.id(), newest) {
                    if watch.covers(&key.namespace) && watch.selector.shows(&object) {
                        watch.first.push_back(watch.event("ADDED", &object));
                    }
                }
                if initial && watch.bookmarks {
                    let mut bookmark = watch.bookmark();
                    set(&mut bookmark, &["object", "metadata", "annotations", INITIAL_END], "true");
                    watch.first.push_back(bookmark);
                }
            }
        }
        Ok(Reply::Watch(Box::new(watch)))
    }
}

impl Watch {
    fn covers(&self, namespace: &str) -> bool {
        self.namespace.is_empty() || self.namespace == namespace
    }

    fn event(&self, kind: &str, object: &Value) -> Value {
        json!({"type": kind, "object": shown(object, self.metadata_only)})
    }

    pub fn bookmark(&self) -> Value {
        let (version, kind) = if self.metadata_only {
            ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadata".to_owned())
        } else {
            (self.kind.api_version(), self.kind.kind.clone())
        };
        let metadata = json!({"resourceVersion": self.cursor.to_string()});
        json!({"type": "BOOKMARK", "object": {"kind": kind, "apiVersion": version, "metadata": metadata}})
    }

    pub const fn ended(&self) -> bool {
        self.ended
    }

    /// The events up to a revision.
    pub fn next(&mut self, state: &State, newest: u64) -> Vec<Value> {
        if self.ended {
            return Vec::new();
        }
        let mut events: Vec<Value> = self.first.drain(..).collect();
        if self.cursor < state.compacted() {
            events.push(self.expire());
            return events;
        }
        let changes: Vec<&Change> = state
            .changes_after(self.cursor)
            .take_while(|change| change.revision <= newest)
            .filter(|change| change.key.kind == self.kind.id() && self.covers(&change.key.namespace))
            .collect();
        let changes =
            if self.trouble.coalesce { coalesced(&changes) } else { changes.into_iter().cloned().collect() };
        for change in &changes {
            let Some(event) = self.event_of(change) else { continue };
            self.sent += 1;
            if !self.trouble.hides(self.sent) {
                events.push(event);
            }
            if self.trouble.expire_after.is_some_and(|after| self.sent >= after) {
                events.push(self.expire());
                return events;
            }
            if self.trouble.cut_after.is_some_and(|after| self.sent >= after) {
                self.ended = true;
                return events;
            }
        }
        self.cursor = self.cursor.max(newest);
        events
    }

    /// Ends the watch with 410.
    pub fn expire(&mut self) -> Value {
        self.ended = true;
        let said = format!("too old resource version: {}", self.cursor);
        json!({"type": "ERROR", "object": Failure::expired(&said).status()})
    }

    /// An object that leaves the selection is deleted for this watch.
    fn event_of(&self, change: &Change) -> Option<Value> {
        let shows =
            |object: &Option<Arc<Value>>| object.as_ref().is_some_and(|object| self.selector.shows(object));
        match (shows(&change.before), shows(&change.after)) {
            (false, true) => change.after.as_ref().map(|object| self.event("ADDED", object)),
            (true, true) => change.after.as_ref().map(|object| self.event("MODIFIED", object)),
            (true, false) => {
                let mut object =
                    change.last.as_ref().or(change.before.as_ref()).map(|object| Value::clone(object))?;
                set(&mut object, &["metadata", "resourceVersion"], change.revision.to_string());
                Some(self.event("DELETED", &object))
            }
            (false, false) => None,
        }
    }
}

/// Merges the changes of each object into one.
fn coalesced(changes: &[&Change]) -> Vec<Change> {
    let mut merged: BTreeMap<u64, Change> = BTreeMap::new();
    for change in changes {
        let earlier = merged.iter().find(|(_, one)| one.key == change.key).map(|(revision, _)| *revision);
        let before = earlier
            .and_then(|revision| merged.remove(&revision))
            .map_or_else(|| change.before.clone(), |one| one.before);
        merged.insert(change.revision, Change { before, ..Change::clone(change) });
    }
    merged.into_values().collect()
}
