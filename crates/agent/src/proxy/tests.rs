//! The proxy with a fake server over TCP.

use super::*;
use crate::{
    backend::{Failure, Kind, Repository, ServerEnvironment},
    model_cache::{CacheConfig, DiskRecords, Limits},
    model_server::{LoadOrder, ModelServer as _},
};
use bytes::Bytes;
use futures::future::BoxFuture;
use gantry_oip::grpc::{SERVICE, decode_frame, frame_message};
use gantry_oip::server;
use gantry_proto::{
    agent::ModelVersion,
    inference::{ModelInferRequest, ModelInferResponse},
    scheduler::{MetaData, Model, ModelSpec},
};
use gantry_trace::Tracer;
use gantry_transport::headers::grpc_status;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use prometheus_client::registry::Registry;
use prost::Message as _;
use std::{collections::BTreeSet, net::SocketAddr, sync::Mutex};

#[derive(Default)]
struct FakeServer {
    models: Mutex<BTreeSet<String>>,
    paths: Mutex<Vec<(String, HeaderMap)>>,
    loads: Mutex<usize>,
}

impl FakeServer {
    fn has(&self, name: &str) -> bool {
        self.models.lock().unwrap().contains(name)
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<server::Reply> {
        let path = request.uri().path_and_query().unwrap().to_string();
        self.paths.lock().unwrap().push((path.clone(), request.headers().clone()));
        let is_grpc = Protocol::of(request.headers()) == Protocol::Grpc;
        // The proxy resets a request that it refuses halfway.
        let Ok(body) = request.into_body().collect().await else { return Response::default() };
        let body = body.to_bytes();
        if path.ends_with("ModelStreamInfer") {
            return server::grpc_frame(body);
        }
        if is_grpc {
            let message = decode_frame(&body, None, 1 << 30).unwrap();
            let request = ModelInferRequest::decode(message).unwrap();
            if !self.has(&request.model_name) {
                return server::grpc_error(&Error::not_found("no such model"));
            }
            let raw = request.raw_input_contents.iter().map(Bytes::len).sum::<usize>();
            let id = raw.to_string();
            return server::grpc_reply(&ModelInferResponse {
                model_name: request.model_name,
                id,
                ..Default::default()
            });
        }
        let name = path.trim_start_matches("/v2/models/").split(['/', '?']).next().unwrap();
        if !self.has(name) {
            return server::rest_error(&Error::not_found("no such model"));
        }
        if path.ends_with("slow") {
            std::future::pending::<()>().await;
        }
        server::json(StatusCode::OK, format!("{name} {}", body.len()).into())
    }
}

impl Repository for FakeServer {
    fn ready(&self) -> BoxFuture<'_, bool> {
        Box::pin(async { true })
    }

    fn index(&self) -> BoxFuture<'_, Result<Option<BTreeSet<String>>, Failure>> {
        Box::pin(async { Ok(Some(self.models.lock().unwrap().clone())) })
    }

    fn serves<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<bool, Failure>> {
        Box::pin(async move { Ok(self.has(name)) })
    }

    fn load<'a>(&'a self, name: &'a str, _: Duration) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            *self.loads.lock().unwrap() += 1;
            self.models.lock().unwrap().insert(name.to_owned());
            Ok(())
        })
    }

    fn unload<'a>(&'a self, name: &'a str, _: Duration) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            self.models.lock().unwrap().remove(name);
            Ok(())
        })
    }
}

struct Harness {
    fake: Arc<FakeServer>,
    cache: ModelCache,
    registry: Registry,
    at: SocketAddr,
    stop: CancellationToken,
    stop_server: CancellationToken,
    client: Client<HttpConnector, Full<Bytes>>,
    grpc: Client<HttpConnector, Full<Bytes>>,
    _dir: tempfile::TempDir,
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.stop.cancel();
        self.stop_server.cancel();
    }
}

