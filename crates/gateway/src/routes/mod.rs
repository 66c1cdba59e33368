//! Which replica serves which version of which model.
//!
//! Readers take one hash and no lock, however many models there are; a change touches its model only. A request
//! enters a [`Target`] when it arrives and leaves it when it is answered, so that a replica that was taken away is
//! known to be idle before its model is unloaded.

mod apply;
mod demand;
mod endpoint;
mod enter;
mod table;
mod visit;

pub use apply::Removed;
pub use demand::Demand;
pub(crate) use endpoint::{Endpoint, Registry};
pub(crate) use enter::{Entered, Refused, distance};
pub use visit::Visit;

use crate::metrics::{Metrics, ModelMetrics};
use arc_swap::ArcSwapOption;
use http::{HeaderValue, Uri};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};
use tokio::sync::Notify;

/// The routing table; clones are the same table.
#[derive(Clone)]
pub struct Routes {
    inner: Arc<Inner>,
}

struct Inner {
    table: table::Table,
    registry: Registry,
    metrics: Arc<Metrics>,
    writer: Mutex<apply::Writer>,
    versions: Mutex<HashMap<(String, u32), Weak<Version>>>,
    synced: AtomicBool,
    /// Told when a request begins to wait for a model that sleeps.
    wanted: Notify,
}

/// A model's place in the table; what it routes to changes, the place stays.
pub(crate) struct Cell {
    model: Arc<str>,
    route: ArcSwapOption<Route>,
    /// Told of each change of the route.
    changed: Notify,
    /// Requests that wait for a replica.
    waiting: AtomicUsize,
}

/// What a model routes to now.
pub(crate) struct Route {
    versions: Vec<Weighted>,
    reason: String,
    /// No replica is wanted until somebody asks.
    sleeps: bool,
}

struct Weighted {
    weight: u32,
    version: Arc<Version>,
    targets: Vec<Arc<Target>>,
}

/// A version of a model, with everything that depends on nothing else.
pub(crate) struct Version {
    pub(crate) model: Arc<str>,
    pub(crate) number: u32,
    /// `<model>_<version>`
    pub(crate) internal: Arc<str>,
    pub(crate) internal_header: HeaderValue,
    /// `:<model>_<version>:`
    pub(crate) tag: HeaderValue,
    /// `/v2/models/<model>_<version>/infer`
    pub(crate) infer_uri: Uri,
    targets: Mutex<Vec<Weak<Target>>>,
}

/// A version on a replica.
pub(crate) struct Target {
    pub(crate) version: Arc<Version>,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) metrics: ModelMetrics,
    in_flight: AtomicUsize,
    /// Inferences that ended, and the time they took, since the last look at the demand.
    answered: AtomicU64,
    busy_micros: AtomicU64,
    /// Somebody waits for `in_flight` to become zero.
    awaited: AtomicBool,
    idle: Notify,
}

impl Target {
    fn leave(&self) {
        // SeqCst against `drained`: either it sees the new count or we see that it waits.
        if self.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 && self.awaited.load(Ordering::SeqCst) {
            self.idle.notify_waiters();
        }
    }

    fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) == 0
    }

    async fn drained(&self) {
        self.awaited.store(true, Ordering::SeqCst);
        loop {
            let idle = self.idle.notified();
            if self.is_idle() {
                return;
            }
            idle.await;
        }
    }
}

impl Routes {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            inner: Arc::new(Inner {
                table: table::Table::new(),
                registry: Registry::default(),
                metrics,
                writer: Mutex::default(),
                versions: Mutex::default(),
                synced: AtomicBool::new(false),
                wanted: Notify::new(),
            }),
        }
    }

    /// Whether the routes have been complete once.
    pub fn is_synced(&self) -> bool {
        self.inner.synced.load(Ordering::Acquire)
    }

    /// How many models have a route.
    pub fn len(&self) -> usize {
        self.inner.table.len()
    }

    /// Whether no model has a route.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Requests that a version has in flight on a replica.
    pub fn in_flight(&self, model: &str, version: u32, server: &str, replica: u32) -> usize {
        self.targets(model, version)
            .iter()
            .filter(|t| t.endpoint.server == server && t.endpoint.replica == replica)
            .map(|t| t.in_flight.load(Ordering::SeqCst))
            .sum()
    }

    /// Ends when a version has no request in flight, on whichever replica.
    pub async fn drained(&self, model: &str, version: u32) {
        for target in self.targets(model, version) {
            target.drained().await;
        }
    }

    fn targets(&self, model: &str, version: u32) -> Vec<Arc<Target>> {
        let versions = self.inner.versions.lock().unwrap_or_else(PoisonError::into_inner);
        let found = versions.get(&(model.to_owned(), version)).and_then(Weak::upgrade);
        drop(versions);
        found.map_or_else(Vec::new, |version| {
            let targets = version.targets.lock().unwrap_or_else(PoisonError::into_inner);
            targets.iter().filter_map(Weak::upgrade).collect()
        })
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    /// The models that have a route, sorted.
    pub fn models(&self) -> Vec<String> {
        let mut models = self.inner.table.names();
        models.sort_unstable();
        models
    }
}
