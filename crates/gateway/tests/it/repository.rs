//! The repository API against a fake scheduler.

use crate::support::{FakeLocal, Running, config, local_endpoint, route, until, unused_address};
use gantry_gateway::{Config, control};
use gantry_oip::{grpc, server};
use gantry_proto::{
    inference::{self as oip, grpc_inference_service_client::GrpcInferenceServiceClient},
    scheduler::{self as pb, model_status::ModelState},
};
use http_body_util::BodyExt as _;
use prost::Message as _;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, transport::Endpoint};

/// Models of the scheduler, and the calls it received.
#[derive(Clone, Default)]
struct FakeModels {
    models: Arc<Mutex<Vec<pb::ModelStatusResponse>>>,
    loaded: Arc<Mutex<Vec<pb::Model>>>,
    unloaded: Arc<Mutex<Vec<String>>>,
    polls: Arc<AtomicUsize>,
}

impl FakeModels {
    fn new() -> Self {
        let fake = Self::default();
        fake.set("iris", ModelState::ModelAvailable, "");
        fake.set("big", ModelState::ScheduleFailed, "needs 6 GB");
        fake
    }

    fn put(&self, status: pb::ModelStatusResponse) {
        let mut models = self.models.lock().unwrap();
        models.retain(|m| m.model_name != status.model_name);
        models.push(status);
    }

    fn set(&self, name: &str, state: ModelState, reason: &str) {
        let version = pb::ModelVersionStatus {
            version: 4,
            state: Some(pb::ModelStatus { state: state.into(), reason: reason.into(), ..Default::default() }),
            ..Default::default()
        };
        self.put(pb::ModelStatusResponse {
            model_name: name.into(),
            versions: vec![version],
            manager: "cli".into(),
            ..Default::default()
        });
    }

    fn set_deleted(&self, name: &str, manager: &str) {
        self.put(pb::ModelStatusResponse {
            model_name: name.into(),
            deleted: true,
            manager: manager.into(),
            ..Default::default()
        });
    }

    fn find(&self, name: &str) -> Option<pb::ModelStatusResponse> {
        self.models.lock().unwrap().iter().find(|m| m.model_name == name).cloned()
    }

    fn answer(&self, path: &str, message: bytes::Bytes) -> http::Response<server::Reply> {
        let rejected = |name: &str| {
            let message = format!("model {name} is rejected");
            server::grpc_error(&gantry_oip::Error::new(gantry_oip::Code::FailedPrecondition, message))
        };
        match path.rsplit('/').next().unwrap() {
            "ModelStatus" => {
                let wanted = pb::ModelStatusRequest::decode(message).unwrap().model.map(|m| m.name);
                let found: Vec<_> = match &wanted {
                    Some(name) => self.find(name).into_iter().collect(),
                    None => self.models.lock().unwrap().clone(),
                };
                // After the state was read: a later poll sees later states.
                self.polls.fetch_add(1, Ordering::SeqCst);
                if found.is_empty() {
                    return rejected(&wanted.unwrap_or_default());
                }
                let frames: Vec<_> = found.iter().map(grpc::encode_frame).collect();
                server::grpc_frame(frames.concat().into())
            }
            "LoadModel" => {
                let model = pb::LoadModelRequest::decode(message).unwrap().model.unwrap();
                let name = model.meta.clone().unwrap().name;
                self.loaded.lock().unwrap().push(model);
                match self.find(&name) {
                    Some(status) if !status.deleted => server::grpc_reply(&pb::LoadModelResponse {}),
                    _ => rejected(&name),
                }
            }
            "UnloadModel" => {
                let name = pb::UnloadModelRequest::decode(message).unwrap().model.unwrap().name;
                if self.find(&name).is_none() {
                    return rejected(&name);
                }
                self.unloaded.lock().unwrap().push(name);
                server::grpc_reply(&pb::UnloadModelResponse {})
            }
            other => panic!("unexpected call {other}"),
        }
    }

    /// A gateway with this scheduler, and a route for `iris`.
    async fn gateway(&self, config: Config) -> Running {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder().add_service(self.clone());
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
        let running = Running::start(config, |g| {
            g.set_control(Arc::new(control::SchedulerControl::new(channel)));
            g.register_local("builtin", 0, FakeLocal::new() as _);
        });
        running.route(route("iris", &[(4, 1, &[local_endpoint("builtin", 0)])]));
        running
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
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let message = grpc::decode_frame(&body, None, 1 << 20).unwrap();
            Ok(fake.answer(&path, message).map(tonic::body::Body::new))
        })
    }
}

impl tonic::server::NamedService for FakeModels {
    const NAME: &'static str = "seldon.mlops.scheduler.Scheduler";
}

fn writable() -> Config {
    Config { allow_repository_changes: true, ..config() }
}