impl Harness {
    /// A proxy in front of a server with the model `m_7`.
    async fn new(limits: RequestLimits) -> Self {
        let fake = Arc::new(FakeServer::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server_at = listener.local_addr().unwrap().to_string();
        let server = fake.clone();
        let handler = move |request| {
            let server = server.clone();
            async move { server.answer(request).await }
        };
        let (stop, stop_server) = (CancellationToken::new(), CancellationToken::new());
        let options = ServerOptions { drain_timeout: Duration::ZERO, ..ServerOptions::default() };
        tokio::spawn(gantry_transport::serve(listener, options, handler, stop_server.clone()));
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("artifact")).unwrap();
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::new("s", 0, 0, &mut registry));
        let cache = ModelCache::new(CacheConfig {
            kind: Kind::Oip,
            environment: ServerEnvironment::default(),
            repository: fake.clone(),
            records: DiskRecords::open(&dir.path().join("models"), &dir.path().join("records")).unwrap(),
            capacity: 10,
            limits: Limits::default(),
            metrics: metrics.clone(),
        });
        let meta = MetaData { name: "m".into(), ..Default::default() };
        let spec = ModelSpec::default();
        let model = Model { meta: Some(meta), model_spec: Some(spec), ..Default::default() };
        let artifact = dir.path().join("artifact");
        let order = LoadOrder {
            name: "m_7".into(),
            directory: artifact.clone(),
            root: artifact,
            parameters: Vec::new(),
            definition: ModelVersion { model: Some(model), version: 7 },
            autoscaling: false,
        };
        cache.load(order).await.unwrap();
        let proxy =
            Proxy::new(cache.clone(), metrics, limits, Tracer::off(), &server_at, &server_at).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(proxy.serve(listener, stop.clone()));
        let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        let grpc = Client::builder(TokioExecutor::new()).http2_only(true).build(HttpConnector::new());
        Self { fake, cache, registry, at, stop, stop_server, client, grpc, _dir: dir }
    }

    async fn rest(&self, path: &str, internal: Option<&str>, body: Vec<u8>) -> (StatusCode, String) {
        let mut request = Request::post(format!("http://{}{path}", self.at));
        if let Some(internal) = internal {
            request = request.header("seldon-internal-model", internal);
        }
        let response = self.client.request(request.body(Full::from(body)).unwrap()).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    /// The response, or its gRPC status.
    async fn infer(&self, name: &str, internal: &str, bytes: usize) -> Result<ModelInferResponse, u16> {
        let message = ModelInferRequest {
            model_name: name.into(),
            raw_input_contents: vec![vec![1; bytes].into()],
            ..Default::default()
        };
        self.infer_message(internal, &message.encode_to_vec()).await
    }

    async fn infer_message(&self, internal: &str, message: &[u8]) -> Result<ModelInferResponse, u16> {
        let request = Request::post(format!("http://{}{SERVICE}ModelInfer", self.at))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("seldon-internal-model", internal)
            .body(Full::from(frame_message(message)))
            .unwrap();
        let response = self.grpc.request(request).await.unwrap();
        if let Some(status) = grpc_status(response.headers()) {
            return Err(status);
        }
        let collected = response.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().and_then(grpc_status), Some(0));
        let message = decode_frame(&collected.to_bytes(), None, 1 << 20).unwrap();
        Ok(ModelInferResponse::decode(message).unwrap())
    }

    /// A stream of two messages; returns the response body and its gRPC status.
    async fn stream(&self, internal: &str, messages: Bytes) -> (Bytes, Option<u16>) {
        let request = Request::post(format!("http://{}{SERVICE}ModelStreamInfer", self.at))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("seldon-internal-model", internal)
            .body(Full::from(messages))
            .unwrap();
        let (head, body) = self.grpc.request(request).await.unwrap().into_parts();
        let collected = body.collect().await.unwrap();
        let status = collected.trailers().or(Some(&head.headers)).and_then(grpc_status);
        (collected.to_bytes(), status)
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }
}

#[tokio::test]
async fn requests_are_rewritten_to_the_internal_name() {
    let harness = Harness::new(RequestLimits::default()).await;
    for (path, internal, expected) in [
        ("/v2/models/m_7/infer", None, "/v2/models/m_7/infer"),
        ("/v2/models/m/infer", Some("m_7"), "/v2/models/m_7/infer"),
        ("/v2/models/m/versions/3/infer?a=1", Some("m_7"), "/v2/models/m_7/infer?a=1"),
        ("/v2/models/m/ready", Some("m_7"), "/v2/models/m_7/ready"),
    ] {
        assert_eq!(harness.rest(path, internal, vec![1, 2, 3]).await, (StatusCode::OK, "m_7 3".into()));
        let (requested, headers) = harness.fake.paths.lock().unwrap().last().unwrap().clone();
        assert_eq!(requested, expected);
        assert!(headers.contains_key("x-request-id"));
    }
    // Buffered, and large enough to be streamed.
    for size in [10, 3 << 20] {
        let answer = harness.infer("m", "m_7", size).await.unwrap();
        assert_eq!((answer.model_name.as_str(), answer.id), ("m_7", size.to_string()));
        let rest = harness.rest("/v2/models/m/infer", Some("m_7"), vec![0; size]).await;
        assert_eq!(rest, (StatusCode::OK, format!("m_7 {size}")));
    }
    harness.cache.idle().await;
    let metrics = harness.metrics();
    for line in [
        "seldon_model_infer_total{server=\"s\",server_replica=\"0\",model=\"m\",model_internal=\"m_7\",method_type=\"rest\",code=\"200\"} 5",
        "seldon_model_infer_total{server=\"s\",server_replica=\"0\",model=\"m\",model_internal=\"m_7\",method_type=\"grpc\",code=\"0\"} 2",
        "seldon_model_aggregate_infer_total{server=\"s\",server_replica=\"0\",method_type=\"rest\"} 5",
        "seldon_cache_evict_count{server=\"s\",server_replica=\"0\"} 0",
        "seldon_load_model_counter{server=\"s\",server_replica=\"0\"} 1",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} is not in {metrics}");
    }
}

