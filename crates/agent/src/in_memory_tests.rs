//! Agent tests with in-memory streams, a fake source and a fake server, under paused time.

use crate::{
    Agent, Config, Connect, Files, LoadError, LoadOrder, Loaded, LoadedModel, ModelServer, NoopObserver,
    Parts, Source, drain::Drain, model_cache::tests::Harness as CacheHarness, scheduler_endpoint,
};
use futures::{future::BoxFuture, stream};
use gantry_artifacts::ProgressSink;
use gantry_proto::{
    agent::{
        agent_service_server::{AgentService, AgentServiceServer},
        model_event_message::Event,
        model_operation_message::Operation,
        *,
    },
    scheduler::{MetaData, Model, ModelSpec},
};
use hyper_util::rt::TokioIo;
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::DuplexStream,
    sync::{Notify, mpsc, watch},
    task::AbortHandle,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Channel, Server},
};

/// Records what the agent reports.
#[derive(Default)]
struct FakeScheduler {
    subscriptions: Mutex<Vec<AgentSubscribeRequest>>,
    orders: Mutex<Option<mpsc::Sender<Result<ModelOperationMessage, Status>>>>,
    events: Mutex<Vec<(String, Event, String)>>,
    /// Models whose failure was reported as permanent.
    permanent: Mutex<Vec<String>>,
    changed: Notify,
    connection: Mutex<Option<AbortHandle>>,
    rejecting: Mutex<bool>,
}

#[tonic::async_trait]
impl AgentService for FakeScheduler {
    type SubscribeStream = ReceiverStream<Result<ModelOperationMessage, Status>>;

    async fn subscribe(
        &self,
        request: Request<AgentSubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let (sender, receiver) = mpsc::channel(16);
        *self.orders.lock().unwrap() = Some(sender);
        let mut subscriptions = self.subscriptions.lock().unwrap();
        subscriptions.push(request.into_inner());
        let mut response = Response::new(ReceiverStream::new(receiver));
        let name = format!("1.{}", subscriptions.len()).parse().unwrap();
        response.metadata_mut().insert("gantry-subscription", name);
        self.changed.notify_waiters();
        Ok(response)
    }

    async fn agent_event(
        &self,
        request: Request<ModelEventMessage>,
    ) -> Result<Response<ModelEventResponse>, Status> {
        // Reports carry the current subscription.
        let subscription =
            request.metadata().get("gantry-subscription").unwrap().to_str().unwrap().to_owned();
        assert_eq!(subscription, format!("1.{}", self.count()));
        let permanent = request.metadata().contains_key("gantry-permanent-failure");
        let event = request.into_inner();
        if permanent {
            self.permanent.lock().unwrap().push(event.model_name.clone());
        }
        if *self.rejecting.lock().unwrap() {
            return Err(Status::unavailable("rejected"));
        }
        self.events.lock().unwrap().push((event.model_name.clone(), event.event(), event.message));
        self.changed.notify_waiters();
        Ok(Response::new(ModelEventResponse {}))
    }

    async fn model_scaling_trigger(
        &self,
        _: Request<Streaming<ModelScalingTriggerMessage>>,
    ) -> Result<Response<ModelScalingTriggerResponse>, Status> {
        Ok(Response::new(ModelScalingTriggerResponse {}))
    }

    async fn agent_drain(
        &self,
        _: Request<AgentDrainRequest>,
    ) -> Result<Response<AgentDrainResponse>, Status> {
        Ok(Response::new(AgentDrainResponse { success: true }))
    }
}

impl FakeScheduler {
    async fn until(&self, wanted: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if wanted(self) {
                return;
            }
            changed.await;
        }
    }

    async fn order(&self, operation: Operation, name: &str) {
        self.order_from(operation, name, name).await;
    }

    async fn order_from(&self, operation: Operation, name: &str, uri: &str) {
        let meta = Some(MetaData { name: name.into(), ..Default::default() });
        let model_spec = Some(ModelSpec { uri: uri.into(), ..Default::default() });
        let model = Some(Model { meta, model_spec, ..Default::default() });
        let order = ModelOperationMessage {
            operation: operation as i32,
            model_version: Some(ModelVersion { model, version: 1 }),
            autoscaling_enabled: false,
        };
        let sender = self.orders.lock().unwrap().clone().unwrap();
        sender.send(Ok(order)).await.unwrap();
    }

    fn cut(&self) {
        self.connection.lock().unwrap().take().unwrap().abort();
    }

    /// Models listed in the latest subscription.
    fn reported_models(&self) -> Vec<String> {
        let last = self.subscriptions.lock().unwrap().last().unwrap().loaded_models.clone();
        last.into_iter().map(|m| m.model.unwrap().meta.unwrap().name).collect()
    }

    fn count(&self) -> usize {
        self.subscriptions.lock().unwrap().len()
    }
}

