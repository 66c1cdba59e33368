//! What was asked and answered, and what became of each object.

use super::{
    object::text,
    request::{Request, Verb},
    state::{Change, Key},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Virtual milliseconds since the start.
    pub at: u64,
    /// Who asked.
    pub actor: String,
    /// What for.
    pub verb: Verb,
    /// Of which object or collection: `deployments.apps ns/name`, with its subresource.
    pub object: String,
    /// The answer's code; 0 when no answer came.
    pub code: u16,
    /// Whether something changed.
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

/// How often an object came and went. The same name with another uid is another object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Creations.
    pub created: u64,
    /// Deletions.
    pub deleted: u64,
    /// Writes between them.
    pub changed: u64,
    /// The uids, in the order of their creation.
    pub uids: Vec<String>,
}

/// The record of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Every request, in order.
    pub entries: Vec<Entry>,
    /// What became of each object.
    pub tallies: BTreeMap<String, Tally>,
}

impl Trace {
    /// Notes a request and its answer.
    pub fn note(&mut self, at: u64, actor: &str, request: &Request, code: u16, wrote: bool) {
        let key = Key::new(&request.kind, &request.namespace, &request.name);
        let subresource = request.subresource.name();
        let object = if subresource.is_empty() { key.to_string() } else { format!("{key}/{subresource}") };
        self.entries.push(Entry { at, actor: actor.into(), verb: request.verb, object, code, wrote });
    }

    /// Counts a change.
    pub fn count(&mut self, change: &Change) {
        let tally = self.tallies.entry(change.key.to_string()).or_default();
        match (&change.before, &change.after) {
            (None, Some(after)) => {
                tally.created += 1;
                tally.uids.push(text(after, "/metadata/uid").to_owned());
            }
            (Some(_), None) => tally.deleted += 1,
            _ => tally.changed += 1,
        }
    }

    /// Requests that changed something, by one actor or by all.
    pub fn writes(&self, actor: Option<&str>) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.wrote && actor.is_none_or(|actor| actor == entry.actor))
    }

    /// One line a request.
    pub fn lines(&self) -> Vec<String> {
        self.entries.iter().map(ToString::to_string).collect()
    }
}
