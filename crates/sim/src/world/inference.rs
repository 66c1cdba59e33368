//! An inference server that takes its time, fails, dies, and remembers what it held.

use super::facts::Facts;
use crate::{plan::ServerPlan, rng::Rng, trace::Trace};
use futures::future::BoxFuture;
use gantry_agent::{Files, LoadOrder, Loaded, LoadedModel, ModelServer, Source};
use gantry_artifacts::ProgressSink;
use gantry_proto::{agent::ModelVersion, scheduler::ModelSpec};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

/// How long after a death the others may take a server for what it was.
const REMEMBERED: u64 = 150_000;

/// A model version by name and number.
pub(crate) type Key = (String, u32);

/// What became of a version on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is loaded.
    Held,
    /// It went with a server that died not long ago.
    Lost,
    /// It was never here, or was unloaded by order.
    Absent,
}

#[derive(Debug)]
struct Holding {
    definition: ModelVersion,
    memory: u64,
    loaded: bool,
}

#[derive(Debug, Default)]
struct Inner {
    up: bool,
    held: BTreeMap<Key, Holding>,
    /// What earlier lives held when they ended, and when that was.
    lost: BTreeMap<Key, u64>,
    /// Which sources failed once already.
    stumbled: BTreeSet<String>,
    /// Loads and unloads so far, without those of sources that never load.
    operations: u64,
}

/// One replica's inference server.
#[derive(Clone)]
pub(crate) struct InferenceServer {
    pub(crate) host: Arc<str>,
    pub(crate) plan: ServerPlan,
    inner: Arc<Mutex<Inner>>,
    /// Counts the lives.
    life: Arc<watch::Sender<u64>>,
    trace: Trace,
    facts: Facts,
    seed: u64,
    /// Whether a load that does not fit is somebody's mistake.
    strict: bool,
    /// Told when a model is loaded.
    tell: Arc<dyn Fn() + Send + Sync>,
}

impl InferenceServer {
    pub(crate) fn new(
        host: Arc<str>,
        plan: ServerPlan,
        trace: Trace,
        facts: Facts,
        seed: u64,
        strict: bool,
    ) -> Self {
        let inner = Arc::default();
        Self {
            host,
            plan,
            inner,
            life: Arc::new(watch::Sender::new(0)),
            trace,
            facts,
            seed,
            strict,
            tell: Arc::new(|| {}),
        }
    }

