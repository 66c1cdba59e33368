//! Agent tests with in-memory streams, a fake source and a fake server, under paused time.

use crate::{
    Agent, Config, Connect, Files, LoadOrder, Loaded, LoadedModel, ModelServer, NoopObserver, Parts, Source,
    scheduler_endpoint,
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
        let event = request.into_inner();
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
        let meta = Some(MetaData { name: name.into(), ..Default::default() });
        let model_spec = Some(ModelSpec { uri: name.into(), ..Default::default() });
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

/// Takes ten minutes; fails for `missing`.
struct FakeSource;

impl Source for FakeSource {
    fn fetch<'a>(
        &'a self,
        spec: &'a ModelSpec,
        _: &'a dyn ProgressSink,
    ) -> BoxFuture<'a, Result<Files, String>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_mins(10)).await;
            if spec.uri == "missing" {
                return Err("file not found".into());
            }
            Ok(Files { root: "/".into(), model_dir: "/".into(), lease: None })
        })
    }
}

/// A server that can be marked lost.
struct FlakyServer {
    alive: watch::Sender<bool>,
    holds: Mutex<Vec<LoadedModel>>,
}

impl ModelServer for FlakyServer {
    fn load(&self, order: LoadOrder) -> BoxFuture<'_, Result<Loaded, String>> {
        Box::pin(async {
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

#[tokio::test(start_paused = true)]
async fn reports_stay_accurate_across_disconnects_and_server_loss() {
    let scheduler = Arc::new(FakeScheduler::default());
    let server = Arc::new(FlakyServer { alive: watch::Sender::new(true), holds: Mutex::default() });
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
    let parts = Parts::new(
        Arc::new(InMemoryConnector(scheduler.clone())),
        Arc::new(FakeSource),
        Arc::new(NoopObserver),
    );
    let agent = Agent::from_parts(config, server.clone(), parts);
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
    assert_eq!(agent.drain(Duration::from_secs(5)).await, Ok(()));
    stop.cancel();
    running.await.unwrap();
}
