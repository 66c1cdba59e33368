//! The agent with a real scheduler and a fake server.

use crate::{Agent, Config, LoadError, LoadOrder, Loaded, ModelServer, NoopObserver, Secrets};
use futures::future::BoxFuture;
use gantry_artifacts::Fetcher;
use gantry_proto::gantry::{ExplainRequest, control_client::ControlClient};
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

/// Loads the text of `model.txt`; rejects "broken", and "busy" for the time being.
#[derive(Default)]
struct FileServer(Mutex<Vec<(String, String)>>);

impl ModelServer for FileServer {
    fn load(&self, order: LoadOrder) -> BoxFuture<'_, Result<Loaded, LoadError>> {
        Box::pin(async move {
            let text =
                std::fs::read_to_string(order.directory.join("model.txt")).map_err(|e| e.to_string())?;
            if text == "broken" {
                return Err(LoadError::permanent("model.txt is broken"));
            }
            if text == "busy" {
                return Err(LoadError::transient("the server is busy"));
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

struct Harness {
    client: SchedulerClient<Channel>,
    control: ControlClient<Channel>,
    statuses: Streaming<ModelStatusResponse>,
    server: Arc<FileServer>,
    dir: tempfile::TempDir,
    stop: CancellationToken,
}

impl Harness {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let store = Store::open(&dir.path().join("state")).unwrap();
        let running = gantry_scheduler::start(gantry_scheduler::Config::new(store), any, any).await.unwrap();
        let clients = format!("http://{}", running.clients);
        let mut client = SchedulerClient::connect(clients.clone()).await.unwrap();
        let control = ControlClient::connect(clients).await.unwrap();
        let statuses =
            client.subscribe_model_status(ModelSubscriptionRequest::default()).await.unwrap().into_inner();
        let server = Arc::new(FileServer::default());
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
            server.clone(),
            Fetcher::new(gantry_artifacts::Config::new(dir.path().join("cache"))).unwrap(),
            Secrets { directory: Some(dir.path().join("secrets")), namespace: None },
            Arc::new(NoopObserver),
        );
        tokio::spawn(agent.run(stop.clone()));
        // The scheduler runs until the end of the test.
        std::mem::forget(running);
        Self { client, control, statuses, server, dir, stop }
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
        tokio::time::timeout(Duration::from_secs(20), found).await.expect("status within 20 s")
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn at(uri: &str) -> pb::ModelSpec {
    pb::ModelSpec { uri: uri.into(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn model_is_loaded_updated_and_unloaded() {
    let mut harness = Harness::new().await;
    let one = harness.artifact("one", "first");
    harness.load("m", at(&one)).await;
    harness.until("m", ModelState::ModelAvailable).await;
    assert_eq!(*harness.server.0.lock().unwrap(), [("m_1".to_owned(), "first".to_owned())]);
    // Editing the source does not change the loaded version.
    std::fs::write(Path::new(&one).join("model.txt"), "edited").unwrap();
    let two = harness.artifact("two", "second");
    harness.load("m", at(&two)).await;
    loop {
        harness.until("m", ModelState::ModelAvailable).await;
        if *harness.server.0.lock().unwrap() == [("m_2".to_owned(), "second".to_owned())] {
            break;
        }
    }
    let model = Some(ModelReference { name: "m".into(), version: None });
    harness.client.unload_model(UnloadModelRequest { model, kubernetes_meta: None }).await.unwrap();
    harness.until("m", ModelState::ModelTerminated).await;
    assert!(harness.server.0.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn pinned_content_is_not_refetched() {
    let mut harness = Harness::new().await;
    let source = harness.artifact("one", "first");
    let named = |content: &str| pb::ModelSpec {
        parameters: vec![pb::ParameterSpec { name: crate::CONTENT_PARAMETER.into(), value: content.into() }],
        ..at(&source)
    };
    harness.load("a", named("1")).await;
    harness.until("a", ModelState::ModelAvailable).await;
    std::fs::write(Path::new(&source).join("model.txt"), "second").unwrap();
    harness.load("b", named("1")).await;
    harness.load("c", named("2")).await;
    // Statuses arrive in any order.
    let mut waiting = vec!["b", "c"];
    while !waiting.is_empty() {
        let status = harness.statuses.message().await.unwrap().unwrap();
        let state = status.versions[0].state.clone().unwrap();
        waiting.retain(|name| *name != status.model_name || state.state() != ModelState::ModelAvailable);
    }
    let mut texts: Vec<_> = harness.server.0.lock().unwrap().clone();
    texts.sort();
    let expected = [("a_1", "first"), ("b_1", "first"), ("c_1", "second")];
    assert_eq!(texts, expected.map(|(n, t)| (n.to_owned(), t.to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn load_errors_reach_the_model_status() {
    let mut harness = Harness::new().await;
    let broken = harness.artifact("broken", "broken");
    let missing = harness.dir.path().join("nowhere").display().to_string();
    let secret = |name: &str| pb::ModelSpec {
        storage_config: Some(pb::StorageConfig {
            config: Some(pb::storage_config::Config::StorageSecretName(name.into())),
        }),
        ..at("s3://bucket/model")
    };
    for (i, (spec, expected)) in [
        (at(&broken), "builtin-0: model.txt is broken"),
        (at(&missing), "nowhere"),
        (at("gopher://x/y"), "storageUri: "),
        (at("http://169.254.169.254/latest"), "169.254.169.254"),
        (secret("absent"), "secret absent is not in"),
        (secret("absent"), "gantry install --agent-secrets (rbac.agentSecrets of the chart)"),
        (secret("../etc/passwd"), "is not a valid secret name"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("m{i}");
        harness.load(&name, spec).await;
        let reason = harness.until(&name, ModelState::ModelFailed).await;
        assert!(reason.contains(expected), "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduler_retries_transient_failures_only() {
    let mut harness = Harness::new().await;
    for (name, retried) in [("broken", false), ("busy", true)] {
        let uri = harness.artifact(name, name);
        harness.load(name, at(&uri)).await;
        harness.until(name, ModelState::ModelFailed).await;
        let request = ExplainRequest { kind: "model".into(), name: name.into() };
        let next = harness.control.explain(request).await.unwrap().into_inner().next;
        assert_eq!(next.contains("retry"), retried, "{next}");
    }
}
