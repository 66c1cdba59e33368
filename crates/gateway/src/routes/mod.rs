//! Routing table: model to versions to replicas.
//!
//! Lookups take one hash and no lock; an update touches one model only. A request holds its [`Target`] while in
//! flight, so that a removed replica is known to be drained before its model is unloaded.

mod apply;
mod endpoint;
mod load;
mod select;
mod table;
mod test_support;

pub use apply::Removed;
pub(crate) use endpoint::{Endpoint, Registry};
pub use load::Demand;
pub(crate) use select::{InFlightRequest, SelectError};
pub use test_support::TestRequest;

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

/// Cheap to clone; clones share the table.
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
    /// Notified when a request starts waiting for a model that is scaled to zero.
    scale_up: Notify,
}

/// A model's slot in the table; the route inside is swapped.
pub(crate) struct ModelSlot {
    model: Arc<str>,
    route: ArcSwapOption<Route>,
    /// Notified of each route change.
    changed: Notify,
    /// Requests waiting for a replica.
    waiting: AtomicUsize,
}

pub(crate) struct Route {
    versions: Vec<WeightedVersion>,
    reason: String,
    /// Scaled to zero: the next request triggers a scale-up.
    scaled_to_zero: bool,
}

struct WeightedVersion {
    weight: u32,
    version: Arc<Version>,
    targets: Vec<Arc<Target>>,
}

/// A model version with precomputed names and headers.
pub(crate) struct Version {
    pub(crate) model: Arc<str>,
    pub(crate) number: u32,
    /// `<model>_<version>`
    pub(crate) internal: Arc<str>,
    pub(crate) internal_header: HeaderValue,
    /// `:<model>_<version>:`
    pub(crate) route_header: HeaderValue,
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
    /// Inferences and their total duration since the previous load report.
    answered: AtomicU64,
    busy_micros: AtomicU64,
    /// `drained` has waiters.
    has_waiters: AtomicBool,
    idle: Notify,
}

impl Target {
    fn leave(&self) {
        // SeqCst pairs with `drained`: either it sees the new count or this sees its waiters.
        if self.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 && self.has_waiters.load(Ordering::SeqCst) {
            self.idle.notify_waiters();
        }
    }

    fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) == 0
    }

    async fn drained(&self) {
        self.has_waiters.store(true, Ordering::SeqCst);
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
                scale_up: Notify::new(),
            }),
        }
    }

    /// Whether a full sync has completed.
    pub fn is_synced(&self) -> bool {
        self.inner.synced.load(Ordering::Acquire)
    }

    pub fn len(&self) -> usize {
        self.inner.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn in_flight(&self, model: &str, version: u32, server: &str, replica: u32) -> usize {
        self.targets(model, version)
            .iter()
            .filter(|t| t.endpoint.server == server && t.endpoint.replica == replica)
            .map(|t| t.in_flight.load(Ordering::SeqCst))
            .sum()
    }

    /// Resolves when a version has no request in flight on any replica.
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

    pub fn models(&self) -> Vec<String> {
        let mut models = self.inner.table.names();
        models.sort_unstable();
        models
    }
}
