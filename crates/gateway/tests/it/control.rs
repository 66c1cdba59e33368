//! Route subscription, repository calls and demand reports against a fake scheduler.

use crate::support::{FakeLocal, Running, TEST_TIMEOUT, local_endpoint, route, until, unused_address};
use gantry_gateway::control;
use gantry_proto::gantry::{
    DemandReport, DemandResponse, Reset, RouteAcknowledgement, RouteAcknowledgementResponse, RouteEvent,
    Synced, WatchRoutesRequest,
    route_event::Event,
    routing_server::{Routing, RoutingServer},
};
use gantry_proto::{
    inference::{self as oip, grpc_inference_service_client::GrpcInferenceServiceClient},
    scheduler as pb,
};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, transport::Endpoint};

type Events = mpsc::Sender<Result<RouteEvent, Status>>;

/// Sends the events of the test and records the gateway's calls.
#[derive(Clone, Default)]
struct FakeScheduler {
    watchers: Arc<Mutex<Vec<Events>>>,
    acknowledgements: Arc<Mutex<Vec<RouteAcknowledgement>>>,
    reports: Arc<Mutex<Vec<DemandReport>>>,
}

#[tonic::async_trait]
impl Routing for FakeScheduler {
    type WatchRoutesStream = ReceiverStream<Result<RouteEvent, Status>>;

    async fn watch_routes(
        &self,
        _: Request<WatchRoutesRequest>,
    ) -> Result<Response<Self::WatchRoutesStream>, Status> {
        let (sender, receiver) = mpsc::channel(16);
        self.watchers.lock().unwrap().push(sender);
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn acknowledge_routes(
        &self,
        request: Request<RouteAcknowledgement>,
    ) -> Result<Response<RouteAcknowledgementResponse>, Status> {
        self.acknowledgements.lock().unwrap().push(request.into_inner());
        Ok(Response::new(RouteAcknowledgementResponse {}))
    }

    async fn report_demand(
        &self,
        request: Request<DemandReport>,
    ) -> Result<Response<DemandResponse>, Status> {
        self.reports.lock().unwrap().push(request.into_inner());
        Ok(Response::new(DemandResponse {}))
    }
}

impl FakeScheduler {
    async fn start(&self, address: SocketAddr) -> (SocketAddr, CancellationToken) {
        let listener = loop {
            if let Ok(listener) = tokio::net::TcpListener::bind(address).await {
                break listener;
            }
            tokio::task::yield_now().await;
        };
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let (service, stopped) = (RoutingServer::new(self.clone()), stop.clone());
        tokio::spawn(async move {
            let server = tonic::transport::Server::builder().add_service(service);
            tokio::select! {
                served = server.serve_with_incoming(TcpListenerStream::new(listener)) => served.unwrap(),
                () = stopped.cancelled() => {}
            }
        });
        (address, stop)
    }

    async fn watcher(&self) -> Events {
        until("the gateway watches", || async { !self.watchers.lock().unwrap().is_empty() }).await;
        self.watchers.lock().unwrap().remove(0)
    }

