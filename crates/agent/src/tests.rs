//! The agent against a real scheduler, beside a server that the test plays.

use crate::{Agent, Config, LoadOrder, Loaded, ModelServer, Secrets, Silent};
use futures::future::BoxFuture;
use gantry_artifacts::Fetcher;
use gantry_proto::scheduler::{
    self as pb, LoadModelRequest, ModelReference, ModelStatusResponse, ModelSubscriptionRequest,
    UnloadModelRequest, model_status::ModelState, scheduler_client::SchedulerClient,
};
use gantry_store::Store;
use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio_util::sync::CancellationToken;
use tonic::{Streaming, transport::Channel};

/// Keeps the text of a file as its model, and refuses files that say so.
#[derive(Default)]
struct Shelf(Mutex<Vec<(String, String)>>);

impl ModelServer for Shelf {
    fn load(&self, order: LoadOrder) -> BoxFuture<'_, Result<Loaded, String>> {
        Box::pin(async move {
            let text =
                std::fs::read_to_string(order.directory.join("model.txt")).map_err(|e| e.to_string())?;
            if text == "broken" {
                return Err("model.txt is broken".into());
            }
            self.0.lock().unwrap().push((order.name, text));
            Ok(Loaded::default())
        })
    }

    fn unload(&self, name: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.0.lock().unwrap().retain(|(n, _)| *n != name);
            Ok(())
        })
    }
}

struct World {
    client: SchedulerClient<Channel>,
    statuses: Streaming<ModelStatusResponse>,
    shelf: Arc<Shelf>,
    dir: tempfile::TempDir,
    stop: CancellationToken,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let store = Store::open(&dir.path().join("state")).unwrap();
        let running = gantry_scheduler::start(gantry_scheduler::Config::new(store), any, any).await.unwrap();
        let mut client = SchedulerClient::connect(format!("http://{}", running.clients)).await.unwrap();
        let statuses =
            client.subscribe_model_status(ModelSubscriptionRequest::default()).await.unwrap().into_inner();
        let shelf = Arc::new(Shelf::default());
        let stop = CancellationToken::new();
        let agent = Agent::new(
            Config {
                server: "builtin".into(),
                replica: 0,
                scheduler: format!("http://{}", running.agents),
                capabilities: vec!["lightgbm".into()],
                memory_bytes: 1 << 20,
                over_commit: 0,
                host: "127.0.0.1".into(),
                http_port: 1,
                grpc_port: 2,
            },
            shelf.clone(),
            Fetcher::new(gantry_artifacts::Config::new(dir.path().join("cache"))).unwrap(),
            Secrets { directory: Some(dir.path().join("secrets")) },
            Arc::new(Silent),
        );
        tokio::spawn(agent.run(stop.clone()));
        // The scheduler serves for as long as the test runs.
        std::mem::forget(running);
        Self { client, statuses, shelf, dir, stop }
    }

    fn artifact(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("model.txt"), text).unwrap();
        path.display().to_string()
    }

    async fn load(&mut self, name: &str, spec: pb::ModelSpec) {
        let meta = pb::MetaData { name: name.into(), ..Default::default() };
        let model = pb::Model { meta: Some(meta), model_spec: Some(spec), ..Default::default() };
        self.client.load_model(LoadModelRequest { model: Some(model) }).await.unwrap();
    }

    async fn until(&mut self, name: &str, wanted: ModelState) -> String {
        let found = async {
            loop {
                let status = self.statuses.message().await.unwrap().unwrap();
                let state = status.versions[0].state.clone().unwrap();
                if status.model_name == name && state.state() == wanted {
                    return state.reason;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), found).await.expect("it happens within 20 s")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn at(uri: &str) -> pb::ModelSpec {
    pb::ModelSpec { uri: uri.into(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_fetched_loaded_replaced_and_unloaded() {
    let mut world = World::new().await;
    let one = world.artifact("one", "first");
    world.load("m", at(&one)).await;
    world.until("m", ModelState::ModelAvailable).await;
    assert_eq!(*world.shelf.0.lock().unwrap(), [("m_1".to_owned(), "first".to_owned())]);
    // Editing the source does not change what is served.
    std::fs::write(Path::new(&one).join("model.txt"), "edited").unwrap();
    let two = world.artifact("two", "second");
    world.load("m", at(&two)).await;
    loop {
        world.until("m", ModelState::ModelAvailable).await;
        if *world.shelf.0.lock().unwrap() == [("m_2".to_owned(), "second".to_owned())] {
            break;
        }
    }
    let model = Some(ModelReference { name: "m".into(), version: None });
    world.client.unload_model(UnloadModelRequest { model, kubernetes_meta: None }).await.unwrap();
    world.until("m", ModelState::ModelTerminated).await;
    assert!(world.shelf.0.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_has_a_name_stays_what_it_was() {
    let mut world = World::new().await;
    let place = world.artifact("one", "first");
    let named = |content: &str| pb::ModelSpec {
        parameters: vec![pb::ParameterSpec { name: crate::CONTENT.into(), value: content.into() }],
        ..at(&place)
    };
    world.load("a", named("1")).await;
    world.until("a", ModelState::ModelAvailable).await;
    std::fs::write(Path::new(&place).join("model.txt"), "second").unwrap();
    world.load("b", named("1")).await;
    world.load("c", named("2")).await;
    // Statuses come in any order: wait for both at once.
    let mut waiting = vec!["b", "c"];
    while !waiting.is_empty() {
        let status = world.statuses.message().await.unwrap().unwrap();
        let state = status.versions[0].state.clone().unwrap();
        waiting.retain(|name| *name != status.model_name || state.state() != ModelState::ModelAvailable);
    }
    let mut texts: Vec<_> = world.shelf.0.lock().unwrap().clone();
    texts.sort();
    let expected = [("a_1", "first"), ("b_1", "first"), ("c_1", "second")];
    assert_eq!(texts, expected.map(|(n, t)| (n.to_owned(), t.to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_reaches_the_status() {
    let mut world = World::new().await;
    let broken = world.artifact("broken", "broken");
    let missing = world.dir.path().join("nowhere").display().to_string();
    let secret = |name: &str| pb::ModelSpec {
        storage_config: Some(pb::StorageConfig {
            config: Some(pb::storage_config::Config::StorageSecretName(name.into())),
        }),
        ..at("s3://bucket/model")
    };
    for (i, (spec, says)) in [
        (at(&broken), "builtin-0: model.txt is broken"),
        (at(&missing), "nowhere"),
        (at("gopher://x/y"), "storageUri: "),
        (at("http://169.254.169.254/latest"), "169.254.169.254"),
        (secret("nobody"), "secret nobody is not in"),
        (secret("../etc/passwd"), "is not a secret's name"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("m{i}");
        world.load(&name, spec).await;
        let reason = world.until(&name, ModelState::ModelFailed).await;
        assert!(reason.contains(says), "{reason}");
    }
}