/// Connects once, to an existing stream.
struct SingleStream(Option<TokioIo<DuplexStream>>);

impl tower_service::Service<http::Uri> for SingleStream {
    type Response = TokioIo<DuplexStream>;
    type Error = std::io::Error;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let gone = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        std::future::ready(self.0.take().ok_or_else(gone))
    }
}

struct InMemoryConnector(Arc<FakeScheduler>);

impl Connect for InMemoryConnector {
    fn connect(&self) -> BoxFuture<'_, Result<Channel, String>> {
        Box::pin(async {
            // Two streams with a relay in between that can be aborted.
            let (ours, mut near) = tokio::io::duplex(1 << 16);
            let (mut far, theirs) = tokio::io::duplex(1 << 16);
            let serving = Server::builder()
                .add_service(AgentServiceServer::from_arc(self.0.clone()))
                .serve_with_incoming(stream::iter([Ok::<_, Infallible>(theirs)]));
            tokio::spawn(async move { drop(serving.await) });
            let task =
                tokio::spawn(async move { drop(tokio::io::copy_bidirectional(&mut near, &mut far).await) });
            *self.0.connection.lock().unwrap() = Some(task.abort_handle());
            let endpoint = scheduler_endpoint("http://scheduler")?;
            let connected = endpoint.connect_with_connector(SingleStream(Some(TokioIo::new(ours))));
            connected.await.map_err(|e| e.to_string())
        })
    }
}

/// Takes ten minutes and counts; fails for `missing`.
#[derive(Default)]
struct FakeSource(Mutex<Vec<String>>);

impl Source for FakeSource {
    fn fetch<'a>(
        &'a self,
        spec: &'a ModelSpec,
        _: &'a dyn ProgressSink,
    ) -> BoxFuture<'a, Result<Files, LoadError>> {
        Box::pin(async move {
            self.0.lock().unwrap().push(spec.uri.clone());
            tokio::time::sleep(Duration::from_mins(10)).await;
            if spec.uri == "missing" {
                return Err(LoadError::permanent("file not found"));
            }
            Ok(Files { root: "/".into(), model_dir: "/".into(), lease: None })
        })
    }
}

/// A server that can be marked lost and fails the next loads.
struct FlakyServer {
    alive: watch::Sender<bool>,
    holds: Mutex<Vec<LoadedModel>>,
    failures: Mutex<Vec<LoadError>>,
}

impl Default for FlakyServer {
    fn default() -> Self {
        Self { alive: watch::Sender::new(true), holds: Mutex::default(), failures: Mutex::default() }
    }
}

impl ModelServer for FlakyServer {
    fn load(&self, order: LoadOrder) -> BoxFuture<'_, Result<Loaded, LoadError>> {
        Box::pin(async {
            if let Some(failure) = self.failures.lock().unwrap().pop() {
                return Err(failure);
            }
            self.holds.lock().unwrap().push(LoadedModel { definition: order.definition, memory_bytes: 0 });
            Ok(Loaded::default())
        })
    }

    fn unload(&self, name: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let named = |loaded: &LoadedModel| {
                format!("{}_1", loaded.definition.model.clone().unwrap().meta.unwrap().name)
            };
            self.holds.lock().unwrap().retain(|loaded| named(loaded) != name);
            Ok(())
        })
    }

    fn wait_ready(&self) -> BoxFuture<'_, Option<Vec<LoadedModel>>> {
        Box::pin(async {
            self.alive.subscribe().wait_for(|alive| *alive).await.ok()?;
            Some(self.holds.lock().unwrap().clone())
        })
    }

    fn wait_lost(&self) -> BoxFuture<'_, String> {
        Box::pin(async {
            let _ = self.alive.subscribe().wait_for(|alive| !*alive).await;
            "server lost".into()
        })
    }
}

fn agent(
    scheduler: &Arc<FakeScheduler>,
    server: Arc<dyn ModelServer>,
    source: Arc<FakeSource>,
    parallel: usize,
) -> Arc<Agent> {
    let config = Config {
        server: "s".into(),
        replica: 0,
        scheduler: String::new(),
        capabilities: vec!["x".into()],
        memory_bytes: 1000,
        over_commit: 10,
        host: "h".into(),
        http_port: 1,
        grpc_port: 2,
    };
    let connect = Arc::new(InMemoryConnector(scheduler.clone()));
    let mut parts = Parts::new(connect, source, Arc::new(NoopObserver));
    parts.parallel = parallel;
    Agent::from_parts(config, server, parts)
}

