//! Model cache with a fake server, under paused time.

use super::*;
use crate::model_server::ModelServer as _;
use futures::future::join_all;
use gantry_proto::{
    agent::ModelVersion,
    scheduler::{MetaData, Model},
};
use prometheus_client::registry::Registry;
use std::collections::BTreeSet;
use tokio_util::sync::CancellationToken;

/// Takes a second per load, counts operations, and can be switched off.
#[derive(Default)]
pub(crate) struct FakeServer {
    models: Mutex<BTreeSet<String>>,
    loads: Mutex<Vec<String>>,
    most: Mutex<usize>,
    off: Mutex<bool>,
    refuses: Mutex<BTreeSet<String>>,
    /// Answer to warm-up requests.
    warm_up: Mutex<Option<Failure>>,
    warmed_up: Mutex<Vec<String>>,
}

fn get<T: Clone>(value: &Mutex<T>) -> T {
    value.lock().unwrap().clone()
}

impl FakeServer {
    fn gone<T>() -> Result<T, Failure> {
        Err(Failure::Unreachable("switched off".into()))
    }

    pub(crate) fn crash(&self) {
        *self.off.lock().unwrap() = true;
        self.models.lock().unwrap().clear();
    }

    pub(crate) fn start(&self) {
        *self.off.lock().unwrap() = false;
    }

    fn holds(&self) -> Vec<String> {
        get(&self.models).into_iter().collect()
    }
}

impl Repository for FakeServer {
    fn ready(&self) -> BoxFuture<'_, bool> {
        Box::pin(async { !get(&self.off) })
    }

    fn index(&self) -> BoxFuture<'_, Result<Option<BTreeSet<String>>, Failure>> {
        Box::pin(async { if get(&self.off) { Self::gone() } else { Ok(Some(get(&self.models))) } })
    }

    fn serves<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<bool, Failure>> {
        Box::pin(async { if get(&self.off) { Self::gone() } else { Ok(get(&self.models).contains(name)) } })
    }

    fn load<'a>(&'a self, name: &'a str, _: Duration) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            self.loads.lock().unwrap().push(name.to_owned());
            tokio::time::sleep(Duration::from_secs(1)).await;
            if get(&self.off) {
                return Self::gone();
            }
            if get(&self.refuses).contains(name) {
                return Err(Failure::Rejected(format!("{name} is broken")));
            }
            let mut models = self.models.lock().unwrap();
            models.insert(name.to_owned());
            let mut most = self.most.lock().unwrap();
            *most = (*most).max(models.len());
            Ok(())
        })
    }

    fn warm_up<'a>(&'a self, name: &'a str, _: Duration) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async {
            self.warmed_up.lock().unwrap().push(name.to_owned());
            get(&self.warm_up).map_or(Ok(()), Err)
        })
    }

    fn unload<'a>(&'a self, name: &'a str, _: Duration) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if get(&self.off) {
                return Self::gone();
            }
            self.models.lock().unwrap().remove(name);
            Ok(())
        })
    }
}

