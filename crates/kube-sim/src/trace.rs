//! Requests, responses and object lifecycles.

use super::{
    object::text,
    request::{Request, Verb},
    state::{Change, Key},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Virtual milliseconds since the start.
    pub at: u64,
    pub actor: String,
    pub verb: Verb,
    /// Such as `deployments.apps ns/name`, with its subresource.
    pub object: String,
    /// Status code; 0 without a response.
    pub code: u16,
    pub wrote: bool,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wrote = if self.wrote { " *" } else { "" };
        write!(
            f,
            "{:>5}.{:03} {} {} {} {}{wrote}",
            self.at / 1000,
            self.at % 1000,
            self.actor,
            self.verb,
            self.object,
            self.code
        )
    }
}

/// Counts per object name, over all its UIDs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectCounts {
    pub created: u64,
    pub deleted: u64,
    /// Other writes.
    pub changed: u64,
    /// In order of creation.
    pub uids: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    pub entries: Vec<Entry>,
    pub counts: BTreeMap<String, ObjectCounts>,
}

impl Trace {
    pub fn note(&mut self, at: u64, actor: &str, request: &Request, code: u16, wrote: bool) {
        let key = Key::new(&request.kind, &request.namespace, &request.name);
        let subresource = request.subresource.name();
        let object = if subresource.is_empty() { key.to_string() } else { format!("{key}/{subresource}") };
        self.entries.push(Entry { at, actor: actor.into(), verb: request.verb, object, code, wrote });
    }

    pub fn count(&mut self, change: &Change) {
        let object = self.counts.entry(change.key.to_string()).or_default();
        match (&change.before, &change.after) {
            (None, Some(after)) => {
                object.created += 1;
                object.uids.push(text(after, "/metadata/uid").to_owned());
            }
            (Some(_), None) => object.deleted += 1,
            _ => object.changed += 1,
        }
    }

    /// Requests that changed an object, of one actor or all.
    pub fn writes(&self, actor: Option<&str>) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.wrote && actor.is_none_or(|actor| actor == entry.actor))
    }

    /// One line per request.
    pub fn lines(&self) -> Vec<String> {
        self.entries.iter().map(ToString::to_string).collect()
    }
}
