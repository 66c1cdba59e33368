//! The controllers of a cluster, as far as tests need the world to move. Each has its switch.

mod collect;
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

/// Who the controllers' writes belong to.
const MANAGER: &str = "kube-controller-manager";

/// Which controllers run.
#[derive(Clone, Debug, Default)]
pub struct Controllers {
    /// Objects whose owners are gone go too.
    pub garbage: bool,
    /// A namespace that ends takes its objects along, then goes.
    pub namespaces: bool,
    /// `StatefulSets` and Deployments become ready.
    pub workloads: Option<Workloads>,
}

impl Controllers {
    /// A cluster that works: everything on, workloads without pods ready after a second.
    pub fn all() -> Self {
        let workloads = Workloads::new(Duration::from_secs(1), false);
        Self { garbage: true, namespaces: true, workloads: Some(workloads) }
    }

    /// Does what there is to do now, and says when to look again if nothing happens before.
    pub fn step(&mut self, state: &mut State, now: Timestamp) -> Option<Timestamp> {
        let due = self.workloads.as_mut().and_then(|workloads| workloads.step(state, now));
        if self.garbage {
            collect::step(state, now);
        }
        if self.namespaces {
            namespaces::step(state, now);
        }
        due
    }
}

/// A write as a controller makes it, through the same door as everybody's.
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
