//! The models beside a server: all on disk, those in use in its memory.
//!
//! ```text
//! agent ──load, unload──▶ shelf ──load, unload──▶ server
//! proxy ──enter─────────▶   │   a request waits here while its model is brought into memory
//! watch ──is it there?──▶   │   what the server forgot is brought back
//! ```
//!
//! The scheduler may place more on a server than its memory holds (over-commit). What was not used for longest leaves
//! the memory when room is needed, stays on disk, and comes back with the next request for it. The scheduler never
//! sees that.

mod bring;
mod memory;
mod records;
mod watch;

#[cfg(test)]
mod tests;

pub(crate) use bring::{Hold, Refused};
pub(crate) use memory::Place;
pub(crate) use records::Records;

use crate::{
    backend::{self, Failure, Kind, Repository, Surroundings},
    metrics::Metrics,
    server::{Held, LoadOrder, Loaded, ModelServer},
};
use futures::future::BoxFuture;
use gantry_proto::{
    agent::{ModelOperationMessage, model_operation_message::Operation},
    scheduler::ModelSpec,
};
use memory::Memory;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{Mutex as AsyncMutex, Notify, watch as channel},
    time::Instant,
};

/// How patient the shelf is with its server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How long loading one model may take, with all attempts.
    pub load: Duration,
    /// How long unloading one model may take, with all attempts.
    pub unload: Duration,
    /// How often loading is tried again when the server cannot be reached.
    pub load_retries: u32,
    /// How often unloading is tried again.
    pub unload_retries: u32,
    /// How long requests under way may keep a model from being unloaded.
    pub grace: Duration,
    /// How often the server is asked whether it is there and what it holds.
    pub check: Duration,
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
        }
    }
}

/// What the shelf is made of.
pub(crate) struct Setup {
    pub(crate) kind: Kind,
    pub(crate) surroundings: Surroundings,
    pub(crate) repository: Arc<dyn Repository>,
    pub(crate) records: Records,
    /// Memory of the server for models.
    pub(crate) capacity: u64,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
}

/// How a model comes into memory, for all who wait for it.
type Arrival = channel::Receiver<Option<Result<(), Failure>>>;

struct Entry {
    /// What it was placed for.
    order: ModelOperationMessage,
    /// Whether it has ever been loaded: before that it is not the scheduler's business.
    proven: bool,
    /// Whether it is to be unloaded for good: no request may enter any more.
    closing: bool,
    coming: Option<Arrival>,
    used: SystemTime,
    /// When it was last used, for whoever scales by it.
    idle_since: Instant,
}

struct State {
    memory: Memory,
    entries: BTreeMap<Arc<str>, Entry>,
}

/// Whether the server is there.
#[derive(Clone, Debug, Default)]
struct Health {
    alive: bool,
    /// Higher after each time that what the server holds is not what was said before.
    epoch: u64,
    reason: String,
}

struct Inner {
    setup: Setup,
    state: Mutex<State>,
    /// Something about a model's place changed, or a request ended.
    changed: Notify,
    /// One at a time has others evicted: two would evict more than needed.
    door: AsyncMutex<()>,
    health: channel::Sender<Health>,
    /// The epoch that the scheduler was told about.
    told: Mutex<u64>,
    /// Somebody has reason to doubt that the server is there.
    doubt: Notify,
}

/// The models beside a server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Shelf {
    inner: Arc<Inner>,
}

/// One model as others see it.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) name: Arc<str>,
    pub(crate) model: String,
    pub(crate) version: u32,
    pub(crate) in_memory: bool,
    pub(crate) used: SystemTime,
    pub(crate) idle: Duration,
    pub(crate) in_flight: u32,
    pub(crate) autoscaling: bool,
}

