//! The shelf beside a server that the test plays, in a time that passes only when nothing else happens.

use super::*;
use crate::server::ModelServer as _;
use futures::future::join_all;
use gantry_proto::{
    agent::ModelVersion,
    scheduler::{MetaData, Model},
};
use prometheus_client::registry::Registry;
use std::collections::BTreeSet;
use tokio_util::sync::CancellationToken;

/// A server that takes a second to load a model, counts what it does, and can be switched off.
#[derive(Default)]
struct Played {
    models: Mutex<BTreeSet<String>>,
    loads: Mutex<Vec<String>>,
    most: Mutex<usize>,
    off: Mutex<bool>,
    refuses: Mutex<BTreeSet<String>>,
}

fn get<T: Clone>(value: &Mutex<T>) -> T {
    value.lock().unwrap().clone()
}

impl Played {
    fn gone<T>() -> Result<T, Failure> {
        Err(Failure::Gone("switched off".into()))
    }

    fn crash(&self) {
        *self.off.lock().unwrap() = true;
        self.models.lock().unwrap().clear();
    }

    fn start(&self) {
        *self.off.lock().unwrap() = false;
    }

    fn holds(&self) -> Vec<String> {
        get(&self.models).into_iter().collect()
    }
}

impl Repository for Played {
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
                return Err(Failure::Refused(format!("{name} is broken")));
            }
            let mut models = self.models.lock().unwrap();
            models.insert(name.to_owned());
            let mut most = self.most.lock().unwrap();
            *most = (*most).max(models.len());
            Ok(())
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