    async fn acknowledged(&self, epoch: u64, applied: u64, drained: u64) {
        let wanted = RouteAcknowledgement { subscriber: "gw".into(), epoch, applied, drained };
        until(&format!("{wanted:?}"), || async {
            self.acknowledgements.lock().unwrap().last() == Some(&wanted)
        })
        .await;
    }
}

async fn send(events: &Events, epoch: u64, sequence: u64, event: Event) {
    events.send(Ok(RouteEvent { epoch, event: Some(event), sequence })).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_survive_scheduler_restart() {
    let local = FakeLocal::held();
    let running = Running::with_iris(&local);
    let here = [local_endpoint("builtin", 0)];
    let scheduler = FakeScheduler::default();
    let (address, stop) = scheduler.start("127.0.0.1:0".parse().unwrap()).await;
    let shutdown = CancellationToken::new();
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let following = tokio::spawn(control::subscribe_routes(
        endpoint,
        "gw".into(),
        running.routes.clone(),
        shutdown.clone(),
    ));

    let events = scheduler.watcher().await;
    send(&events, 7, 0, Event::Reset(Reset {})).await;
    send(&events, 7, 3, Event::Upsert(route("m", &[(1, 1, &here)]))).await;
    send(&events, 7, 9, Event::Synced(Synced {})).await;
    scheduler.acknowledged(7, 9, 9).await;
    assert_eq!(running.routes.models(), ["m"]);

    // A removed version is acknowledged as drained once its last request has ended.
    let client = running.client();
    let pending = tokio::spawn(async move { client.infer("m").await });
    until("it arrives", || async { local.arrived() == 1 }).await;
    send(&events, 7, 10, Event::Upsert(route("m", &[(2, 1, &here)]))).await;
    scheduler.acknowledged(7, 10, 9).await;
    send(&events, 7, 11, Event::Upsert(route("n", &[(1, 1, &here)]))).await;
    scheduler.acknowledged(7, 11, 9).await;
    local.gate.add_permits(1);
    assert_eq!(pending.await.unwrap().header("x-seldon-route"), ":m_1:");
    scheduler.acknowledged(7, 11, 11).await;

    // Requests are served while the scheduler is down. It restarts with a new epoch and other routes; earlier
    // in-flight requests still count.
    let pending = tokio::spawn(async move { client.infer("n").await });
    until("it arrives", || async { local.arrived() == 2 }).await;
    stop.cancel();
    drop(events);
    scheduler.watchers.lock().unwrap().clear();
    assert_eq!(running.routes.models(), ["m", "n"]);
    let (_, stop) = scheduler.start(address).await;
    let events = scheduler.watcher().await;
    send(&events, 8, 0, Event::Reset(Reset {})).await;
    send(&events, 8, 1, Event::Upsert(route("m", &[(3, 1, &here)]))).await;
    assert_eq!(running.routes.models(), ["m", "n"]);
    send(&events, 8, 1, Event::Synced(Synced {})).await;
    scheduler.acknowledged(8, 1, 0).await;
    local.gate.add_permits(1);
    assert_eq!(pending.await.unwrap().header("x-seldon-route"), ":n_1:");
    scheduler.acknowledged(8, 1, 1).await;
    assert_eq!(running.routes.models(), ["m"]);
    local.gate.add_permits(1);
    assert_eq!(client.infer("m").await.header("x-seldon-route"), ":m_3:");

    shutdown.cancel();
    tokio::time::timeout(TEST_TIMEOUT, following).await.unwrap().unwrap();
    stop.cancel();
}

/// A repository with one model, recording calls.
#[derive(Clone, Default)]
struct FakeModels {
    loaded: Arc<Mutex<Vec<String>>>,
    unloaded: Arc<Mutex<Vec<String>>>,
}

fn iris(name: &str, state: pb::model_status::ModelState, reason: &str) -> pb::ModelStatusResponse {
    let meta = pb::MetaData { name: name.into(), ..Default::default() };
    let version = pb::ModelVersionStatus {
        version: 4,
        state: Some(pb::ModelStatus { state: state.into(), reason: reason.into(), ..Default::default() }),
        model_defn: Some(pb::Model { meta: Some(meta), ..Default::default() }),
        ..Default::default()
    };
    pb::ModelStatusResponse { model_name: name.into(), versions: vec![version], ..Default::default() }
}

impl FakeModels {
    fn answer(request: &pb::ModelStatusRequest) -> Vec<pb::ModelStatusResponse> {
        use pb::model_status::ModelState;
        let all = [
            iris("iris", ModelState::ModelAvailable, ""),
            iris("big", ModelState::ScheduleFailed, "needs 6 GB"),
        ];
        let wanted = request.model.as_ref().map(|m| m.name.clone());
        all.into_iter().filter(|m| wanted.as_ref().is_none_or(|w| *w == m.model_name)).collect()
    }
}

/// Implements only the three methods that the gateway calls.
impl tonic::codegen::Service<http::Request<tonic::body::Body>> for FakeModels {
    type Response = http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let fake = self.clone();
        Box::pin(async move {
            use gantry_oip::{grpc, server};
            use http_body_util::BodyExt as _;
            use prost::Message as _;
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let message = grpc::decode_frame(&body, None, 1 << 20).unwrap();
            let reply = match path.rsplit('/').next().unwrap() {
                "ModelStatus" => {
                    let request = pb::ModelStatusRequest::decode(message).unwrap();
                    let frames: Vec<_> = Self::answer(&request).iter().map(grpc::encode_frame).collect();
                    server::grpc_frame(frames.concat().into())
                }
                "LoadModel" => {
                    let model = pb::LoadModelRequest::decode(message).unwrap().model.unwrap();
                    fake.loaded.lock().unwrap().push(model.meta.unwrap().name);
                    server::grpc_reply(&pb::LoadModelResponse {})
                }
                "UnloadModel" => {
                    let name = pb::UnloadModelRequest::decode(message).unwrap().model.unwrap().name;
                    if name != "iris" {
                        let error = gantry_oip::Error::not_found(format!("no model {name}"));
                        return Ok(server::grpc_error(&error).map(tonic::body::Body::new));
                    }
                    fake.unloaded.lock().unwrap().push(name);
                    server::grpc_reply(&pb::UnloadModelResponse {})
                }
                other => panic!("unexpected call {other}"),
            };
            Ok(reply.map(tonic::body::Body::new))
        })
    }
}

impl tonic::server::NamedService for FakeModels {
    const NAME: &'static str = "seldon.mlops.scheduler.Scheduler";
}

#[tokio::test(flavor = "multi_thread")]
async fn repository_calls_reach_the_scheduler() {
    let fake = FakeModels::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tonic::transport::Server::builder().add_service(fake.clone());
    let serving = tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let running = Running::start(crate::support::config(), |g| {
        g.set_control(Arc::new(control::SchedulerControl::new(channel)));
    });
    let client = running.client();
    let big = r#"{"name":"big","version":"4","state":"UNAVAILABLE","reason":"needs 6 GB"}"#;
    let iris = r#"{"name":"iris","version":"4","state":"READY","reason":""}"#;
    let index =
        |body: &'static str| async move { client.send("POST", "/v2/repository/index", &[], body).await };
    assert_eq!(index("").await.text(), format!("[{big},{iris}]"));
    assert_eq!(index("{}").await.text(), format!("[{big},{iris}]"));
    assert_eq!(index("{\"ready\":true}").await.text(), format!("[{iris}]"));
    assert_eq!(index("[]").await.status, 400);

    let post = |path: &'static str| async move { client.send("POST", path, &[], "").await };
    assert_eq!(post("/v2/repository/models/iris/load").await.status, 200);
    assert_eq!(*fake.loaded.lock().unwrap(), ["iris"]);
    let missing = post("/v2/repository/models/nope/load").await;
    assert_eq!(missing.status, 404);
    assert!(missing.text().contains("apply a Model with its storageUri first"), "{missing:?}");
    assert_eq!(post("/v2/repository/models/iris/unload").await.status, 200);
    assert_eq!(*fake.unloaded.lock().unwrap(), ["iris"]);
    assert_eq!(post("/v2/repository/models/nope/unload").await.status, 404);

    let mut grpc = GrpcInferenceServiceClient::connect(format!("http://{}", running.address)).await.unwrap();
    let models =
        grpc.repository_index(oip::RepositoryIndexRequest::default()).await.unwrap().into_inner().models;
    assert_eq!(models.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), ["big", "iris"]);
    let load = oip::RepositoryModelLoadRequest { model_name: "iris".into(), ..Default::default() };
    grpc.repository_model_load(load).await.unwrap();
    assert_eq!(fake.loaded.lock().unwrap().len(), 2);
    let unload = oip::RepositoryModelUnloadRequest { model_name: "nope".into(), ..Default::default() };
    assert_eq!(grpc.repository_model_unload(unload).await.unwrap_err().code(), tonic::Code::NotFound);

