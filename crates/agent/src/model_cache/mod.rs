//! Model cache of a server: all models on disk, recently used ones in server memory.
//!
//! ```text
//! agent  ──load, unload──▶ cache ──load, unload──▶ server
//! proxy  ──acquire───────▶   │   requests wait here while their model is loaded
//! health ──check─────────▶   │   models lost by the server are reloaded
//! ```
//!
//! The scheduler may place more models than fit into memory (over-commit). The least recently used models are evicted
//! to disk and reloaded by the next request; the scheduler does not see evictions.

mod disk;
mod health;
mod load;
mod lru;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use disk::DiskRecords;
pub(crate) use load::{InFlightGuard, Rejected};
pub(crate) use lru::Residency;

use crate::{
    backend::{self, Failure, Kind, Repository, ServerEnvironment},
    metrics::Metrics,
    model_server::{LoadError, LoadOrder, Loaded, LoadedModel, ModelServer},
};
use futures::future::BoxFuture;
use gantry_proto::{
    agent::{ModelOperationMessage, model_operation_message::Operation},
    scheduler::ModelSpec,
};
use lru::Lru;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{Notify, watch as channel},
    time::Instant,
};

#[derive(Clone, Debug)]
pub struct Limits {
    /// Load timeout, including retries.
    pub load: Duration,
    /// Unload timeout, including retries.
    pub unload: Duration,
    /// Retries while the server is unreachable.
    pub load_retries: u32,
    pub unload_retries: u32,
    /// How long in-flight requests delay an unload.
    pub grace: Duration,
    /// Health check interval.
    pub check: Duration,
    /// Timeout of the warm-up request after a load; zero turns it off.
    pub warm_up: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            load: Duration::from_hours(2),
            unload: Duration::from_mins(15),
            load_retries: 5,
            unload_retries: 1,
            grace: Duration::from_secs(2),
            check: Duration::from_secs(5),
            warm_up: Duration::from_mins(1),
        }
    }
}

pub(crate) struct CacheConfig {
    pub(crate) kind: Kind,
    pub(crate) environment: ServerEnvironment,
    pub(crate) repository: Arc<dyn Repository>,
    pub(crate) records: DiskRecords,
    /// Memory of the server for models.
    pub(crate) capacity: u64,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
}

/// Result of a load, shared by all waiters.
type LoadResult = channel::Receiver<Option<Result<(), Failure>>>;

struct Entry {
    order: ModelOperationMessage,
    /// The first load succeeded; before that the model is not reported.
    loaded_once: bool,
    /// Being removed: requests are rejected.
    removing: bool,
    load: Option<LoadResult>,
    used: SystemTime,
    /// Last use, for scale-down.
    idle_since: Instant,
}

struct State {
    memory: Lru,
    entries: BTreeMap<Arc<str>, Entry>,
}

#[derive(Clone, Debug, Default)]
struct Health {
    alive: bool,
    /// Incremented when the set of loaded models changes unexpectedly.
    epoch: u64,
    reason: String,
}

struct Inner {
    setup: CacheConfig,
    state: Mutex<State>,
    /// A residency changed or a request ended.
    changed: Notify,
    health: channel::Sender<Health>,
    /// The epoch reported to the scheduler.
    reported_epoch: Mutex<u64>,
    /// Requests an immediate health check.
    health_check: Notify,
}

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct ModelCache {
    inner: Arc<Inner>,
}

#[derive(Clone, Debug)]
pub(crate) struct ModelInfo {
    pub(crate) name: Arc<str>,
    pub(crate) model: String,
    pub(crate) version: u32,
    pub(crate) in_memory: bool,
    pub(crate) used: SystemTime,
    pub(crate) idle: Duration,
    pub(crate) in_flight: u32,
    pub(crate) autoscaling: bool,
}

