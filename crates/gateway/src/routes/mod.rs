//! Routing table: model to versions to replicas; pipelines and experiments by name; InferenceServices by name and host.
//!
//! A component of an InferenceService that runs in pods of its own is an entry of the same table: its backends are the
//! versions, its pods the replicas.
//!
//! Lookups take one hash and no lock; an update touches one model only. A request holds its [`Target`] while in
//! flight, so that a removed replica is known to be drained before its model is unloaded.

mod apply;
mod endpoint;
mod experiment;
mod graph;
mod load;
mod pipeline;
mod select;
mod service;
mod table;
mod test_support;
mod traffic;
#[cfg(test)]
mod weight_tests;

pub use apply::Removed;
pub(crate) use endpoint::{Endpoint, Registry};
pub(crate) use experiment::{Candidate, Experiment, Kind};
pub(crate) use graph::{GraphRoute, StepUrl};
pub use load::Demand;
pub(crate) use load::WaitLimits;
pub(crate) use pipeline::Pipeline;
pub(crate) use select::{InFlightRequest, MirrorCopy, SelectError, Selector};
pub(crate) use service::{Role, Service, role_name};
pub use test_support::TestRequest;
pub(crate) use traffic::{AnswerComparison, Attribution, BodyCopy, ObservedValues};

use crate::metrics::{Metrics, ModelMetrics};
use arc_swap::ArcSwapOption;
use gantry_tensor::TensorSpec;
use http::{HeaderValue, Uri};
use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
};
use tokio::sync::{Notify, watch};

/// Cheap to clone; clones share the table.
#[derive(Clone)]
pub struct Routes {
    inner: Arc<Inner>,
}

struct Inner {
    table: table::Table<ModelSlot>,
    pipelines: table::Table<Pipeline>,
    experiments: table::Table<Experiment>,
    /// Pipelines that read other pipelines, by the one that they read.
    observers: table::Table<pipeline::Observers>,
    /// InferenceServices that run in pods of their own.
    services: table::Table<Service>,
    /// Further hosts of `services`.
    hosts: table::Table<service::Host>,
    registry: Registry,
    metrics: Arc<Metrics>,
    writer: Mutex<apply::Writer>,
    /// Changes with each change of a pipeline.
    pipeline_changes: watch::Sender<u64>,
    /// The last pipelines that were deleted, and not only left out of a full sync.
    deleted_pipelines: Mutex<VecDeque<String>>,
    versions: Mutex<HashMap<(String, u32), Weak<Version>>>,
    synced: AtomicBool,
    /// InferenceServices, those that are models included.
    service_count: AtomicUsize,
    /// Number of the next backend.
    next_backend: AtomicU32,
    /// Notified when a request starts waiting for a model that is scaled to zero.
    scale_up: Notify,
    /// Requests of all models waiting for a replica.
    waiting: AtomicUsize,
    traffic: traffic::Traffic,
}

/// A model's slot in the table; the route inside is swapped.
pub(crate) struct ModelSlot {
    model: Arc<str>,
    /// Not a model: a component of an InferenceService, `<namespace>/<name>/<component>`.
    is_component: bool,
    route: ArcSwapOption<Route>,
    /// Notified of each route change.
    changed: Notify,
    /// Requests waiting for a replica.
    waiting: AtomicUsize,
}

impl table::Named for ModelSlot {
    fn name(&self) -> &str {
        &self.model
    }
}

#[derive(Clone)]
pub(crate) struct Route {
    versions: Vec<WeightedVersion>,
    /// The active experiment that takes over the model's name.
    experiment: Option<Arc<Experiment>>,
    reason: String,
    /// Scaled to zero: the next request triggers a scale-up.
    scaled_to_zero: bool,
    /// Loading failed.
    failed: bool,
    /// Namespace of the InferenceService that the model serves; empty for a Model.
    service_namespace: String,
    /// Whether a failed request may find another replica.
    has_alternatives: bool,
    mirror: Option<VersionMirror>,
}

/// A version that gets copies of requests to the others.
#[derive(Clone)]
struct VersionMirror {
    version: u32,
    percent: u32,
    counters: Option<Arc<traffic::VersionCounters>>,
    /// In millionths; `None` compares no answers.
    tolerance: Option<u32>,
}

#[derive(Clone)]
struct WeightedVersion {
    weight: u32,
    version: Arc<Version>,
    targets: Vec<Arc<Target>>,
    /// Of a model with a rollout.
    counters: Option<Arc<traffic::VersionCounters>>,
}

/// A model version, or a backend of a component, with precomputed names and headers.
pub(crate) struct Version {
    pub(crate) model: Arc<str>,
    pub(crate) number: u32,
    /// `<model>_<version>`, or the name of the backend.
    pub(crate) internal: Arc<str>,
    /// Of a model.
    pub(crate) internal_header: Option<HeaderValue>,
    /// `:<internal>:`
    pub(crate) route_header: HeaderValue,
    /// `/v2/models/<model>_<version>/infer`
    pub(crate) infer_uri: Uri,
    /// The inputs of its metadata, once a V1 request needed them.
    pub(crate) inputs: OnceLock<Arc<[TensorSpec]>>,
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
    /// Until when other replicas are preferred, in milliseconds of the endpoint's clock; zero if never avoided.
    avoid_until: AtomicU64,
    /// `drained` has waiters.
    has_waiters: AtomicBool,
    idle: Notify,
}

