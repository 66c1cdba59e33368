//! All objects as the scheduler's statuses describe them.

use crate::{
    events::{Events, now_ms},
    rows::{ExperimentRow, ModelRow, Observed, PipelineRow, RolloutRow, Row, ServerRow, State},
};
use serde::Serialize;
use std::collections::BTreeMap;

/// Rows of a kind by name.
pub(crate) type Rows<R> = BTreeMap<String, R>;

#[derive(Debug, Default)]
pub(crate) struct Inventory {
    pub(crate) models: Rows<ModelRow>,
    pub(crate) servers: Rows<ServerRow>,
    pub(crate) pipelines: Rows<PipelineRow>,
    pub(crate) experiments: Rows<ExperimentRow>,
    pub(crate) rollouts: Rows<RolloutRow>,
    pub(crate) events: Events,
    pub(crate) link: Link,
    /// What this process may not read, and why.
    pub(crate) notices: Vec<String>,
}

/// The connection to the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub(crate) enum Link {
    #[default]
    Connecting,
    Live,
    /// The rows are those of `since_ms`.
    #[serde(rename_all = "camelCase")]
    Lost {
        since_ms: u64,
        error: String,
    },
}

/// How many rows are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Counts {
    pub(crate) total: usize,
    pub(crate) ready: usize,
    pub(crate) progressing: usize,
    pub(crate) failed: usize,
    pub(crate) idle: usize,
}

impl Counts {
    pub(crate) fn of<'a, R: Row>(rows: impl Iterator<Item = &'a R>) -> Self {
        let mut counts = Self::default();
        for row in rows {
            counts.total += 1;
            match row.state() {
                State::Ready => counts.ready += 1,
                State::Progressing => counts.progressing += 1,
                State::Failed => counts.failed += 1,
                State::Idle => counts.idle += 1,
            }
        }
        counts
    }
}

/// The rows of a kind.
pub(crate) trait Of<R> {
    fn rows(&self) -> &Rows<R>;
    fn parts(&mut self) -> (&mut Rows<R>, &mut Events);
}

macro_rules! rows_of {
    ($($row:ident => $field:ident),*) => {$(
        impl Of<$row> for Inventory {
            fn rows(&self) -> &Rows<$row> {
                &self.$field
            }
            fn parts(&mut self) -> (&mut Rows<$row>, &mut Events) {
                (&mut self.$field, &mut self.events)
            }
        }
    )*};
}

rows_of!(
    ModelRow => models, ServerRow => servers, PipelineRow => pipelines, ExperimentRow => experiments,
    RolloutRow => rollouts
);

impl Inventory {
    pub(crate) fn observe<R: Row>(&mut self, observed: Observed<R>)
    where
        Self: Of<R>,
    {
        let (rows, events) = self.parts();
        match observed {
            Ok(row) => {
                let shown = |row: &R| (row.state(), row.version(), row.message().to_owned());
                if rows.get(row.name()).map(shown) != Some(shown(&row)) {
                    events.changed(&row);
                }
                rows.insert(row.name().to_owned(), row);
            }
            Err(name) => {
                if rows.remove(&name).is_some() {
                    events.deleted::<R>(&name);
                }
            }
        }
    }

    /// All rows of a kind, after a connection. Changes since the last one become events.
    pub(crate) fn replace<R: Row>(&mut self, observed: impl Iterator<Item = Observed<R>>)
    where
        Self: Of<R>,
    {
        let is_first = matches!(self.link, Link::Connecting);
        let rows: Rows<R> = observed.flatten().map(|row| (row.name().to_owned(), row)).collect();
        if is_first {
            let (known, events) = self.parts();
            events.seed(rows.values());
            *known = rows;
            return;
        }
        let gone: Vec<String> =
            self.rows().keys().filter(|name| !rows.contains_key(*name)).cloned().collect();
        for name in gone {
            self.observe::<R>(Err(name));
        }
        for row in rows.into_values() {
            self.observe(Ok(row));
        }
    }

    pub(crate) fn lose(&mut self, error: String) {
        let since_ms = match &self.link {
            Link::Lost { since_ms, .. } => *since_ms,
            Link::Live | Link::Connecting => now_ms(),
        };
        // Without any row yet, the page shows that it waits.
        if self.link != Link::Connecting {
            self.link = Link::Lost { since_ms, error };
        } else if self.notices.is_empty() {
            self.notices = vec![format!("no connection to the scheduler yet: {error}")];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, state: State, since_ms: u64) -> PipelineRow {
        PipelineRow {
            name: name.into(),
            state,
            message: "m".into(),
            version: 1,
            steps: Vec::new(),
            since_ms: Some(since_ms),
            owner: String::new(),
        }
    }

    fn names(inventory: &Inventory) -> Vec<(&str, Option<State>)> {
        inventory.events.newest_first().map(|event| (event.name.as_str(), event.state)).collect()
    }

    #[test]
    fn first_snapshot_seeds_events_with_the_last_changes() {
        let mut inventory = Inventory::default();
        let rows =
            [row("a", State::Ready, 2000), row("b", State::Failed, 3000), row("c", State::Ready, 1000)];
        inventory.replace(rows.into_iter().map(Ok));
        let expected = [("b", Some(State::Failed)), ("a", Some(State::Ready)), ("c", Some(State::Ready))];
        assert_eq!(names(&inventory), expected);
    }

    #[test]
    fn changes_while_disconnected_become_events() {
        let mut inventory = Inventory::default();
        let rows = [row("a", State::Ready, 1), row("b", State::Ready, 2)];
        inventory.replace(rows.into_iter().map(Ok));
        inventory.link = Link::Live;
        inventory.lose("closed".into());
        inventory.replace([row("a", State::Failed, 3)].into_iter().map(Ok));
        assert_eq!(names(&inventory)[..2], [("a", Some(State::Failed)), ("b", None)]);
        assert_eq!(
            Counts::of(inventory.pipelines.values()),
            Counts { total: 1, failed: 1, ..Counts::default() }
        );
    }

    #[test]
    fn repeated_status_is_no_event() {
        let mut inventory = Inventory::default();
        inventory.observe(Ok(row("a", State::Ready, 1)));
        inventory.observe(Ok(row("a", State::Ready, 1)));
        assert_eq!(names(&inventory).len(), 1);
        inventory.observe::<PipelineRow>(Err("a".into()));
        inventory.observe::<PipelineRow>(Err("a".into()));
        assert_eq!(names(&inventory).len(), 2);
    }
}