impl Shelf {
    pub(crate) fn new(setup: Setup) -> Self {
        let mut state = State { memory: Memory::new(setup.capacity), entries: BTreeMap::new() };
        for (name, order) in setup.records.known() {
            state.add(&name.into(), order, true);
        }
        setup.metrics.capacity(setup.capacity);
        let inner = Inner {
            setup,
            state: Mutex::new(state),
            changed: Notify::new(),
            door: AsyncMutex::new(()),
            health: channel::Sender::new(Health::default()),
            told: Mutex::new(0),
            doubt: Notify::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Every model that may be asked for.
    pub(crate) fn shown(&self) -> Vec<Shown> {
        let state = self.inner.lock();
        let open = state.entries.iter().filter(|(_, e)| e.proven && !e.closing);
        open.map(|(name, entry)| {
            let version = entry.order.model_version.as_ref();
            let model = version.and_then(|v| v.model.as_ref()).and_then(|m| m.meta.as_ref());
            Shown {
                name: name.clone(),
                model: model.map(|m| m.name.clone()).unwrap_or_default(),
                version: version.map_or(0, |v| v.version),
                in_memory: state.memory.place(name) == Some(Place::Memory),
                used: entry.used,
                idle: entry.idle_since.elapsed(),
                in_flight: state.memory.holds(name),
                autoscaling: entry.order.autoscaling_enabled,
            }
        })
        .collect()
    }

    /// Memory that no model takes.
    pub(crate) fn memory_free(&self) -> u64 {
        let state = self.inner.lock();
        state.memory.capacity().saturating_sub(state.memory.bytes_taken())
    }

    /// Requests under way.
    pub(crate) fn in_flight(&self) -> u64 {
        self.inner.lock().in_flight()
    }

    /// Waits until no request is under way.
    pub(crate) async fn quiet(&self) {
        self.inner.until(|state| state.in_flight() == 0).await;
    }

    /// Whether the server is there.
    pub(crate) fn is_alive(&self) -> bool {
        self.inner.health.borrow().alive
    }

    /// Somebody could not reach the server: it is looked after at once.
    pub(crate) fn doubt(&self) {
        self.inner.doubt.notify_one();
    }

    async fn place_and_load(&self, order: LoadOrder) -> Result<Loaded, String> {
        let inner = &self.inner;
        let name: Arc<str> = order.name.as_str().into();
        let record = ModelOperationMessage {
            operation: Operation::LoadModel as i32,
            model_version: Some(order.definition.clone()),
            autoscaling_enabled: order.autoscaling,
        };
        let setup = inner.clone();
        let (placed_name, placed_record) = (order.name.clone(), record.clone());
        let placing = move || {
            let Setup { kind, surroundings, records, .. } = &setup.setup;
            records.place(&placed_name, &placed_record, |place| {
                backend::arrange(*kind, &order, surroundings, place)
            })
        };
        let arranged = blocking(placing).await??;
        let mut record = record;
        if let Some(spec) = records::spec_of(&mut record) {
            spec.model_runtime_info.clone_from(&arranged.runtime_info);
        }
        let memory_bytes = {
            let mut state = inner.lock();
            state.add(&name, record, false);
            state.memory.size(&name)
        };
        let arrival = inner.bring(&name);
        let arrived = match arrival {
            Some(arrival) => bring::arrived(arrival).await,
            None => Err(Failure::Gone("it is not wanted any more".into())),
        };
        match arrived {
            Ok(()) => {
                inner.with(|state| state.entry(&name, |e| e.proven = true));
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
                // Whether it is there or half there is not known: it is not to stay.
                let _ = inner.setup.repository.unload(&name, inner.setup.limits.grace).await;
                self.forget(&name).await;
                Err(failure.words().to_owned())
            }
        }
    }

    /// Removes a model that the server does not have any more, with its files.
    async fn forget(&self, name: &Arc<str>) {
        self.inner.with(|state| {
            state.memory.remove(name);
            state.entries.remove(name);
        });
        let (inner, folder) = (self.inner.clone(), name.clone());
        let removed = blocking(move || inner.setup.records.remove(&folder)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(model = %name, %error, "its files could not be removed");
        }
    }

    async fn unload_for_good(&self, name: String) -> Result<(), String> {
        let name: Arc<str> = name.into();
        let inner = &self.inner;
        if !inner.with(|state| state.entry(&name, |e| e.closing = true)) {
            // Nothing is known of it; the server may still have it.
            return inner.unload(&name).await.map_err(|f| f.words().to_owned());
        }
        let settled = inner
            .until(|state| matches!(state.memory.place(&name), None | Some(Place::Disk | Place::Memory)));
        let limits = &inner.setup.limits;
        if tokio::time::timeout(limits.load, settled).await.is_err() {
            inner.with(|state| state.entry(&name, |e| e.closing = false));
            return Err("it is still being loaded".into());
        }
        let idle = inner.until(|state| state.memory.holds(&name) == 0);
        let _ = tokio::time::timeout(limits.grace, idle).await;
        if inner.lock().memory.place(&name) == Some(Place::Memory) {
            inner.with(|state| state.memory.set_place(&name, Place::Leaving));
            if let Err(failure) = inner.unload(&name).await {
                inner.with(|state| {
                    state.memory.set_place(&name, Place::Memory);
                    state.entry(&name, |e| e.closing = false);
                });
                return Err(failure.words().to_owned());
            }
        }
        self.forget(&name).await;
        inner.setup.metrics.unloads.inc();
        Ok(())
    }

    /// What the scheduler is told: everything that answers, now or after a moment.
    fn held(&self) -> Vec<Held> {
        let state = self.inner.lock();
        let open = state.entries.iter().filter(|(_, e)| e.proven && !e.closing);
        open.filter_map(|(name, entry)| {
            let definition = entry.order.model_version.clone()?;
            Some(Held { definition, memory_bytes: state.memory.size(name) })
        })
        .collect()
    }
}

impl ModelServer for Shelf {
    fn load(&self, order: LoadOrder) -> BoxFuture<'_, Result<Loaded, String>> {
        Box::pin(self.place_and_load(order))
    }

    fn unload(&self, name: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.unload_for_good(name))
    }