impl ModelCache {
    pub(crate) fn new(setup: CacheConfig) -> Self {
        let mut state = State { memory: Lru::new(setup.capacity), entries: BTreeMap::new() };
        for (name, order) in setup.records.known() {
            setup.metrics.add_model(&name);
            state.add(&name.into(), order, true);
        }
        setup.metrics.capacity(setup.capacity);
        let inner = Inner {
            setup,
            state: Mutex::new(state),
            changed: Notify::new(),
            health: channel::Sender::new(Health::default()),
            reported_epoch: Mutex::new(0),
            health_check: Notify::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn models(&self) -> Vec<ModelInfo> {
        let state = self.inner.lock();
        let open = state.entries.iter().filter(|(_, e)| e.loaded_once && !e.removing);
        open.map(|(name, entry)| {
            let version = entry.order.model_version.as_ref();
            let model = version.and_then(|v| v.model.as_ref()).and_then(|m| m.meta.as_ref());
            ModelInfo {
                name: name.clone(),
                model: model.map(|m| m.name.clone()).unwrap_or_default(),
                version: version.map_or(0, |v| v.version),
                in_memory: state.memory.residency(name) == Some(Residency::Memory),
                used: entry.used,
                idle: entry.idle_since.elapsed(),
                in_flight: state.memory.in_flight(name),
                autoscaling: entry.order.autoscaling_enabled,
            }
        })
        .collect()
    }

    pub(crate) fn memory_free(&self) -> u64 {
        let state = self.inner.lock();
        state.memory.capacity().saturating_sub(state.memory.resident_bytes())
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.inner.lock().in_flight()
    }

    /// Waits until no request is in flight.
    pub(crate) async fn idle(&self) {
        self.inner.until(|state| state.in_flight() == 0).await;
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.inner.health.borrow().alive
    }

    /// Changes when the server was lost and its models are restored.
    pub(crate) fn epoch(&self) -> u64 {
        self.inner.health.borrow().epoch
    }

    /// Waits until the server is alive in another epoch.
    pub(crate) async fn restored(&self, epoch: u64) {
        let mut health = self.inner.health.subscribe();
        // The cache holds the sender.
        let _ = health.wait_for(|h| h.alive && h.epoch != epoch).await;
    }

    /// Called when the server was unreachable.
    pub(crate) fn request_health_check(&self) {
        self.inner.health_check.notify_one();
    }

    async fn install(&self, order: LoadOrder) -> Result<Loaded, LoadError> {
        let inner = &self.inner;
        let warms_up = warms_up(inner.setup.kind, &order);
        let name: Arc<str> = order.name.as_str().into();
        let record = ModelOperationMessage {
            operation: Operation::LoadModel as i32,
            model_version: Some(order.definition.clone()),
            autoscaling_enabled: order.autoscaling,
        };
        let setup = inner.clone();
        let (record_name, stored_record) = (order.name.clone(), record.clone());
        let placing = move || {
            let CacheConfig { kind, environment, records, .. } = &setup.setup;
            records.install(&record_name, &stored_record, |target| {
                backend::arrange(*kind, &order, environment, target)
            })
        };
        let arranged = blocking(placing).await.map_err(LoadError::transient)??;
        let mut record = record;
        if let Some(spec) = disk::spec_of(&mut record) {
            spec.model_runtime_info.clone_from(&arranged.runtime_info);
        }
        inner.setup.metrics.add_model(&name);
        let memory_bytes = {
            let mut state = inner.lock();
            state.add(&name, record, false);
            state.memory.size(&name)
        };
        let result = inner.start_load(&name);
        let mut arrived = match result {
            Some(result) => load::wait_loaded(result).await,
            None => Err(Failure::Unreachable("the load was cancelled".into())),
        };
        if arrived.is_ok() && warms_up {
            arrived = inner.warm_up(&name).await;
        }
        match arrived {
            Ok(()) => {
                inner.with(|state| state.entry(&name, |e| e.loaded_once = true));
                inner.setup.metrics.loads.inc();
                let engine = inner.setup.kind.name().to_owned();
                Ok(Loaded {
                    platform: arranged.platform,
                    engine,
                    memory_bytes,
                    runtime_info: arranged.runtime_info,
                })
            }
            Err(failure) => {
                // Possibly half loaded: unload.
                let _ = inner.setup.repository.unload(&name, inner.setup.limits.grace).await;
                self.forget(&name).await;
                Err(failure.into())
            }
        }
    }

    /// Removes an unloaded model with its files.
    async fn forget(&self, name: &Arc<str>) {
        self.inner.with(|state| {
            state.memory.remove(name);
            state.entries.remove(name);
        });
        self.inner.setup.metrics.remove_model(name);
        let (inner, folder) = (self.inner.clone(), name.clone());
        let removed = blocking(move || inner.setup.records.remove(&folder)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(model = %name, %error, "failed to remove files");
        }
    }

    async fn remove_model(&self, name: String) -> Result<(), String> {
        let name: Arc<str> = name.into();
        let inner = &self.inner;
        if !inner.with(|state| state.entry(&name, |e| e.removing = true)) {
            // Unknown here, but the server may still have it.
            return inner.unload(&name).await.map_err(|f| f.message().to_owned());
        }
        let settled = inner.until(|state| {
            matches!(state.memory.residency(&name), None | Some(Residency::Disk | Residency::Memory))
        });
        let limits = &inner.setup.limits;
        if tokio::time::timeout(limits.load, settled).await.is_err() {
            inner.with(|state| state.entry(&name, |e| e.removing = false));
            return Err("it is still being loaded".into());
        }
        let idle = inner.until(|state| state.memory.in_flight(&name) == 0);
        let _ = tokio::time::timeout(limits.grace, idle).await;
        if inner.lock().memory.residency(&name) == Some(Residency::Memory) {
            inner.with(|state| state.memory.set_residency(&name, Residency::Unloading));
            if let Err(failure) = inner.unload(&name).await {
                inner.with(|state| {
                    state.memory.set_residency(&name, Residency::Memory);
                    state.entry(&name, |e| e.removing = false);
                });
                return Err(failure.message().to_owned());
            }
        }
        self.forget(&name).await;
        inner.setup.metrics.unloads.inc();
        Ok(())
    }

    /// Models reported to the scheduler, in memory or on disk.
    fn loaded(&self) -> Vec<LoadedModel> {
        let state = self.inner.lock();
        let open = state.entries.iter().filter(|(_, e)| e.loaded_once && !e.removing);
        open.filter_map(|(name, entry)| {
            let definition = entry.order.model_version.clone()?;
            Some(LoadedModel { definition, memory_bytes: state.memory.size(name) })
        })
        .collect()
    }
}

impl ModelServer for ModelCache {
    fn load(&self, order: LoadOrder) -> BoxFuture<'_, Result<Loaded, LoadError>> {
        Box::pin(self.install(order))
    }

    fn unload(&self, name: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.remove_model(name))
    }