#[tokio::test]
async fn missing_model_is_reloaded_and_request_retried() {
    let harness = Harness::new(RequestLimits::default()).await;
    harness.fake.models.lock().unwrap().clear();
    let answer = harness.rest("/v2/models/m/infer", Some("m_7"), vec![1]).await;
    assert_eq!(answer, (StatusCode::OK, "m_7 1".into()));
    harness.fake.models.lock().unwrap().clear();
    assert_eq!(harness.infer("m", "m_7", 1).await.unwrap().model_name, "m_7");
    assert_eq!(*harness.fake.loads.lock().unwrap(), 3);
    // A model that was never installed is not loaded.
    let (status, text) = harness.rest("/v2/models/n/infer", Some("n_1"), vec![1]).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(text, r#"{"error":"model n_1 is not on this replica"}"#);
    assert_eq!(harness.infer("n", "n_1", 1).await.unwrap_err(), 5);
    assert_eq!(*harness.fake.loads.lock().unwrap(), 3);
}

#[tokio::test]
async fn request_limits_are_enforced() {
    let limits =
        RequestLimits { max_body: 2 << 20, timeout: Duration::from_millis(300), ..RequestLimits::default() };
    let harness = Harness::new(limits).await;
    let (status, text) = harness.rest("/v2/models/m/infer", Some("m_7"), vec![0; 3 << 20]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{text}");
    let (status, text) = harness.rest("/v2/models/m/infer?slow", Some("m_7"), vec![0]).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT, "{text}");
    let (status, _) = harness.rest("/v2/repository/models/m_7/unload", None, Vec::new()).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "the repository API is not proxied");
    assert!(harness.fake.has("m_7"));
    assert_eq!(harness.cache.in_flight(), 0);
}

#[tokio::test]
async fn unprocessed_requests_are_marked() {
    let harness = Harness::new(RequestLimits::default()).await;
    let mark = async |internal: &str| {
        let request = Request::post(format!("http://{}/v2/models/m/infer", harness.at))
            .header("seldon-internal-model", internal)
            .body(Full::from("{}"))
            .unwrap();
        let response = harness.client.request(request).await.unwrap();
        let mark = response.headers().get(UNPROCESSED).map(|v| v.to_str().unwrap().to_owned());
        (response.status().as_u16(), mark)
    };
    assert_eq!(mark("m_7").await, (200, None));
    for unknown in ["n_1", "anything"] {
        assert_eq!(mark(unknown).await, (404, Some(NO_MODEL.to_owned())));
    }
    let metrics = harness.metrics();
    assert!(!metrics.contains("anything"), "clients do not choose labels: {metrics}");
    harness.stop_server.cancel();
    let deadline = Instant::now() + Duration::from_secs(20);
    while mark("m_7").await != (503, Some(NO_SERVER.to_owned())) {
        assert!(Instant::now() < deadline, "the server is gone");
    }
}

#[tokio::test]
async fn last_name_in_a_message_is_replaced() {
    let harness = Harness::new(RequestLimits::default()).await;
    harness.fake.models.lock().unwrap().insert("other_1".into());
    for size in [10, 3 << 20] {
        let message = ModelInferRequest {
            model_name: "m".into(),
            raw_input_contents: vec![vec![1; size].into()],
            ..Default::default()
        };
        let twice = [message.encode_to_vec(), b"\x0a\x07other_1\x12\x011".to_vec()].concat();
        let answer = harness.infer_message("m_7", &twice).await;
        if size < body::SMALL {
            assert_eq!(answer.unwrap().model_name, "m_7");
        } else {
            assert_eq!(answer.unwrap_err(), 3, "the second name of a large message is refused");
        }
    }
}

#[tokio::test]
async fn streams_are_forwarded_if_the_server_supports_them() {
    let messages = Bytes::from([frame_message(&[1; 900]), frame_message(&[2; 900])].concat());
    let limits = RequestLimits { supports_streams: true, max_body: 1000, ..RequestLimits::default() };
    let harness = Harness::new(limits).await;
    assert_eq!(harness.stream("m_7", messages.clone()).await, (messages.clone(), Some(0)));
    assert_eq!(harness.stream("n_1", messages.clone()).await, (Bytes::new(), Some(5)));
    assert_eq!(harness.cache.in_flight(), 0);
    let harness = Harness::new(RequestLimits::default()).await;
    assert_eq!(harness.stream("m_7", messages).await, (Bytes::new(), Some(12)));
}