/// `avoid_until` while the replica's agent is disconnected from the scheduler.
const DISCONNECTED: u64 = u64::MAX;
/// How long a replica that did not have the model is avoided.
const MISSING_MODEL_AVOIDED_MS: u64 = 1000;

impl Target {
    fn is_avoided(&self) -> bool {
        match self.avoid_until.load(Ordering::Relaxed) {
            0 => false,
            until => self.endpoint.now() < until,
        }
    }

    /// The replica does not have the model.
    pub(crate) fn on_missing_model(&self) {
        let until = self.endpoint.now().saturating_add(MISSING_MODEL_AVOIDED_MS);
        self.avoid_until.fetch_max(until, Ordering::Relaxed);
    }

    fn set_disconnected(&self, disconnected: bool) {
        if disconnected {
            self.avoid_until.store(DISCONNECTED, Ordering::Relaxed);
        } else {
            // Ends only the avoidance of a disconnected replica.
            let _ = self.avoid_until.compare_exchange(DISCONNECTED, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

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
                pipelines: table::Table::new(),
                experiments: table::Table::new(),
                observers: table::Table::new(),
                services: table::Table::new(),
                hosts: table::Table::new(),
                registry: Registry::default(),
                metrics,
                writer: Mutex::default(),
                pipeline_changes: watch::Sender::new(0),
                deleted_pipelines: Mutex::default(),
                versions: Mutex::default(),
                synced: AtomicBool::new(false),
                service_count: AtomicUsize::new(0),
                next_backend: AtomicU32::new(1),
                scale_up: Notify::new(),
                waiting: AtomicUsize::new(0),
                traffic: traffic::Traffic::default(),
            }),
        }
    }

    /// Whether a full sync has completed.
    pub fn is_synced(&self) -> bool {
        self.inner.synced.load(Ordering::Acquire)
    }

    pub fn len(&self) -> usize {
        self.inner.models().count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn contains(&self, model: &str) -> bool {
        let found = self.inner.table.find(model);
        found.as_ref().and_then(|f| f.slot(model)).is_some_and(|slot| !slot.is_component)
    }

    /// Whether there is any InferenceService.
    pub(crate) fn has_services(&self) -> bool {
        self.inner.service_count.load(Ordering::Relaxed) > 0
    }

    /// Whether a model serves this InferenceService.
    pub(crate) fn is_service(&self, name: &str, namespace: &str) -> bool {
        let found = self.inner.table.find(name);
        let Some(slot) = found.as_ref().and_then(|f| f.slot(name)) else { return false };
        let route = slot.route.load();
        !namespace.is_empty() && route.as_ref().is_some_and(|route| route.service_namespace == namespace)
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

    pub(crate) fn pipeline(&self, name: &str) -> Option<Arc<Pipeline>> {
        self.inner.pipelines.get(name)
    }

    /// Notified of each change of a pipeline.
    #[cfg(feature = "kafka")]
    pub(crate) fn pipeline_changes(&self) -> watch::Receiver<u64> {
        self.inner.pipeline_changes.subscribe()
    }

    /// Whether the scheduler reported that the pipeline was deleted. One that is missing after the scheduler lost its state
    /// was not.
    #[cfg(feature = "kafka")]
    pub(crate) fn is_deleted_pipeline(&self, name: &str) -> bool {
        let deleted = self.inner.deleted_pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        deleted.iter().any(|deleted| deleted == name)
    }

    /// The pipelines that read this one.
    pub(crate) fn observers(&self, pipeline: &str) -> Option<Arc<[Arc<str>]>> {
        let found = self.inner.observers.find(pipeline)?;
        found.slot(pipeline).map(|entry| Arc::clone(&entry.observers))
    }

    pub(crate) fn experiment(&self, name: &str) -> Option<Arc<Experiment>> {
        self.inner.experiments.get(name)
    }

    /// The last runs of a pipeline as JSON, newest first; `None` if there is no such pipeline.
    pub fn recent_runs(&self, pipeline: &str) -> Option<serde_json::Value> {
        self.pipeline(pipeline).map(|found| found.recent.to_json(&found.name))
    }

    pub fn pipelines(&self) -> Vec<String> {
        let mut pipelines = self.inner.pipelines.names();
        pipelines.sort_unstable();
        pipelines
    }

    pub fn experiments(&self) -> Vec<String> {
        let mut experiments = self.inner.experiments.names();
        experiments.sort_unstable();
        experiments
    }

    /// Selected models in the order of their names, each with whether a replica serves it.
    pub(crate) fn readiness(&self, is_selected: impl Fn(&str) -> bool) -> Vec<(Arc<str>, bool)> {
        let slots = self.inner.models().filter(|slot| is_selected(&slot.model));
        let is_served = |route: &Route| {
            let serves = |version: &WeightedVersion| version.weight > 0 && !version.targets.is_empty();
            route.experiment.is_some() || route.versions.iter().any(serves)
        };
        let mut models: Vec<_> = slots
            .map(|slot| {
                (Arc::clone(&slot.model), slot.route.load().as_ref().is_some_and(|route| is_served(route)))
            })
            .collect();
        models.sort_unstable();
        models
    }

    pub fn models(&self) -> Vec<String> {
        let mut models: Vec<String> = self.inner.models().map(|slot| slot.model.to_string()).collect();
        models.sort_unstable();
        models
    }
}

impl Inner {
    fn models(&self) -> impl Iterator<Item = Arc<ModelSlot>> {
        self.table.slots().into_iter().filter(|slot| !slot.is_component)
    }
}