fn load_request(model: &str) -> oip::RepositoryModelLoadRequest {
    oip::RepositoryModelLoadRequest { model_name: model.into(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn load_and_unload_are_refused_without_the_flag() {
    let fake = FakeModels::new();
    let running = fake.gateway(config()).await;
    for path in ["/v2/repository/models/iris/load", "/v2/repository/models/iris/unload"] {
        let answer = running.client().send("POST", path, &[], "").await;
        assert_eq!(answer.status, 403, "{path}");
        assert!(answer.text().contains("--allow-repository-changes"), "{answer:?}");
    }
    let mut grpc = GrpcInferenceServiceClient::connect(format!("http://{}", running.address)).await.unwrap();
    let refused = grpc.repository_model_load(load_request("iris")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let unload = oip::RepositoryModelUnloadRequest { model_name: "iris".into(), ..Default::default() };
    let refused = grpc.repository_model_unload(unload).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("--allow-repository-changes"), "{refused:?}");
    assert!(fake.loaded.lock().unwrap().is_empty() && fake.unloaded.lock().unwrap().is_empty());
    assert_eq!(running.client().send("POST", "/v2/repository/index", &[], "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn repository_calls_reach_the_scheduler() {
    let fake = FakeModels::new();
    let running = fake.gateway(writable()).await;
    let client = running.client();
    let big = r#"{"name":"big","version":"4","state":"UNAVAILABLE","reason":"needs 6 GB"}"#;
    let iris = r#"{"name":"iris","version":"4","state":"READY","reason":""}"#;
    let index =
        |body: &'static str| async move { client.send("POST", "/v2/repository/index", &[], body).await };
    assert_eq!(index("").await.text(), format!("[{big},{iris}]"));
    assert_eq!(index("{}").await.text(), format!("[{big},{iris}]"));
    assert_eq!(index("{\"ready\":true}").await.text(), format!("[{iris}]"));
    assert_eq!(index("[]").await.status, 400);

    let post = |path: &'static str, body: &'static str| client.send("POST", path, &[], body);
    for body in ["", "{}", "{\"parameters\":{}}"] {
        assert_eq!(post("/v2/repository/models/iris/load", body).await.status, 200, "{body}");
    }
    let loaded = std::mem::take(&mut *fake.loaded.lock().unwrap());
    assert_eq!(loaded.len(), 3);
    // Only the scheduler knows the definition: a copy could be outdated.
    assert!(loaded.iter().all(|m| m.model_spec.is_none() && m.meta.as_ref().unwrap().name == "iris"));
    let answer = post("/v2/repository/models/iris/load", "{\"parameters\":{\"config\":\"{}\"}}").await;
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("parameters are not supported"), "{answer:?}");
    assert_eq!(post("/v2/repository/models/iris/load", "[]").await.status, 400);
    let missing = post("/v2/repository/models/nope/load", "").await;
    assert_eq!(missing.status, 404);
    assert!(missing.text().contains("apply a Model with its storageUri first"), "{missing:?}");
    let failed = post("/v2/repository/models/big/load", "").await;
    assert_eq!(failed.status, 400);
    assert!(failed.text().contains("failed to load: needs 6 GB"), "{failed:?}");
    assert_eq!(post("/v2/repository/models/iris/unload", "").await.status, 200);
    assert_eq!(*fake.unloaded.lock().unwrap(), ["iris"]);

    let mut grpc = GrpcInferenceServiceClient::connect(format!("http://{}", running.address)).await.unwrap();
    let models =
        grpc.repository_index(oip::RepositoryIndexRequest::default()).await.unwrap().into_inner().models;
    assert_eq!(models.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), ["big", "iris"]);
    grpc.repository_model_load(load_request("iris")).await.unwrap();
    assert_eq!(grpc.repository_model_load(load_request("nope")).await.unwrap_err().code(), Code::NotFound);

    let channel = Endpoint::from_shared(format!("http://{}", unused_address())).unwrap().connect_lazy();
    let alone = Running::start(config(), |g| {
        g.set_control(Arc::new(control::SchedulerControl::new(channel)));
    });
    let answer = alone.client().send("POST", "/v2/repository/index", &[], "").await;
    assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, "5"));
    assert!(answer.text().contains("the scheduler is unreachable"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn load_waits_for_the_unload_and_until_the_model_serves() {
    let fake = FakeModels::new();
    let running = fake.gateway(writable()).await;
    fake.set_deleted("late", "cli");
    let client = running.client();
    let loading =
        tokio::spawn(async move { client.send("POST", "/v2/repository/models/late/load", &[], "").await });
    until("the load is retried", || async { fake.loaded.lock().unwrap().len() > 2 }).await;
    let polls = || fake.polls.load(Ordering::SeqCst);
    for (state, count) in [(ModelState::ModelProgressing, 3), (ModelState::ModelAvailable, 1)] {
        let enough = polls() + count;
        fake.set("late", state, "");
        until("its status is read", || async { polls() >= enough }).await;
        assert!(!loading.is_finished(), "{state:?} without a route");
    }
    running.route(route("late", &[(4, 1, &[local_endpoint("builtin", 0)])]));
    assert_eq!(loading.await.unwrap().status, 200);
    assert_eq!(running.client().infer("late").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn load_fails_for_a_model_that_its_owner_deleted() {
    let fake = FakeModels::new();
    let running = fake.gateway(writable()).await;
    fake.set_deleted("gone", "");
    let answer = running.client().send("POST", "/v2/repository/models/gone/load", &[], "").await;
    assert_eq!(answer.status, 404, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn load_times_out_while_the_model_does_not_serve() {
    let fake = FakeModels::new();
    let running = fake.gateway(Config { request_timeout: Duration::from_millis(100), ..writable() }).await;
    // Loading, and loaded without a route in this gateway.
    for state in [ModelState::ModelProgressing, ModelState::ModelAvailable] {
        fake.set("late", state, "");
        let answer = running.client().send("POST", "/v2/repository/models/late/load", &[], "").await;
        assert_eq!(answer.status, 504, "{state:?}");
        assert!(answer.text().contains("was not loaded within 0.1 s"), "{answer:?}");
    }
}