    fn settle(&self) -> BoxFuture<'_, Option<Vec<Held>>> {
        Box::pin(async {
            let mut health = self.inner.health.subscribe();
            let epoch = health.wait_for(|h| h.alive).await.ok()?.epoch;
            *self.inner.told.lock().unwrap_or_else(PoisonError::into_inner) = epoch;
            Some(self.held())
        })
    }

    fn lost(&self) -> BoxFuture<'_, String> {
        Box::pin(async {
            let told = *self.inner.told.lock().unwrap_or_else(PoisonError::into_inner);
            let mut health = self.inner.health.subscribe();
            let lost = health.wait_for(|h| !h.alive || h.epoch != told).await;
            lost.map_or_else(|_| "the agent is stopping".to_owned(), |h| h.reason.clone())
        })
    }

    fn needs_files(&self) -> bool {
        false
    }
}

impl State {
    fn add(&mut self, name: &Arc<str>, order: ModelOperationMessage, proven: bool) {
        let size = order
            .model_version
            .as_ref()
            .and_then(|v| v.model.as_ref()?.model_spec.as_ref())
            .map_or(0, memory_of);
        self.memory.insert(name.clone(), size);
        let entry = Entry {
            order,
            proven,
            closing: false,
            coming: None,
            used: SystemTime::now(),
            idle_since: Instant::now(),
        };
        self.entries.insert(name.clone(), entry);
    }

    fn in_flight(&self) -> u64 {
        self.entries.keys().map(|name| u64::from(self.memory.holds(name))).sum()
    }

    /// Changes an entry; false when there is none.
    fn entry(&mut self, name: &str, change: impl FnOnce(&mut Entry)) -> bool {
        self.entries.get_mut(name).map(change).is_some()
    }
}

/// Memory that a model takes in its server, as far as it is known.
fn memory_of(spec: &ModelSpec) -> u64 {
    spec.memory_bytes.unwrap_or(0).saturating_mul(backend::copies(spec.model_runtime_info.as_ref()))
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and tells whoever waits for it to change.
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        let models = state.entries.keys().filter(|n| state.memory.place(n) == Some(Place::Memory)).count();
        self.setup.metrics.memory(models, state.memory.bytes_taken(), state.memory.bytes_on_disk());
        drop(state);
        self.changed.notify_waiters();
        result
    }

    /// Waits until the state is as wanted.
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

/// Runs what blocks on a thread that may.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| "the agent failed in an unexpected way; its log says where".to_owned())
}