    fn wait_ready(&self) -> BoxFuture<'_, Option<Vec<LoadedModel>>> {
        Box::pin(async {
            let mut health = self.inner.health.subscribe();
            let epoch = health.wait_for(|h| h.alive).await.ok()?.epoch;
            *self.inner.reported_epoch.lock().unwrap_or_else(PoisonError::into_inner) = epoch;
            Some(self.loaded())
        })
    }

    fn wait_lost(&self) -> BoxFuture<'_, String> {
        Box::pin(async {
            let reported = *self.inner.reported_epoch.lock().unwrap_or_else(PoisonError::into_inner);
            let mut health = self.inner.health.subscribe();
            let lost = health.wait_for(|h| !h.alive || h.epoch != reported).await;
            lost.map_or_else(|_| "the agent is stopping".to_owned(), |h| h.reason.clone())
        })
    }

    fn needs_files(&self) -> bool {
        false
    }
}

impl State {
    fn add(&mut self, name: &Arc<str>, order: ModelOperationMessage, loaded_once: bool) {
        let size = order
            .model_version
            .as_ref()
            .and_then(|v| v.model.as_ref()?.model_spec.as_ref())
            .map_or(0, memory_of);
        self.memory.insert(name.clone(), size);
        let entry = Entry {
            order,
            loaded_once,
            removing: false,
            load: None,
            used: SystemTime::now(),
            idle_since: Instant::now(),
        };
        self.entries.insert(name.clone(), entry);
    }

    fn in_flight(&self) -> u64 {
        self.entries.keys().map(|name| u64::from(self.memory.in_flight(name))).sum()
    }

    /// Returns false for an unknown model.
    fn entry(&mut self, name: &str, change: impl FnOnce(&mut Entry)) -> bool {
        self.entries.get_mut(name).map(change).is_some()
    }
}

/// Parameter of a Model that turns its warm-up off.
const WARM_UP_PARAMETER: &str = "gantry.warm-up";

/// The built-in runtime warms its models up itself; explainers and LLM companions call other models.
fn warms_up(kind: Kind, order: &LoadOrder) -> bool {
    let last = order.parameters.iter().rfind(|(name, _)| name == WARM_UP_PARAMETER);
    let off = last.is_some_and(|(_, value)| value == "off");
    kind != Kind::Builtin && !off && order.spec().model_spec.is_none()
}

/// Expected memory, including the server's copies.
fn memory_of(spec: &ModelSpec) -> u64 {
    spec.memory_bytes.unwrap_or(0).saturating_mul(backend::copies(spec.model_runtime_info.as_ref()))
}

impl Inner {
    /// Not evicted meanwhile.
    async fn warm_up(self: &Arc<Self>, name: &Arc<str>) -> Result<(), Failure> {
        let limit = self.setup.limits.warm_up;
        if limit.is_zero() {
            return Ok(());
        }
        self.lock().memory.pin(name);
        let _guard = InFlightGuard::new(self, name);
        self.setup.repository.warm_up(name, limit).await
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a change and notifies waiters.
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        let models =
            state.entries.keys().filter(|n| state.memory.residency(n) == Some(Residency::Memory)).count();
        self.setup.metrics.memory(models, state.memory.resident_bytes(), state.memory.disk_bytes());
        drop(state);
        self.changed.notify_waiters();
        result
    }

    async fn until(&self, wanted: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if wanted(&self.lock()) {
                return;
            }
            changed.await;
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|_| "internal error; see the agent's log".to_owned())
}