struct World {
    dir: tempfile::TempDir,
    server: Arc<Played>,
    metrics: Arc<Metrics>,
    shelf: Shelf,
    stop: CancellationToken,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl World {
    /// A shelf with room for ten, beside a server that is settled.
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("artifact")).unwrap();
        std::fs::write(dir.path().join("artifact/model"), "data").unwrap();
        Self::open(dir, Arc::default()).await
    }

    async fn open(dir: tempfile::TempDir, server: Arc<Played>) -> Self {
        let metrics = Arc::new(Metrics::new("s", 0, 100, &mut Registry::default()));
        let shelf = Shelf::new(Setup {
            kind: Kind::Oip,
            surroundings: Surroundings::default(),
            repository: server.clone(),
            records: Records::open(&dir.path().join("models"), &dir.path().join("records")).unwrap(),
            capacity: 10,
            limits: Limits::default(),
            metrics: metrics.clone(),
        });
        let stop = CancellationToken::new();
        let (watched, until) = (shelf.clone(), stop.clone());
        tokio::spawn(async move { watched.watch(until).await });
        shelf.settle().await.unwrap();
        Self { dir, server, metrics, shelf, stop }
    }

    async fn load(&self, name: &str, memory: u64) -> Result<Loaded, String> {
        let spec = ModelSpec { memory_bytes: Some(memory), ..Default::default() };
        let meta = MetaData { name: name.into(), ..Default::default() };
        let model = Model { meta: Some(meta), model_spec: Some(spec), ..Default::default() };
        let artifact = self.dir.path().join("artifact");
        let order = LoadOrder {
            name: format!("{name}_1"),
            directory: artifact.clone(),
            root: artifact,
            parameters: Vec::new(),
            definition: ModelVersion { model: Some(model), version: 1 },
            autoscaling: false,
        };
        self.shelf.load(order).await
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path().join("models")).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn told(held: &[Held]) -> Vec<String> {
        let name = |h: &Held| h.definition.model.clone().unwrap().meta.unwrap().name;
        held.iter().map(name).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn more_than_fits_is_served_from_disk() {
    let world = World::new().await;
    for name in ["a", "b", "c"] {
        world.load(name, 5).await.unwrap();
    }
    assert_eq!(world.server.holds(), ["b_1", "c_1"], "the least recently used left");
    assert_eq!(world.files(), ["a_1", "b_1", "c_1"], "but stays on disk");
    drop(world.shelf.enter("b_1").await.unwrap());
    drop(world.shelf.enter("a_1").await.unwrap());
    assert_eq!(world.server.holds(), ["a_1", "b_1"], "b was used after c");
    assert_eq!(get(&world.server.most), 2);
    assert_eq!((world.metrics.evictions.get(), world.metrics.misses.get()), (2, 1));
    let in_memory: Vec<bool> = world.shelf.shown().iter().map(|s| s.in_memory).collect();
    assert_eq!(in_memory, [true, true, false]);
    assert_eq!(World::told(&world.shelf.settle().await.unwrap()), ["a", "b", "c"], "the scheduler sees all");
    assert_eq!(
        world.load("huge", 11).await.unwrap_err(),
        "it takes 11 bytes of memory, and the server has 10"
    );
    assert_eq!(world.files(), ["a_1", "b_1", "c_1"]);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_loads_a_model_once() {
    let world = World::new().await;
    world.load("a", 6).await.unwrap();
    world.load("b", 6).await.unwrap();
    world.server.loads.lock().unwrap().clear();
    let holds = join_all((0..50).map(|_| world.shelf.enter("a_1"))).await;
    assert!(holds.iter().all(Result::is_ok));
    assert_eq!(get(&world.server.loads), ["a_1"]);
    assert_eq!(world.shelf.in_flight(), 50);
    // All of a is held: b has to wait, and gives up without harm when its time is over.
    let waiting = world.shelf.enter("b_1");
    assert!(tokio::time::timeout(Duration::from_secs(30), waiting).await.is_err());
    assert_eq!(world.server.holds(), ["a_1"]);
    drop(holds);
    world.shelf.quiet().await;
    assert!(world.shelf.enter("b_1").await.is_ok());
    assert_eq!(world.server.holds(), ["b_1"]);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_hears_of_one_failure() {
    let world = World::new().await;
    world.load("a", 6).await.unwrap();
    world.load("b", 6).await.unwrap();
    world.server.loads.lock().unwrap().clear();
    world.server.refuses.lock().unwrap().insert("a_1".into());
    let refused = join_all((0..20).map(|_| world.shelf.enter("a_1"))).await;
    for result in refused {
        assert_eq!(result.err(), Some(Refused::Failed("a_1 is broken".into())));
    }
    assert_eq!(get(&world.server.loads), ["a_1"]);
    assert_eq!(world.shelf.in_flight(), 0);
    world.server.refuses.lock().unwrap().clear();
    assert!(world.shelf.enter("a_1").await.is_ok(), "the next request tries again");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_loaded_leaves_nothing_behind() {
    let world = World::new().await;
    world.server.refuses.lock().unwrap().insert("a_1".into());
    assert_eq!(world.load("a", 1).await.unwrap_err(), "a_1 is broken");
    assert!(world.files().is_empty());
    assert_eq!(world.shelf.enter("a_1").await.err(), Some(Refused::Unknown));
    world.load("b", 1).await.unwrap();
    let hold = world.shelf.enter("b_1").await.unwrap();
    let unloading = world.shelf.unload("b_1".into());
    let ended = tokio::time::Instant::now();
    unloading.await.unwrap();
    assert!(ended.elapsed() >= Limits::default().grace, "a request under way has its time");
    drop(hold);
    assert!(world.files().is_empty() && world.server.holds().is_empty());
    assert_eq!(world.shelf.enter("b_1").await.err(), Some(Refused::Unknown));
    world.shelf.unload("b_1".into()).await.expect("gone is gone");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_is_reported_and_filled_again() {
    let world = World::new().await;
    for name in ["a", "b", "c"] {
        world.load(name, 5).await.unwrap();
    }
    world.shelf.settle().await.unwrap();
    world.server.crash();
    assert_eq!(world.shelf.lost().await, "the inference server does not answer");
    assert!(!world.shelf.is_alive());
    world.server.start();
    let held = world.shelf.settle().await.unwrap();
    assert_eq!(World::told(&held), ["a", "b", "c"]);
    assert_eq!(world.server.holds(), ["b_1", "c_1"], "those that were used last, as many as fit");
    // Back before anybody looked, but empty.
    world.server.models.lock().unwrap().clear();
    assert_eq!(world.shelf.lost().await, "the inference server came back without its models");
    world.shelf.settle().await.unwrap();
    assert_eq!(world.server.holds(), ["b_1", "c_1"]);
    // One of them is missing, and a request finds out: the others are none the worse for it.
    world.server.models.lock().unwrap().remove("c_1");
    assert!(world.shelf.missing("c_1").await);
    assert!(world.shelf.enter("c_1").await.is_ok());
    let lost = tokio::time::timeout(Duration::from_mins(5), world.shelf.lost());
    assert!(lost.await.is_err(), "the subscription lasts");
    // What the server does not take any more is not claimed any more.
    world.shelf.settle().await.unwrap();
    world.server.refuses.lock().unwrap().insert("b_1".into());
    world.server.crash();
    world.shelf.lost().await;
    world.server.start();
    assert_eq!(World::told(&world.shelf.settle().await.unwrap()), ["a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn the_next_start_takes_over_what_it_knows() {
    let world = World::new().await;
    for name in ["a", "b", "c"] {
        world.load(name, 5).await.unwrap();
    }
    let server = world.server.clone();
    server.models.lock().unwrap().insert("somebody-elses".into());
    world.stop.cancel();
    let dir = tempfile::tempdir().unwrap();
    for part in ["models", "records"] {
        std::fs::rename(world.dir.path().join(part), dir.path().join(part)).unwrap();
    }
    server.loads.lock().unwrap().clear();
    let next = World::open(dir, server.clone()).await;
    assert_eq!(World::told(&next.shelf.settle().await.unwrap()), ["a", "b", "c"]);
    assert_eq!(server.holds(), ["b_1", "c_1"], "what nobody here asked for is gone");
    assert!(get(&server.loads).is_empty(), "what was there is not loaded again");
    drop(next.shelf.enter("a_1").await.unwrap());
    assert!(server.holds().contains(&"a_1".to_owned()));
}
