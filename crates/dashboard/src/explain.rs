//! Explanations, kept for some seconds: every open page shows those of the objects that are not ready.

use crate::scheduler::Scheduler;
use futures::future::join_all;
use gantry_proto::gantry::Explanation;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tonic::Status;

/// An explanation of an object whose row did not change is good for this long.
const KEPT: Duration = Duration::from_secs(10);
const MAX_KEPT: usize = 256;

type Key = (&'static str, String);

pub(crate) struct Explanations {
    scheduler: Scheduler,
    kept: Mutex<HashMap<Key, Kept>>,
}

struct Kept {
    at: Instant,
    /// What the row showed.
    row: String,
    explanation: Option<Arc<Explanation>>,
}

impl Explanations {
    pub(crate) fn new(scheduler: Scheduler) -> Self {
        Self { scheduler, kept: Mutex::default() }
    }

    pub(crate) async fn of(&self, kind: &str, name: &str) -> Result<Option<Explanation>, Status> {
        self.scheduler.explain(kind, name).await
    }

    /// The explanations of objects, each with what its row shows; `None` where there is none.
    pub(crate) async fn of_rows(&self, rows: Vec<(Key, String)>) -> Vec<Option<Arc<Explanation>>> {
        join_all(rows.into_iter().map(|(key, row)| self.of_row(key, row))).await
    }

    async fn of_row(&self, key: Key, row: String) -> Option<Arc<Explanation>> {
        let is_current = |kept: &&Kept| kept.row == row && kept.at.elapsed() < KEPT;
        if let Some(kept) = self.lock().get(&key).filter(is_current) {
            return kept.explanation.clone();
        }
        let explanation = self.scheduler.explain(key.0, &key.1).await.ok().flatten().map(Arc::new);
        let mut kept = self.lock();
        if kept.len() >= MAX_KEPT {
            kept.retain(|_, kept| kept.at.elapsed() < KEPT);
        }
        if kept.len() < MAX_KEPT {
            kept.insert(key, Kept { at: Instant::now(), row, explanation: explanation.clone() });
        }
        explanation
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As `gantry explain -o json`.
pub(crate) fn document(explanation: &Explanation) -> Value {
    let facts: Vec<Value> =
        explanation.facts.iter().map(|fact| json!({ "label": fact.label, "lines": fact.lines })).collect();
    json!({
        "headline": explanation.headline,
        "reason": explanation.reason,
        "facts": facts,
        "next": explanation.next,
    })
}