#[tokio::test(start_paused = true)]
async fn reports_stay_accurate_across_disconnects_and_server_loss() {
    let scheduler = Arc::new(FakeScheduler::default());
    let server = Arc::new(FlakyServer::default());
    let agent = agent(&scheduler, server.clone(), Arc::default(), 8);
    let stop = CancellationToken::new();
    let running = tokio::spawn(agent.clone().run(stop.clone()));
    scheduler.until(|p| p.count() == 1).await;
    assert_eq!(scheduler.subscriptions.lock().unwrap()[0].available_memory_bytes, 1100);

    for name in ["a", "b", "missing"] {
        scheduler.order(Operation::LoadModel, name).await;
    }
    scheduler.until(|p| p.events.lock().unwrap().len() == 3).await;
    let mut events = scheduler.events.lock().unwrap().clone();
    events.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(events[..2], ["a", "b"].map(|n| (n.to_owned(), Event::Loaded, String::new())));
    assert_eq!(events[2], ("missing".into(), Event::LoadFailed, "file not found".into()));

    // Disconnected during a load: the new subscription lists the loaded models, the load continues and is reported on
    // the new connection.
    scheduler.order(Operation::LoadModel, "c").await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    scheduler.cut();
    scheduler.until(|p| p.count() == 2).await;
    assert_eq!(scheduler.reported_models(), ["a", "b"]);
    scheduler.until(|p| p.events.lock().unwrap().len() == 4).await;
    assert_eq!(scheduler.events.lock().unwrap()[3].0, "c");

    // A rejected report triggers a new subscription, which carries the state.
    *scheduler.rejecting.lock().unwrap() = true;
    scheduler.order(Operation::UnloadModel, "b").await;
    scheduler.until(|p| p.count() == 3).await;
    assert_eq!(scheduler.reported_models(), ["a", "c"]);
    *scheduler.rejecting.lock().unwrap() = false;

    // No subscription while the server is lost; afterwards only what it still has is reported.
    server.alive.send_replace(false);
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(scheduler.count(), 3);
    assert!(!agent.is_subscribed());
    server.holds.lock().unwrap().truncate(1);
    server.alive.send_replace(true);
    scheduler.until(|p| p.count() == 4).await;
    assert_eq!(scheduler.reported_models(), ["a"]);

    // Repeated orders are acknowledged again.
    scheduler.order(Operation::LoadModel, "a").await;
    scheduler.until(|p| p.events.lock().unwrap().len() == 5).await;
    assert_eq!(scheduler.events.lock().unwrap()[4], ("a".into(), Event::Loaded, String::new()));

    // Another content with the number of a loaded one replaces it.
    scheduler.order_from(Operation::LoadModel, "a", "elsewhere").await;
    scheduler.until(|p| p.events.lock().unwrap().len() == 6).await;
    assert_eq!(scheduler.events.lock().unwrap()[5], ("a".into(), Event::Loaded, String::new()));
    let held = server.holds.lock().unwrap().clone();
    let uris = held.into_iter().map(|l| l.definition.model.unwrap().model_spec.unwrap().uri);
    assert_eq!(uris.collect::<Vec<_>>(), ["elsewhere"]);
    assert_eq!(agent.drain(Duration::from_secs(5)).await, Ok(()));
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn queued_load_is_cancelled_without_waiting_for_a_slot() {
    let scheduler = Arc::new(FakeScheduler::default());
    let source = Arc::new(FakeSource::default());
    let agent = agent(&scheduler, Arc::new(FlakyServer::default()), source.clone(), 1);
    let stop = CancellationToken::new();
    let running = tokio::spawn(agent.run(stop.clone()));
    scheduler.until(|p| p.count() == 1).await;
    let started = tokio::time::Instant::now();
    scheduler.order(Operation::LoadModel, "slow").await;
    scheduler.order(Operation::LoadModel, "queued").await;
    scheduler.order(Operation::UnloadModel, "queued").await;
    scheduler.until(|p| !p.events.lock().unwrap().is_empty()).await;
    assert_eq!(scheduler.events.lock().unwrap()[0], ("queued".into(), Event::Unloaded, String::new()));
    assert!(started.elapsed() < Duration::from_mins(10), "the slow download holds the only slot");
    scheduler.until(|p| p.events.lock().unwrap().len() == 2).await;
    assert_eq!(*source.0.lock().unwrap(), ["slow"], "nothing is downloaded for the cancelled load");
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failures_are_classified_and_files_of_transient_ones_are_kept() {
    let scheduler = Arc::new(FakeScheduler::default());
    let (server, source) = (Arc::new(FlakyServer::default()), Arc::new(FakeSource::default()));
    let agent = agent(&scheduler, server.clone(), source.clone(), 8);
    let stop = CancellationToken::new();
    let running = tokio::spawn(agent.run(stop.clone()));
    scheduler.until(|p| p.count() == 1).await;
    let load = async |name: &str| {
        let seen = scheduler.events.lock().unwrap().len();
        scheduler.order(Operation::LoadModel, name).await;
        scheduler.until(|p| p.events.lock().unwrap().len() > seen).await;
        scheduler.events.lock().unwrap().last().unwrap().1
    };
    assert_eq!(load("missing").await, Event::LoadFailed);
    server.failures.lock().unwrap().push(LoadError::permanent("unknown operator"));
    assert_eq!(load("broken").await, Event::LoadFailed);
    assert_eq!(*scheduler.permanent.lock().unwrap(), ["missing", "broken"]);
    assert_eq!(load("broken").await, Event::Loaded, "fetched again: the artifact may have changed");
    server.failures.lock().unwrap().push(LoadError::transient("out of memory"));
    assert_eq!(load("busy").await, Event::LoadFailed);
    assert_eq!(load("busy").await, Event::Loaded);
    assert_eq!(*source.0.lock().unwrap(), ["missing", "broken", "broken", "busy"]);
    assert_eq!(scheduler.permanent.lock().unwrap().len(), 2);
    stop.cancel();
    running.await.unwrap();
}

/// A writer that collects the log of a test.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn log_of_a_drain_counts_the_models_that_stay() {
    for (models, expected) in [
        (0, "drain complete: this replica has no models"),
        (1, "drain complete: some models were not moved elsewhere models=1"),
    ] {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        let _guard = tracing::subscriber::set_default(subscriber.finish());
        let scheduler = Arc::new(FakeScheduler::default());
        let agent = agent(&scheduler, Arc::new(FlakyServer::default()), Arc::default(), 8);
        let stop = CancellationToken::new();
        let running = tokio::spawn(agent.clone().run(stop.clone()));
        scheduler.until(|p| p.count() == 1).await;
        for number in 0..models {
            scheduler.order(Operation::LoadModel, &format!("m{number}")).await;
        }
        scheduler.until(|p| p.events.lock().unwrap().len() == models).await;
        // The scheduler accepts the request, and has no other replica for the models.
        let cache = CacheHarness::new().await;
        let drain = Drain::new(agent, cache.cache.clone(), Duration::from_secs(5), 1);
        assert!(drain.terminate().await);
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let complete: Vec<&str> = log.lines().filter(|line| line.contains("drain complete")).collect();
        assert!(matches!(&complete[..], [line] if line.ends_with(expected)), "{log}");
        stop.cancel();
        running.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn drain_needs_calls_of_two_containers_and_ends_without_termination() {
    let scheduler = Arc::new(FakeScheduler::default());
    let cache = CacheHarness::new().await;
    let agent = agent(&scheduler, Arc::new(cache.cache.clone()), Arc::default(), 8);
    let stop = CancellationToken::new();
    let running = tokio::spawn(agent.clone().run(stop.clone()));
    scheduler.until(|p| p.count() == 1).await;
    let drain = Drain::new(agent, cache.cache.clone(), Duration::from_secs(5), 2);
    for _ in 0..3 {
        assert!(!drain.terminate().await, "the restart of one container");
        assert!(drain.not_ready().is_empty());
    }
    assert_eq!(futures::join!(drain.terminate(), drain.terminate()), (true, true));
    assert_eq!(drain.not_ready(), ["the agent is draining"]);
    assert!(drain.terminate().await, "a late call joins the drain");
    assert_eq!(scheduler.count(), 1);
    // No SIGTERM follows: a new subscription ends the drain on the scheduler's side.
    scheduler.until(|p| p.count() == 2).await;
    assert!(drain.not_ready().is_empty());

    // The server restarts after a drain: the agent serves again at once.
    assert_eq!(futures::join!(drain.terminate(), drain.terminate()), (true, true));
    let drained = tokio::time::Instant::now();
    cache.server.crash();
    cache.cache.wait_lost().await;
    cache.server.start();
    scheduler.until(|p| p.count() >= 3 && drain.not_ready().is_empty()).await;
    assert!(drained.elapsed() < Duration::from_secs(50), "{:?}", drained.elapsed());
    stop.cancel();
    running.await.unwrap();
}
