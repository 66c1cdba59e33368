//! A simulated inference server with load times, load failures and crashes.

use super::ground_truth::GroundTruth;
use crate::{rng, scenario::ServerSpec, trace::Trace};
use futures::future::BoxFuture;
use gantry_agent::{Files, LoadError, LoadOrder, Loaded, LoadedModel, ModelServer, Source};
use gantry_artifacts::ProgressSink;
use gantry_proto::{agent::ModelVersion, scheduler::ModelSpec};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

/// How long after a crash other components may assume the server's former models.
const LOSS_GRACE: u64 = 150_000;

/// Model name and version.
pub(crate) type Key = (String, u32);

/// State of a version on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Loaded,
    /// Lost in a recent crash.
    Lost,
    /// Never loaded, or unloaded by request.
    Absent,
}

#[derive(Debug)]
struct Version {
    definition: ModelVersion,
    memory: u64,
    loaded: bool,
}

#[derive(Debug, Default)]
struct Inner {
    up: bool,
    held: BTreeMap<Key, Version>,
    /// Versions lost in a crash, with its time.
    lost: BTreeMap<Key, u64>,
    /// Flaky sources that failed once.
    failed_once: BTreeSet<String>,
    /// Loads and unloads, except those of broken sources.
    operations: u64,
}

#[derive(Clone)]
pub(crate) struct InferenceServer {
    pub(crate) host: Arc<str>,
    pub(crate) scenario: ServerSpec,
    inner: Arc<Mutex<Inner>>,
    crashes: Arc<watch::Sender<u64>>,
    trace: Trace,
    truth: GroundTruth,
    seed: u64,
    /// Whether a load that exceeds the memory violates an invariant.
    strict: bool,
    on_load: Arc<dyn Fn() + Send + Sync>,
}

impl InferenceServer {
    pub(crate) fn new(
        host: Arc<str>,
        scenario: ServerSpec,
        trace: Trace,
        truth: GroundTruth,
        seed: u64,
        strict: bool,
    ) -> Self {
        let inner = Arc::default();
        Self {
            host,
            scenario,
            inner,
            crashes: Arc::new(watch::Sender::new(0)),
            trace,
            truth,
            seed,
            strict,
            on_load: Arc::new(|| {}),
        }
    }

