//! An in-process server that echoes request details and can be held back.

use bytes::Bytes;
use futures::future::BoxFuture;
use gantry_oip::{
    Error,
    grpc::{SERVICE, decode_frame},
    server::{InferenceServer, Reply, grpc_error, grpc_reply, json},
};
use gantry_proto::inference as pb;
use http::{HeaderMap, Request, Response, StatusCode};
use prost::Message as _;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};
use tokio::sync::Semaphore;

/// More than the buffers of a loopback connection.
pub(crate) const LARGE: usize = 32 << 20;

/// Responds instead of the default, if it returns a response.
type Script = Box<dyn Fn(&Request<Bytes>) -> Option<Response<Reply>> + Send>;

pub(crate) struct FakeLocal {
    /// One permit per response; unlimited unless the test holds requests back.
    pub(crate) gate: Semaphore,
    pub(crate) arrived: AtomicUsize,
    pub(crate) answered: AtomicUsize,
    /// Requests cancelled before their response.
    pub(crate) dropped: Arc<AtomicUsize>,
    pub(crate) seen: Mutex<Vec<HeaderMap>>,
    script: Mutex<Option<Script>>,
}

impl FakeLocal {
    pub(crate) fn new() -> Arc<Self> {
        let fake = Self::held();
        fake.gate.add_permits(1_000_000);
        fake
    }

    /// Blocks until the gate gets permits.
    pub(crate) fn held() -> Arc<Self> {
        Arc::new(Self {
            gate: Semaphore::new(0),
            arrived: AtomicUsize::new(0),
            answered: AtomicUsize::new(0),
            dropped: Arc::default(),
            seen: Mutex::default(),
            script: Mutex::default(),
        })
    }

    /// Responds by `script` where it returns a response, without waiting for the gate.
    pub(crate) fn respond_by(
        &self,
        script: impl Fn(&Request<Bytes>) -> Option<Response<Reply>> + Send + 'static,
    ) {
        *self.script.lock().unwrap() = Some(Box::new(script));
    }

    pub(crate) fn arrived(&self) -> usize {
        self.arrived.load(Ordering::SeqCst)
    }
}

struct CountDrop(Arc<AtomicUsize>, bool);

impl Drop for CountDrop {
    fn drop(&mut self) {
        if !self.1 {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl InferenceServer for FakeLocal {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Response<Reply>> {
        Box::pin(async move {
            self.arrived.fetch_add(1, Ordering::SeqCst);
            self.seen.lock().unwrap().push(request.headers().clone());
            let scripted = self.script.lock().unwrap().as_ref().and_then(|script| script(&request));
            if let Some(response) = scripted {
                return response;
            }
            let mut watch = CountDrop(Arc::clone(&self.dropped), false);
            self.gate.acquire().await.unwrap().forget();
            watch.1 = true;
            self.answered.fetch_add(1, Ordering::SeqCst);
            let internal = request.headers().get("seldon-internal-model").map_or("", |v| v.to_str().unwrap());
            let path = request.uri().path().to_owned();
            if let Some(method) = path.strip_prefix(SERVICE) {
                return grpc(method, internal, request.body());
            }
            assert!(!path.contains("panic"), "panic requested");
            if path == "/v2/models/stats" {
                return json(StatusCode::OK, "{\"model_stats\":[{\"name\":\"iris_1\"}]}".into());
            }
            if request.uri().query() == Some("large") {
                return Response::new(Reply::new(vec![b'x'; LARGE].into()));
            }
            if request.uri().query() == Some("echo") {
                return Response::new(Reply::new(request.into_body()));
            }
            json(StatusCode::OK, format!("{{\"model\":\"{internal}\",\"path\":\"{path}\"}}").into())
        })
    }
}

fn grpc(method: &str, internal: &str, body: &Bytes) -> Response<Reply> {
    let message = decode_frame(body, Some(b"gzip"), 1 << 26).unwrap();
    match method {
        "ModelInfer" => {
            let request = pb::ModelInferRequest::decode(message).unwrap();
            if request.id == "fail" {
                return grpc_error(&Error::invalid("failure requested: 100 %"));
            }
            grpc_reply(&pb::ModelInferResponse {
                model_name: internal.into(),
                id: request.id,
                raw_output_contents: request.raw_input_contents,
                ..Default::default()
            })
        }
        "ModelReady" => grpc_reply(&pb::ModelReadyResponse { ready: true }),
        "ModelMetadata" => {
            grpc_reply(&pb::ModelMetadataResponse { name: internal.into(), ..Default::default() })
        }
        "ModelStatistics" => grpc_reply(&pb::ModelStatisticsResponse {
            model_stats: vec![pb::ModelStatistics { name: internal.into(), ..Default::default() }],
        }),
        other => panic!("unexpected method {other}"),
    }
}
