//! The agent in a world without sockets, files or passing time: streams in memory, a source and a server that are
//! played. What runs here can run in a simulation.

use crate::{
    Agent, Config, Connect, Files, Held, LoadOrder, Loaded, ModelServer, Parts, Silent, Source, tuned,
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

/// A scheduler that writes down what it hears.
#[derive(Default)]
struct Played {
    subscriptions: Mutex<Vec<AgentSubscribeRequest>>,
    orders: Mutex<Option<mpsc::Sender<Result<ModelOperationMessage, Status>>>>,
    events: Mutex<Vec<(String, Event, String)>>,
    heard: Notify,
    connection: Mutex<Option<AbortHandle>>,
    deaf: Mutex<bool>,
}

#[tonic::async_trait]
impl AgentService for Played {
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
        self.heard.notify_waiters();
        Ok(response)
    }

    async fn agent_event(
        &self,
        request: Request<ModelEventMessage>,
    ) -> Result<Response<ModelEventResponse>, Status> {
        // Whoever speaks, speaks of the subscription of the moment.
        let spoken = request.metadata().get("gantry-subscription").unwrap().to_str().unwrap().to_owned();
        assert_eq!(spoken, format!("1.{}", self.count()));
        let event = request.into_inner();
        if *self.deaf.lock().unwrap() {
            return Err(Status::unavailable("not now"));
        }
        self.events.lock().unwrap().push((event.model_name.clone(), event.event(), event.message));
        self.heard.notify_waiters();
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

impl Played {
    async fn until(&self, wanted: impl Fn(&Self) -> bool) {
        loop {
            let heard = self.heard.notified();
            let mut heard = std::pin::pin!(heard);
            heard.as_mut().enable();
            if wanted(self) {
                return;
            }
            heard.await;
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

    /// The names that the last subscription said were loaded.
    fn claimed(&self) -> Vec<String> {
        let last = self.subscriptions.lock().unwrap().last().unwrap().loaded_models.clone();
        last.into_iter().map(|m| m.model.unwrap().meta.unwrap().name).collect()
    }

    fn count(&self) -> usize {
        self.subscriptions.lock().unwrap().len()
    }
}

/// Gives a stream that is there already.
struct Ready(Option<TokioIo<DuplexStream>>);

impl tower_service::Service<http::Uri> for Ready {
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

/// The way to it.
struct Wire(Arc<Played>);

impl Connect for Wire {
    fn connect(&self) -> BoxFuture<'_, Result<Channel, String>> {
        Box::pin(async {
            // Two streams with a relay between them, which can be cut.
            let (ours, mut near) = tokio::io::duplex(1 << 16);
            let (mut far, theirs) = tokio::io::duplex(1 << 16);
            let serving = Server::builder()
                .add_service(AgentServiceServer::from_arc(self.0.clone()))
                .serve_with_incoming(stream::iter([Ok::<_, Infallible>(theirs)]));
            tokio::spawn(async move { drop(serving.await) });
            let task =
                tokio::spawn(async move { drop(tokio::io::copy_bidirectional(&mut near, &mut far).await) });
            *self.0.connection.lock().unwrap() = Some(task.abort_handle());
            let endpoint = tuned("http://scheduler")?;
            let connected = endpoint.connect_with_connector(Ready(Some(TokioIo::new(ours))));
            connected.await.map_err(|e| e.to_string())
        })
    }
}

/// Has everything but what is called missing, after ten minutes.
struct Shop;

impl Source for Shop {
    fn fetch<'a>(
        &'a self,
        spec: &'a ModelSpec,
        _: &'a dyn ProgressSink,
    ) -> BoxFuture<'a, Result<Files, String>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_mins(10)).await;
            if spec.uri == "missing" {
                return Err("there is no such file".into());
            }
            Ok(Files { root: "/".into(), model_dir: "/".into(), lease: None })
        })
    }
}

/// A server with a life of its own.
struct Fragile {
    alive: watch::Sender<bool>,
    holds: Mutex<Vec<Held>>,
}

impl ModelServer for Fragile {
    fn load(&self, order: LoadOrder) -> BoxFuture<'_, Result<Loaded, String>> {
        Box::pin(async {
            self.holds.lock().unwrap().push(Held { definition: order.definition, memory_bytes: 0 });
            Ok(Loaded::default())
        })
    }

    fn unload(&self, name: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let named =
                |held: &Held| format!("{}_1", held.definition.model.clone().unwrap().meta.unwrap().name);
            self.holds.lock().unwrap().retain(|held| named(held) != name);
            Ok(())
        })
    }

    fn settle(&self) -> BoxFuture<'_, Option<Vec<Held>>> {
        Box::pin(async {
            self.alive.subscribe().wait_for(|alive| *alive).await.ok()?;
            Some(self.holds.lock().unwrap().clone())
        })
    }

    fn lost(&self) -> BoxFuture<'_, String> {
        Box::pin(async {
            let _ = self.alive.subscribe().wait_for(|alive| !*alive).await;
            "the server is gone".into()
        })
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_scheduler_hears_is_true_through_breaks_and_deaths() {
    let played = Arc::new(Played::default());
    let server = Arc::new(Fragile { alive: watch::Sender::new(true), holds: Mutex::default() });
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
    let parts = Parts::new(Arc::new(Wire(played.clone())), Arc::new(Shop), Arc::new(Silent));
    let agent = Agent::assemble(config, server.clone(), parts);
    let stop = CancellationToken::new();
    let running = tokio::spawn(agent.clone().run(stop.clone()));
    played.until(|p| p.count() == 1).await;
    assert_eq!(played.subscriptions.lock().unwrap()[0].available_memory_bytes, 1100);

    for name in ["a", "b", "missing"] {
        played.order(Operation::LoadModel, name).await;
    }
    played.until(|p| p.events.lock().unwrap().len() == 3).await;
    let mut events = played.events.lock().unwrap().clone();
    events.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(events[..2], ["a", "b"].map(|n| (n.to_owned(), Event::Loaded, String::new())));
    assert_eq!(events[2], ("missing".into(), Event::LoadFailed, "there is no such file".into()));

    // The connection breaks in the middle of a load: the next subscription says what there is, the load goes on and
    // is reported on the new connection.
    played.order(Operation::LoadModel, "c").await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    played.cut();
    played.until(|p| p.count() == 2).await;
    assert_eq!(played.claimed(), ["a", "b"]);
    played.until(|p| p.events.lock().unwrap().len() == 4).await;
    assert_eq!(played.events.lock().unwrap()[3].0, "c");

    // A scheduler that cannot take a report is subscribed to again, and learns it that way.
    *played.deaf.lock().unwrap() = true;
    played.order(Operation::UnloadModel, "b").await;
    played.until(|p| p.count() == 3).await;
    assert_eq!(played.claimed(), ["a", "c"]);
    *played.deaf.lock().unwrap() = false;

    // A server that is gone is not spoken for; when it is back, only what it holds is claimed.
    server.alive.send_replace(false);
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(played.count(), 3);
    assert!(!agent.is_subscribed());
    server.holds.lock().unwrap().truncate(1);
    server.alive.send_replace(true);
    played.until(|p| p.count() == 4).await;
    assert_eq!(played.claimed(), ["a"]);

    // Orders that come again are answered again.
    played.order(Operation::LoadModel, "a").await;
    played.until(|p| p.events.lock().unwrap().len() == 5).await;
    assert_eq!(played.events.lock().unwrap()[4], ("a".into(), Event::Loaded, String::new()));
    assert_eq!(agent.drain(Duration::from_secs(5)).await, Ok(()));
    stop.cancel();
    running.await.unwrap();
}