pub(crate) struct Harness {
    dir: tempfile::TempDir,
    pub(crate) server: Arc<FakeServer>,
    metrics: Arc<Metrics>,
    pub(crate) cache: ModelCache,
    stop: CancellationToken,
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Harness {
    /// A cache with capacity 10 and a ready server.
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("artifact")).unwrap();
        std::fs::write(dir.path().join("artifact/model"), "data").unwrap();
        Self::open(dir, Arc::default()).await
    }

    async fn open(dir: tempfile::TempDir, server: Arc<FakeServer>) -> Self {
        let metrics = Arc::new(Metrics::new("s", 0, 100, &mut Registry::default()));
        let cache = ModelCache::new(CacheConfig {
            kind: Kind::Oip,
            environment: ServerEnvironment::default(),
            repository: server.clone(),
            records: DiskRecords::open(&dir.path().join("models"), &dir.path().join("records")).unwrap(),
            capacity: 10,
            limits: Limits::default(),
            metrics: metrics.clone(),
        });
        let stop = CancellationToken::new();
        let (watched, until) = (cache.clone(), stop.clone());
        tokio::spawn(async move { watched.watch(until).await });
        cache.wait_ready().await.unwrap();
        Self { dir, server, metrics, cache, stop }
    }

    async fn load(&self, name: &str, memory: u64) -> Result<Loaded, LoadError> {
        self.load_with(name, memory, &[]).await
    }

    async fn load_with(
        &self,
        name: &str,
        memory: u64,
        parameters: &[(&str, &str)],
    ) -> Result<Loaded, LoadError> {
        let spec = ModelSpec { memory_bytes: Some(memory), ..Default::default() };
        let meta = MetaData { name: name.into(), ..Default::default() };
        let model = Model { meta: Some(meta), model_spec: Some(spec), ..Default::default() };
        let artifact = self.dir.path().join("artifact");
        let order = LoadOrder {
            name: format!("{name}_1"),
            directory: artifact.clone(),
            root: artifact,
            parameters: parameters.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
            definition: ModelVersion { model: Some(model), version: 1 },
            autoscaling: false,
        };
        self.cache.load(order).await
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path().join("models")).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn triggers(loaded: &[LoadedModel]) -> Vec<String> {
        let name = |h: &LoadedModel| h.definition.model.clone().unwrap().meta.unwrap().name;
        loaded.iter().map(name).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn over_commit_evicts_to_disk_and_reloads() {
    let harness = Harness::new().await;
    for name in ["a", "b", "c"] {
        harness.load(name, 5).await.unwrap();
    }
    assert_eq!(harness.server.holds(), ["b_1", "c_1"], "the least recently used was evicted");
    assert_eq!(harness.files(), ["a_1", "b_1", "c_1"], "evicted models stay on disk");
    drop(harness.cache.acquire("b_1").await.unwrap());
    drop(harness.cache.acquire("a_1").await.unwrap());
    assert_eq!(harness.server.holds(), ["a_1", "b_1"], "b was used after c");
    assert_eq!(get(&harness.server.most), 2);
    assert_eq!((harness.metrics.evictions.get(), harness.metrics.misses.get()), (2, 1));
    let in_memory: Vec<bool> = harness.cache.models().iter().map(|s| s.in_memory).collect();
    assert_eq!(in_memory, [true, true, false]);
    assert_eq!(
        Harness::triggers(&harness.cache.wait_ready().await.unwrap()),
        ["a", "b", "c"],
        "evictions are not reported"
    );
    let huge = LoadError::permanent("requires 11 bytes of memory, the server has 10");
    assert_eq!(harness.load("huge", 11).await.unwrap_err(), huge);
    assert_eq!(harness.files(), ["a_1", "b_1", "c_1"]);
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_share_one_load() {
    let harness = Harness::new().await;
    harness.load("a", 6).await.unwrap();
    harness.load("b", 6).await.unwrap();
    harness.server.loads.lock().unwrap().clear();
    let holds = join_all((0..50).map(|_| harness.cache.acquire("a_1"))).await;
    assert!(holds.iter().all(Result::is_ok));
    assert_eq!(get(&harness.server.loads), ["a_1"]);
    assert_eq!(harness.cache.in_flight(), 50);
    // The model in memory is pinned: b waits, and can be cancelled.
    let waiting = harness.cache.acquire("b_1");
    assert!(tokio::time::timeout(Duration::from_secs(30), waiting).await.is_err());
    assert_eq!(harness.server.holds(), ["a_1"]);
    drop(holds);
    harness.cache.idle().await;
    assert!(harness.cache.acquire("b_1").await.is_ok());
    assert_eq!(harness.server.holds(), ["b_1"]);
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_share_one_failure() {
    let harness = Harness::new().await;
    harness.load("a", 6).await.unwrap();
    harness.load("b", 6).await.unwrap();
    harness.server.loads.lock().unwrap().clear();
    harness.server.refuses.lock().unwrap().insert("a_1".into());
    let refused = join_all((0..20).map(|_| harness.cache.acquire("a_1"))).await;
    for result in refused {
        assert_eq!(result.err(), Some(Rejected::Failed("a_1 is broken".into())));
    }
    assert_eq!(get(&harness.server.loads), ["a_1"]);
    assert_eq!(harness.cache.in_flight(), 0);
    harness.server.refuses.lock().unwrap().clear();
    assert!(harness.cache.acquire("a_1").await.is_ok(), "the next request retries");
}

#[tokio::test(start_paused = true)]
async fn failed_load_leaves_no_files() {
    let harness = Harness::new().await;
    harness.server.refuses.lock().unwrap().insert("a_1".into());
    assert_eq!(harness.load("a", 1).await.unwrap_err(), LoadError::permanent("a_1 is broken"));
    assert!(harness.files().is_empty());
    assert_eq!(harness.cache.acquire("a_1").await.err(), Some(Rejected::Unknown));
    harness.load("b", 1).await.unwrap();
    let guard = harness.cache.acquire("b_1").await.unwrap();
    let unloading = harness.cache.unload("b_1".into());
    let ended = tokio::time::Instant::now();
    unloading.await.unwrap();
    assert!(ended.elapsed() >= Limits::default().grace, "in-flight requests delay the unload");
    drop(guard);
    assert!(harness.files().is_empty() && harness.server.holds().is_empty());
    assert_eq!(harness.cache.acquire("b_1").await.err(), Some(Rejected::Unknown));
    harness.cache.unload("b_1".into()).await.expect("unload is idempotent");
}

#[tokio::test(start_paused = true)]
async fn lost_server_is_reported_and_restored() {
    let harness = Harness::new().await;
    for name in ["a", "b", "c"] {
        harness.load(name, 5).await.unwrap();
    }
    harness.cache.wait_ready().await.unwrap();
    harness.server.crash();
    assert_eq!(harness.cache.wait_lost().await, "the inference server does not respond");
    assert!(!harness.cache.is_alive());
    harness.server.start();
    let loaded = harness.cache.wait_ready().await.unwrap();
    assert_eq!(Harness::triggers(&loaded), ["a", "b", "c"]);
    assert_eq!(harness.server.holds(), ["b_1", "c_1"], "the most recently used that fit");
    // Restarted between two health checks, without models.
    harness.server.models.lock().unwrap().clear();
    assert_eq!(harness.cache.wait_lost().await, "the inference server restarted without its models");
    harness.cache.wait_ready().await.unwrap();
    assert_eq!(harness.server.holds(), ["b_1", "c_1"]);
    // A single missing model is found by a request; the others stay loaded.
    harness.server.models.lock().unwrap().remove("c_1");
    assert!(harness.cache.handle_missing("c_1").await);
    assert!(harness.cache.acquire("c_1").await.is_ok());
    let lost = tokio::time::timeout(Duration::from_mins(5), harness.cache.wait_lost());
    assert!(lost.await.is_err(), "no resync");
    // A model that the server rejects is no longer reported.
    harness.cache.wait_ready().await.unwrap();
    harness.server.refuses.lock().unwrap().insert("b_1".into());
    harness.server.crash();
    harness.cache.wait_lost().await;
    harness.server.start();
    assert_eq!(Harness::triggers(&harness.cache.wait_ready().await.unwrap()), ["a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn restart_adopts_loaded_models() {
    let harness = Harness::new().await;
    for name in ["a", "b", "c"] {
        harness.load(name, 5).await.unwrap();
    }
    let server = harness.server.clone();
    server.models.lock().unwrap().insert("foreign".into());
    harness.stop.cancel();
    let dir = tempfile::tempdir().unwrap();
    for part in ["models", "records"] {
        std::fs::rename(harness.dir.path().join(part), dir.path().join(part)).unwrap();
    }
    server.loads.lock().unwrap().clear();
    let next = Harness::open(dir, server.clone()).await;
    assert_eq!(Harness::triggers(&next.cache.wait_ready().await.unwrap()), ["a", "b", "c"]);
    assert_eq!(server.holds(), ["b_1", "c_1"], "foreign models are unloaded");
    assert!(get(&server.loads).is_empty(), "loaded models are not reloaded");
    drop(next.cache.acquire("a_1").await.unwrap());
    assert!(server.holds().contains(&"a_1".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn model_that_waits_for_busy_ones_does_not_block_others() {
    let harness = Harness::new().await;
    harness.load("d", 3).await.unwrap();
    harness.load("large", 6).await.unwrap();
    for (name, size) in [("a", 5), ("b", 3), ("c", 2)] {
        harness.load(name, size).await.unwrap();
    }
    assert_eq!(harness.server.holds(), ["a_1", "b_1", "c_1"]);
    let busy = harness.cache.acquire("a_1").await.unwrap();
    let evicted = harness.metrics.evictions.get();
    let (cache, started) = (harness.cache.clone(), tokio::time::Instant::now());
    let large = tokio::spawn(async move { cache.acquire("large_1").await.map(drop) });
    while harness.cache.inner.lock().memory.in_flight("large_1") == 0 {
        tokio::task::yield_now().await;
    }
    drop(harness.cache.acquire("d_1").await.unwrap());
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(harness.metrics.evictions.get() - evicted, 1, "nothing is evicted for the large model yet");
    assert!(!large.is_finished());
    drop(busy);
    large.await.unwrap().unwrap();
    assert!(harness.server.holds().contains(&"large_1".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn model_is_loaded_only_after_its_warm_up() {
    let harness = Harness::new().await;
    let failure = Failure::Rejected("the warm-up request with zeros failed: no such operator".into());
    *harness.server.warm_up.lock().unwrap() = Some(failure.clone());
    assert_eq!(harness.load("a", 1).await.unwrap_err(), LoadError::permanent(failure.message()));
    assert!(harness.files().is_empty() && harness.server.holds().is_empty());
    assert_eq!(harness.cache.acquire("a_1").await.err(), Some(Rejected::Unknown));
    harness.load_with("a", 1, &[("gantry.warm-up", "off")]).await.unwrap();
    *harness.server.warm_up.lock().unwrap() = Some(Failure::Unreachable("gone".into()));
    assert_eq!(harness.load("b", 1).await.unwrap_err(), LoadError::transient("gone"));
    *harness.server.warm_up.lock().unwrap() = None;
    harness.load("b", 1).await.unwrap();
    assert_eq!(harness.cache.in_flight(), 0);
    assert_eq!(get(&harness.server.warmed_up), ["a_1", "b_1", "b_1"]);
}