    /// Sets the callback for each loaded model.
    pub(crate) fn on_load(self, on_load: impl Fn() + Send + Sync + 'static) -> Self {
        Self { on_load: Arc::new(on_load), ..self }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn start(&self) {
        self.lock().up = true;
        self.crashes.send_modify(|_| {});
    }

    /// Loses its models.
    pub(crate) fn crash(&self) {
        let now = self.trace.millis();
        let mut inner = self.lock();
        inner.up = false;
        let held = std::mem::take(&mut inner.held);
        inner.lost.extend(held.into_iter().filter(|(_, h)| h.loaded).map(|(key, _)| (key, now)));
        drop(inner);
        self.crashes.send_modify(|crashes| *crashes += 1);
    }

    pub(crate) fn crashes(&self) -> u64 {
        *self.crashes.borrow()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.lock().up
    }

    pub(crate) fn presence(&self, key: &Key) -> Presence {
        let inner = self.lock();
        if inner.held.get(key).is_some_and(|h| h.loaded) {
            return Presence::Loaded;
        }
        let now = self.trace.millis();
        let recently = |at: &u64| now.saturating_sub(*at) < LOSS_GRACE;
        if !inner.up || inner.lost.get(key).is_some_and(recently) { Presence::Lost } else { Presence::Absent }
    }

    /// The URI that a version was loaded from.
    pub(crate) fn content(&self, key: &Key) -> Option<String> {
        let inner = self.lock();
        let definition = inner.held.get(key).filter(|held| held.loaded)?.definition.model.clone()?;
        Some(definition.model_spec?.uri)
    }

    /// Versions that are loaded or loading, with their memory.
    pub(crate) fn versions(&self) -> Vec<(Key, u64)> {
        self.lock().held.iter().map(|(key, h)| (key.clone(), h.memory)).collect()
    }

    pub(crate) fn memory_free(&self) -> u64 {
        let used: u64 = self.lock().held.values().map(|h| h.memory).sum();
        self.scenario.memory.saturating_sub(used)
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
        self.record_content(&key, &spec.uri);
        let capabilities = &self.scenario.capabilities;
        if spec.requirements.iter().any(|r| !capabilities.contains(r)) {
            let what = format!("{} has to load {}, which requires {:?}", self.host, key.0, spec.requirements);
            self.trace.violate("placement_respects_capabilities", what);
        }
        let named = spec.server.as_ref().filter(|name| !name.is_empty());
        if !named.map_or(self.scenario.shared, |name| *name == self.scenario.name) {
            let what = format!("{} has to load {}, which is pinned to {named:?}", self.host, key.0);
            self.trace.violate("placement_respects_pinned_server", what);
        }
        let free = self.memory_free();
        let mut inner = self.lock();
        if !spec.uri.starts_with("sim://broken") {
            inner.operations += 1;
        }
        if inner.held.contains_key(&key) {
            return Err(format!("{}_{} is already loaded", key.0, key.1));
        }
        if memory > free {
            let what = format!("{} needs {memory} and {} has {free} free", key.0, self.host);
            if self.strict {
                self.trace.violate("placement_respects_capacity", what.clone());
            }
            return Err(what);
        }
        let fails_once = spec.uri.starts_with("sim://flaky") && inner.failed_once.insert(spec.uri.clone());
        inner.held.insert(key.clone(), Version { definition, memory, loaded: false });
        drop(inner);
        let fails = fails_once || spec.uri.starts_with("sim://broken");
        let (done, answer) = oneshot::channel();
        let (this, crashes, load_time) =
            (self.clone(), *self.crashes.borrow(), self.load_time(&key, &spec.uri));
        tokio::spawn(async move {
            tokio::time::sleep(load_time).await;
            let mut inner = this.lock();
            if *this.crashes.borrow() != crashes {
                return;
            }
            let result = if fails {
                inner.held.remove(&key);
                Err(format!("{} cannot be loaded", spec.uri))
            } else {
                if let Some(version) = inner.held.get_mut(&key) {
                    version.loaded = true;
                }
                Ok(memory)
            };
            drop(inner);
            let how = if fails { "failed" } else { "loaded" };
            this.trace.note(&this.host, format_args!("{how} {}_{}", key.0, key.1));
            this.crashes.send_modify(|_| {});
            let _ = done.send(result);
            (this.on_load)();
        });
        Ok(answer)
    }

    fn load_time(&self, (model, version): &Key, uri: &str) -> Duration {
        let mut rng = rng::seeded(self.seed, &format!("{}/{model}/{version}", self.host));
        let longest = if uri.starts_with("sim://slow") { 40_000 } else { 900 };
        Duration::from_millis(rng.u64(longest / 40..=longest))
    }

    /// A version number never changes its content.
    fn record_content(&self, (model, version): &Key, uri: &str) {
        let mut truth = self.truth.lock();
        let contents = &mut truth.models.entry(model.clone()).or_default().contents;
        let known = contents.entry(*version).or_insert_with(|| uri.to_owned()).clone();
        drop(truth);
        if known != uri {
            let what = format!("version {version} of {model} was {known} and is now {uri}");
            self.trace.violate("versions_are_never_reused", what);
        }
    }

    fn unload(&self, name: &str) {
        let mut inner = self.lock();
        inner.operations += 1;
        inner.held.retain(|(model, version), _| format!("{model}_{version}") != name);
        // Requests to a version unloaded by request are misrouted.
        inner.lost.retain(|(model, version), _| format!("{model}_{version}") != name);
        drop(inner);
        self.trace.note(&self.host, format_args!("unloads {name}"));
    }

    async fn loads_finished(&self) {
        let mut crashes = self.crashes.subscribe();
        let _ = crashes
            .wait_for(|_| {
                let inner = self.lock();
                inner.up && inner.held.values().all(|h| h.loaded)
            })
            .await;
    }
}

/// The server as one agent process sees it: after a crash of the agent all calls stay pending.
pub(crate) struct AgentBackend {
    pub(crate) server: InferenceServer,
    /// Cancelled when the agent crashes.
    pub(crate) dead: CancellationToken,
    /// Until the agent detects a restart of the server.
    pub(crate) detection_delay: Duration,
}

impl AgentBackend {
    async fn alive<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            () = self.dead.cancelled() => std::future::pending().await,
            done = work => done,
        }
    }
}

impl ModelServer for AgentBackend {
    fn load(&self, order: LoadOrder) -> BoxFuture<'_, Result<Loaded, LoadError>> {
        Box::pin(self.alive(async {
            let gone = || LoadError::transient(format!("{} is down", self.server.host));
            if !self.server.is_up() {
                return Err(gone());
            }
            let loading = self.server.load(order.definition).map_err(LoadError::transient)?;
            let memory_bytes = loading.await.map_err(|_| gone())?.map_err(LoadError::transient)?;
            Ok(Loaded { engine: "sim".into(), memory_bytes, ..Loaded::default() })
        }))
    }

    fn unload(&self, name: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.alive(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.server.unload(&name);
            Ok(())
        }))
    }

    fn wait_ready(&self) -> BoxFuture<'_, Option<Vec<LoadedModel>>> {
        Box::pin(self.alive(async {
            self.server.loads_finished().await;
            let inner = self.server.lock();
            let held = inner.held.values().filter(|h| h.loaded);
            Some(
                held.map(|h| LoadedModel { definition: h.definition.clone(), memory_bytes: h.memory })
                    .collect(),
            )
        }))
    }

    fn wait_lost(&self) -> BoxFuture<'_, String> {
        Box::pin(self.alive(async {
            let mut crashes = self.server.crashes.subscribe();
            let first = *crashes.borrow_and_update();
            let _ = crashes.wait_for(|now| *now != first).await;
            tokio::time::sleep(self.detection_delay).await;
            "the inference server restarted".to_owned()
        }))
    }
}

/// An artifact source without files.
pub(crate) struct NoFiles;

impl Source for NoFiles {
    fn fetch<'a>(
        &'a self,
        _: &'a ModelSpec,
        _: &'a dyn ProgressSink,
    ) -> BoxFuture<'a, Result<Files, LoadError>> {
        Box::pin(async { Ok(Files { root: "/".into(), model_dir: "/".into(), lease: None }) })
    }
}
