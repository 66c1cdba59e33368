//! Built-in controllers, each optional.

mod garbage_collector;
mod namespaces;
mod pods;
mod workloads;

use super::{
    request::{Request, Subresource, Verb},
    state::{Key, Reply, State},
};
use jiff::Timestamp;
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
pub use workloads::Workloads;

/// Field manager of the controllers.
const MANAGER: &str = "kube-controller-manager";

#[derive(Clone, Debug, Default)]
pub struct Controllers {
    /// Deletes objects without a living owner.
    pub garbage: bool,
    /// Deletes the objects of a terminating namespace, then the namespace.
    pub namespaces: bool,
    pub workloads: Option<Workloads>,
}

impl Controllers {
    /// All enabled; workloads without pods are ready after one second.
    pub fn all() -> Self {
        let workloads = Workloads::new(Duration::from_secs(1), false);
        Self { garbage: true, namespaces: true, workloads: Some(workloads) }
    }

    /// Runs all controllers once; returns the time of the next run.
    pub fn step(&mut self, state: &mut State, now: Timestamp) -> Option<Timestamp> {
        let due = self.workloads.as_mut().and_then(|workloads| workloads.step(state, now));
        if self.garbage {
            garbage_collector::step(state, now);
        }
        if self.namespaces {
            namespaces::step(state, now);
        }
        due
    }
}

/// A write through the regular request path.
fn write(
    state: &mut State,
    key: &Key,
    verb: Verb,
    subresource: Subresource,
    body: Value,
    now: Timestamp,
) -> Option<Reply> {
    let kind = state.registry.by_id(&key.kind)?;
    let request = Request {
        verb,
        kind: Arc::clone(&kind),
        namespace: key.namespace.clone(),
        name: if verb == Verb::Create { String::new() } else { key.name.clone() },
        subresource,
        query: BTreeMap::from([("fieldManager".to_owned(), MANAGER.to_owned())]),
        body: Some(body),
        content_type: "application/merge-patch+json".into(),
        user_agent: MANAGER.into(),
        metadata_only: false,
    };
    Some(state.handle(&request, now))
}
