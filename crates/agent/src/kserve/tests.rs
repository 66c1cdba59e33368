//! The sidecar with a fake model server and a fake sink over TCP.

mod batches;
mod events;
mod requests;

use super::*;
use bytes::Bytes;
use gantry_transport::BoxError;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use std::sync::Mutex;
use tokio::net::TcpListener;

const PREDICT: &str = "/v1/models/m:predict";
const INFER: &str = "/v2/models/m/infer";
/// Long enough for a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_mins(1);

type Body = UnsyncBoxBody<Bytes, BoxError>;
type Received = Arc<Mutex<Vec<(String, HeaderMap, Bytes)>>>;

fn whole(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    response
}

/// Serves until the test ends; returns the address and the received requests.
async fn fake<F>(
    answer: impl Fn(String, Bytes) -> F + Clone + Send + Sync + 'static,
) -> (SocketAddr, Received)
where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, received) = (listener.local_addr().unwrap(), Received::default());
    let recorded = Arc::clone(&received);
    let handler = move |request: Request<Incoming>| {
        let (answer, recorded) = (answer.clone(), Arc::clone(&recorded));
        async move {
            let (parts, body) = request.into_parts();
            let Ok(body) = body.collect().await else { return whole(StatusCode::BAD_REQUEST, "") };
            let (path, body) = (parts.uri.to_string(), body.to_bytes());
            recorded.lock().unwrap().push((path.clone(), parts.headers, body.clone()));
            answer(path, body).await
        }
    };
    let options = ServerOptions { drain_timeout: Duration::ZERO, ..ServerOptions::default() };
    tokio::spawn(gantry_transport::serve(listener, options, handler, CancellationToken::new()));
    (address, received)
}

/// Echoes bodies, and instances as predictions. Instances can be a failure.
async fn model(path: String, body: Bytes) -> Response<Body> {
    if path.contains("/slow") {
        std::future::pending::<()>().await;
    }
    if path.contains("/endless") {
        let first = Ok::<_, BoxError>(http_body::Frame::data(Bytes::from_static(b"first")));
        let stream = futures::stream::once(async { first });
        let stream = futures::StreamExt::chain(stream, futures::stream::pending());
        return Response::new(StreamBody::new(stream).boxed_unsync());
    }
    if path.contains("/unready") {
        return whole(StatusCode::SERVICE_UNAVAILABLE, "");
    }
    if !path.contains(":predict") {
        return whole(StatusCode::OK, body);
    }
    let Ok(request) = serde_json::from_slice::<Value>(&body) else {
        return whole(StatusCode::BAD_REQUEST, "no JSON");
    };
    let mut predictions = request["instances"].as_array().cloned().unwrap_or_default();
    if predictions.contains(&json!("fail")) {
        return whole(StatusCode::IM_A_TEAPOT, "the model failed");
    }
    if predictions.contains(&json!("short")) {
        predictions.pop();
    }
    if predictions.contains(&json!("text")) {
        return whole(StatusCode::OK, "oops");
    }
    whole(StatusCode::OK, json!({ "predictions": predictions }).to_string())
}

fn settings(component: SocketAddr) -> Settings {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Settings {
        listen: any,
        metrics: any,
        component: component.to_string(),
        probe: None,
        logger: None,
        batcher: None,
        requests: RequestLimits::default(),
        linger: Duration::ZERO,
    }
}

fn logger(sink: &str) -> LoggerSettings {
    LoggerSettings {
        url: format!("http://{sink}/events"),
        ca: None,
        mode: LogMode::All,
        source: "pod-1".into(),
        inference_service: "iris".into(),
        namespace: "ml".into(),
        component: "predictor".into(),
        endpoint: String::new(),
        metadata_headers: Vec::new(),
        annotations: Vec::new(),
        workers: 5,
        queue: 100,
        memory: 16 << 20,
        timeout: TEST_TIMEOUT,
    }
}

struct Harness {
    running: Running,
    client: Client<HttpConnector, Full<Bytes>>,
    model: Received,
    sink: Received,
}

impl Harness {
    /// A model and a sink that respond at once.
    async fn new(change: impl FnOnce(&mut Settings, SocketAddr)) -> Self {
        let sink = fake(|_, _| async { whole(StatusCode::ACCEPTED, "") }).await;
        Self::with_sink(sink, change).await
    }

    async fn with_sink(sink: (SocketAddr, Received), change: impl FnOnce(&mut Settings, SocketAddr)) -> Self {
        let (component, received) = fake(model).await;
        let mut settings = settings(component);
        change(&mut settings, sink.0);
        let running = start(settings).await.unwrap();
        let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        Self { running, client, model: received, sink: sink.1 }
    }

    async fn send(
        &self,
        request: http::request::Builder,
        body: impl Into<Bytes>,
    ) -> (StatusCode, HeaderMap, Bytes) {
        let request = request.body(Full::new(body.into())).unwrap();
        let call = async {
            let (parts, body) = self.client.request(request).await.unwrap().into_parts();
            (parts.status, parts.headers, body.collect().await.unwrap().to_bytes())
        };
        tokio::time::timeout(TEST_TIMEOUT, call).await.expect("a response in time")
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.running.address)
    }

    async fn post(&self, path: &str, body: impl Into<Bytes>) -> (StatusCode, Bytes) {
        let request = Request::post(self.url(path)).header("content-type", "application/json");
        let (status, _, body) = self.send(request, body).await;
        (status, body)
    }

    async fn predict(&self, instances: Value) -> (StatusCode, Value) {
        let (status, body) = self.post(PREDICT, json!({ "instances": instances }).to_string()).await;
        let text = String::from_utf8_lossy(&body);
        (status, serde_json::from_slice(&body).unwrap_or_else(|_| panic!("{text}")))
    }

    async fn metric(&self, name: &str) -> u64 {
        let request = Request::get(format!("http://{}/metrics", self.running.metrics));
        let (_, _, text) = self.send(request, "").await;
        let text = String::from_utf8(text.to_vec()).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().unwrap())
    }

    async fn events(&self, result: &str) -> u64 {
        self.metric(&format!("gantry_log_events_total{{result=\"{result}\"}}")).await
    }

    async fn wait_for_events(&self, result: &str, count: u64) {
        eventually(async || self.events(result).await >= count).await;
    }
}

async fn eventually(condition: impl AsyncFn() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, waiting).await.expect("the condition becomes true");
}