    /// The same server; whoever wants to know is told when it has loaded a model.
    pub(crate) fn telling(self, tell: impl Fn() + Send + Sync + 'static) -> Self {
        Self { tell: Arc::new(tell), ..self }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn start(&self) {
        self.lock().up = true;
        self.life.send_modify(|_| {});
    }

    /// Ends; what it holds is gone.
    pub(crate) fn die(&self) {
        let now = self.trace.millis();
        let mut inner = self.lock();
        inner.up = false;
        let held = std::mem::take(&mut inner.held);
        inner.lost.extend(held.into_iter().filter(|(_, h)| h.loaded).map(|(key, _)| (key, now)));
        drop(inner);
        self.life.send_modify(|life| *life += 1);
    }

    /// Counts the lives: what was on an earlier one ended with it.
    pub(crate) fn life(&self) -> u64 {
        *self.life.borrow()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.lock().up
    }

    /// What became of a version.
    pub(crate) fn fate(&self, key: &Key) -> Fate {
        let inner = self.lock();
        if inner.held.get(key).is_some_and(|h| h.loaded) {
            return Fate::Held;
        }
        let now = self.trace.millis();
        let recently = |at: &u64| now.saturating_sub(*at) < REMEMBERED;
        if !inner.up || inner.lost.get(key).is_some_and(recently) { Fate::Lost } else { Fate::Absent }
    }

    /// The versions that it holds or loads, with their memory.
    pub(crate) fn holdings(&self) -> Vec<(Key, u64)> {
        self.lock().held.iter().map(|(key, h)| (key.clone(), h.memory)).collect()
    }

    pub(crate) fn memory_free(&self) -> u64 {
        let used: u64 = self.lock().held.values().map(|h| h.memory).sum();
        self.plan.memory.saturating_sub(used)
    }

    pub(crate) fn operations(&self) -> u64 {
        self.lock().operations
    }

    fn load(&self, definition: ModelVersion) -> Result<oneshot::Receiver<Result<u64, String>>, String> {
        let model = definition.model.clone().unwrap_or_default();
        let spec = model.model_spec.unwrap_or_default();
        let key: Key = (model.meta.map(|m| m.name).unwrap_or_default(), definition.version);
        let memory = spec.memory_bytes.unwrap_or(0);
        self.trace.note(&self.host, format_args!("loads {}_{} from {}", key.0, key.1, spec.uri));
        self.remember_content(&key, &spec.uri);
        let capabilities = &self.plan.capabilities;
        if spec.requirements.iter().any(|r| !capabilities.contains(r)) {
            let what = format!("{} was asked to load {} for {:?}", self.host, key.0, spec.requirements);
            self.trace.violate("placement_respects_capabilities", what);
        }
        let named = spec.server.as_ref().filter(|name| !name.is_empty());
        if !named.map_or(self.plan.shared, |name| *name == self.plan.name) {
            let what = format!("{} was asked to load {}, which is meant for {named:?}", self.host, key.0);
            self.trace.violate("placement_respects_the_server", what);
        }
        let free = self.memory_free();
        let mut inner = self.lock();
        if !spec.uri.starts_with("sim://broken") {
            inner.operations += 1;
        }
        if inner.held.contains_key(&key) {
            return Err(format!("{}_{} is here already", key.0, key.1));
        }
        if memory > free {
            let what = format!("{} needs {memory} and {} has {free} free", key.0, self.host);
            if self.strict {
                self.trace.violate("placement_respects_capacity", what.clone());
            }
            return Err(what);
        }
        let stumbles = spec.uri.starts_with("sim://flaky") && inner.stumbled.insert(spec.uri.clone());
        inner.held.insert(key.clone(), Holding { definition, memory, loaded: false });
        drop(inner);
        let fails = stumbles || spec.uri.starts_with("sim://broken");
        let (done, answer) = oneshot::channel();
        let (this, life, takes) = (self.clone(), *self.life.borrow(), self.takes(&key, &spec.uri));
        tokio::spawn(async move {
            tokio::time::sleep(takes).await;
            let mut inner = this.lock();
            if *this.life.borrow() != life {
                return;
            }
            let result = if fails {
                inner.held.remove(&key);
                Err(format!("{} cannot be loaded", spec.uri))
            } else {
                if let Some(holding) = inner.held.get_mut(&key) {
                    holding.loaded = true;
                }
                Ok(memory)
            };
            drop(inner);
            let how = if fails { "failed" } else { "loaded" };
            this.trace.note(&this.host, format_args!("{how} {}_{}", key.0, key.1));
            this.life.send_modify(|_| {});
            let _ = done.send(result);
            (this.tell)();
        });
        Ok(answer)
    }

    fn takes(&self, (model, version): &Key, uri: &str) -> Duration {
        let mut rng = Rng::of(self.seed, &format!("{}/{model}/{version}", self.host));
        let longest = if uri.starts_with("sim://slow") { 40_000 } else { 900 };
        Duration::from_millis(rng.between(longest / 40, longest))
    }

    /// A version is what it was: the same number never stands for something else.
    fn remember_content(&self, (model, version): &Key, uri: &str) {
        let mut facts = self.facts.lock();
        let contents = &mut facts.models.entry(model.clone()).or_default().contents;
        let known = contents.entry(*version).or_insert_with(|| uri.to_owned()).clone();
        drop(facts);
        if known != uri {
            let what = format!("version {version} of {model} was {known} and is now {uri}");
            self.trace.violate("versions_are_never_reused", what);
        }
    }

    fn unload(&self, name: &str) {
        let mut inner = self.lock();
        inner.operations += 1;
        inner.held.retain(|(model, version), _| format!("{model}_{version}") != name);
        // By order and not by accident: whoever is sent here now was sent wrongly.
        inner.lost.retain(|(model, version), _| format!("{model}_{version}") != name);
        drop(inner);
        self.trace.note(&self.host, format_args!("unloads {name}"));
    }

    /// Waits until nothing is being loaded.
    async fn settled(&self) {
        let mut life = self.life.subscribe();
        let _ = life
            .wait_for(|_| {
                let inner = self.lock();
                inner.up && inner.held.values().all(|h| h.loaded)
            })
            .await;
    }
}

/// The server as one life of an agent sees it: a dead agent gets no answers, and gives no orders.
pub(crate) struct Seat {
    pub(crate) server: InferenceServer,
    /// Cancelled when the agent dies.
    pub(crate) dead: CancellationToken,
    /// How long the agent takes to find out that the server has started anew.
    pub(crate) noticed_after: Duration,
}

impl Seat {
    async fn alive<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            () = self.dead.cancelled() => std::future::pending().await,
            done = work => done,
        }
    }
}

impl ModelServer for Seat {
    fn load(&self, order: LoadOrder) -> BoxFuture<'_, Result<Loaded, String>> {
        Box::pin(self.alive(async {
            let gone = || format!("{} is not there", self.server.host);
            if !self.server.is_up() {
                return Err(gone());
            }
            let memory_bytes = self.server.load(order.definition)?.await.map_err(|_| gone())??;
            Ok(Loaded { engine: "sim".into(), memory_bytes, ..Loaded::default() })
        }))
    }

    fn unload(&self, name: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.alive(async move {
            // A call over the loopback takes a moment.
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.server.unload(&name);
            Ok(())
        }))
    }

    fn wait_ready(&self) -> BoxFuture<'_, Option<Vec<LoadedModel>>> {
        Box::pin(self.alive(async {
            self.server.settled().await;
            let inner = self.server.lock();
            let held = inner.held.values().filter(|h| h.loaded);
            Some(held.map(|h| LoadedModel { definition: h.definition.clone(), memory_bytes: h.memory }).collect())
        }))
    }

    fn wait_lost(&self) -> BoxFuture<'_, String> {
        Box::pin(self.alive(async {
            let mut life = self.server.life.subscribe();
            let first = *life.borrow_and_update();
            let _ = life.wait_for(|now| *now != first).await;
            tokio::time::sleep(self.noticed_after).await;
            "the inference server has started anew".to_owned()
        }))
    }
}

/// Nothing has to be fetched.
pub(crate) struct NoFiles;

impl Source for NoFiles {
    fn fetch<'a>(
        &'a self,
        _: &'a ModelSpec,
        _: &'a dyn ProgressSink,
    ) -> BoxFuture<'a, Result<Files, String>> {
        Box::pin(async { Ok(Files { root: "/".into(), model_dir: "/".into(), lease: None }) })
    }
}