    serving.abort();
    let channel = Endpoint::from_shared(format!("http://{}", unused_address())).unwrap().connect_lazy();
    let alone = Running::start(crate::support::config(), |g| {
        g.set_control(Arc::new(control::SchedulerControl::new(channel)));
    });
    let answer = alone.client().send("POST", "/v2/repository/index", &[], "").await;
    assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, "5"));
    assert!(answer.text().contains("the scheduler is unreachable"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn demand_is_reported_to_the_scheduler() {
    let scheduler = FakeScheduler::default();
    let (address, stop) = scheduler.start("127.0.0.1:0".parse().unwrap()).await;
    let running = Running::with_iris(&FakeLocal::new());
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let shutdown = CancellationToken::new();
    let acknowledger = tokio::spawn(control::report_demand(
        channel,
        "gateway-1".into(),
        running.routes.clone(),
        shutdown.clone(),
    ));
    assert_eq!(running.client().send("POST", "/v2/models/iris/infer", &[], "{}").await.status, 200);
    until("the demand is reported", || async { !scheduler.reports.lock().unwrap().is_empty() }).await;
    let report = scheduler.reports.lock().unwrap()[0].clone();
    assert_eq!(report.subscriber, "gateway-1");
    assert!(report.models[0].model == "iris" && report.models[0].answered == 1, "{report:?}");
    shutdown.cancel();
    acknowledger.await.unwrap();
    stop.cancel();
}
