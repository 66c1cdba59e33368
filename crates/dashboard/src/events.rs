//! The last changes of state.

use crate::rows::{Row, State};
use serde::Serialize;
use std::{
    collections::VecDeque,
    time::{SystemTime, UNIX_EPOCH},
};

const KEPT: usize = 1000;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    /// Increases with each event; the key of a row in a page.
    pub(crate) number: u64,
    pub(crate) at_ms: u64,
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    /// `None` for an object that was deleted.
    pub(crate) state: Option<State>,
    pub(crate) message: String,
    pub(crate) version: u32,
}

/// Newest last, bounded.
#[derive(Debug, Default)]
pub(crate) struct Events {
    events: VecDeque<Event>,
    last_number: u64,
}

pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

impl Events {
    /// A change that is observed now.
    pub(crate) fn changed<R: Row>(&mut self, row: &R) {
        self.add(R::KIND, row.name(), Some(row.state()), row.message(), row.version(), now_ms());
    }

    pub(crate) fn deleted<R: Row>(&mut self, name: &str) {
        self.add(R::KIND, name, None, "deleted", 0, now_ms());
    }

    /// The last change of each object before it was followed.
    pub(crate) fn seed<'a, R: Row>(&mut self, rows: impl Iterator<Item = &'a R>) {
        let mut known: Vec<(u64, &R)> = rows.filter_map(|row| Some((row.since_ms()?, row))).collect();
        known.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (at, row) in known.into_iter().take(KEPT / 4) {
            self.add(R::KIND, row.name(), Some(row.state()), row.message(), row.version(), at);
        }
        self.events.make_contiguous().sort_by_key(|event| event.at_ms);
    }

    fn add(
        &mut self,
        kind: &'static str,
        name: &str,
        state: Option<State>,
        message: &str,
        version: u32,
        at_ms: u64,
    ) {
        self.last_number += 1;
        if self.events.len() >= KEPT {
            self.events.pop_front();
        }
        let (number, name, message) = (self.last_number, name.to_owned(), message.to_owned());
        self.events.push_back(Event { number, at_ms, kind, name, state, message, version });
    }

    pub(crate) fn newest_first(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().rev()
    }
}
