//! The V1 protocol, for models in process and on remote servers.

use crate::support::{FakeLocal, FakeRemote, Running, config, local_endpoint, remote_endpoint, route};
use bytes::Bytes;
use gantry_gateway::Config;
use gantry_oip::{
    InferResponse, InferTensor, Limits,
    rest::{self, Encoding, compress},
    server::{Reply, inferred, json, rest_error},
};
use gantry_proto::gantry::Endpoint;
use gantry_tensor::{Elements, Tensor};
use http::{Request, Response, StatusCode};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

const METADATA: &str = r#"{"name":"sum_1","versions":["1"],"platform":"test","inputs":[{"name":"x","datatype":"FP64","shape":[-1,2]}],"outputs":[]}"#;
const BARE: &str = r#"{"name":"bare","inputs":[],"outputs":[]}"#;

/// Adds the values of each row. `bare` has no metadata, `two` has two outputs.
pub(crate) struct Adder {
    pub(crate) server: Arc<FakeLocal>,
    metadata_reads: Arc<AtomicUsize>,
}

impl Adder {
    pub(crate) fn new() -> Self {
        let server = FakeLocal::new();
        let metadata_reads = Arc::<AtomicUsize>::default();
        let reads = Arc::clone(&metadata_reads);
        server.respond_by(move |request| Some(answer(request, &reads)));
        Self { server, metadata_reads }
    }
}

fn answer(request: &Request<Bytes>, reads: &AtomicUsize) -> Response<Reply> {
    let path = request.uri().path();
    if !path.ends_with("/infer") {
        reads.fetch_add(1, Ordering::SeqCst);
        let body = if path.contains("/bare_") { BARE } else { METADATA };
        return json(StatusCode::OK, body.into());
    }
    let length = rest::header_length(request.headers()).unwrap();
    let decoded = rest::decode_request(request.body().clone(), length, &Limits::default());
    let decoded = match decoded {
        Ok(decoded) => decoded,
        Err(error) => return rest_error(&error),
    };
    let input = &decoded.inputs[0].tensor;
    let values = input.elements().to_f64().unwrap();
    let rows = input.shape()[0];
    let sums: Vec<f64> = values.chunks(values.len() / rows).map(|row| row.iter().sum()).collect();
    let mut outputs: Vec<InferTensor> =
        vec![Tensor::new("sum", [rows], Elements::Fp64(sums.clone())).unwrap().into()];
    if path.contains("/two_") {
        let positive = sums.iter().map(|sum| *sum > 0.0).collect();
        outputs.push(Tensor::new("positive", [rows], Elements::Bool(positive)).unwrap().into());
    }
    let response = InferResponse { outputs, ..InferResponse::default() };
    inferred(rest::encode_response(&response, &decoded).unwrap())
}

fn start(adder: &Adder, endpoint: Option<Endpoint>, settings: Config) -> Running {
    let server = Arc::clone(&adder.server);
    let running = Running::start(settings, |g| g.register_local("builtin", 0, server as _));
    let endpoint = endpoint.unwrap_or_else(|| local_endpoint("builtin", 0));
    for model in ["sum", "bare", "two"] {
        running.route(route(model, &[(1, 1, std::slice::from_ref(&endpoint))]));
    }
    running.route(route("asleep", &[]));
    running
}

#[tokio::test(flavor = "multi_thread")]
async fn v1_endpoints() {
    let (local, remote) = (Adder::new(), Adder::new());
    let upstream = FakeRemote::start(Arc::clone(&remote.server)).await;
    let (http1, rest_only) = {
        let endpoint = remote_endpoint("mlserver", 0, upstream.address);
        (endpoint.clone(), Endpoint { grpc_port: 0, ..endpoint })
    };
    for (adder, endpoint) in [(&local, None), (&remote, Some(http1)), (&remote, Some(rest_only))] {
        let running = start(adder, endpoint, config());
        let rows = r#"{"instances":[[1,2],[3,4.5]]}"#;
        for (method, path, body, status, expected) in [
            ("GET", "/", "", 200, r#"{"status":"alive"}"#),
            ("GET", "/v1/models", "", 200, r#"{"models":["asleep","bare","sum","two"]}"#),
            ("GET", "/v1/models/sum", "", 200, r#"{"name":"sum","ready":true}"#),
            ("GET", "/v1/models/none", "", 404, r#"{"error":"there is no model \"none\""}"#),
            ("GET", "/v1/models/asleep", "", 503, r#"{"error":"model asleep has no ready replica"}"#),
            ("POST", "/v1/models/sum:predict", rows, 200, r#"{"predictions":[3.0,7.5]}"#),
            (
                "POST",
                "/v1/models/sum:predict",
                r#"{"inputs":[{"x":[1,2]}]}"#,
                200,
                r#"{"predictions":[3.0]}"#,
            ),
            (
                "POST",
                "/v1/models/two:predict",
                rows,
                200,
                r#"{"predictions":[{"sum":3.0,"positive":true},{"sum":7.5,"positive":true}]}"#,
            ),
            (
                "POST",
                "/v1/models/bare:predict",
                r#"{"instances":[[1,2,3]]}"#,
                200,
                r#"{"predictions":[6.0]}"#,
            ),
            (
                "POST",
                "/v1/models/sum:predict",
                r#"{"instances":[[1]]}"#,
                400,
                r#"{"error":"input x: the instances are values of shape [1], but the model takes values of shape [2]"}"#,
            ),
            ("POST", "/v1/models/none:predict", rows, 404, r#"{"error":"there is no model \"none\""}"#),
            (
                "POST",
                "/v1/models/asleep:predict",
                rows,
                503,
                r#"{"error":"model asleep has no ready replica"}"#,
            ),
            ("POST", "/v1/models/sum:explain", rows, 501, r#"{"error":"model sum has no explainer"}"#),
            ("GET", "/v1/models/sum:predict", "", 405, r#"{"error":"method GET not allowed: use POST"}"#),
        ] {
            let answer = running.client().send(method, path, &[], body).await;
            assert_eq!((answer.status.as_u16(), answer.text()), (status, expected), "{method} {path} {body}");
        }
        let answer = running
            .client()
            .send("POST", "/v1/models/sum:predict", &[("accept-encoding", "gzip")], rows)
            .await;
        assert_eq!(answer.header("x-seldon-route"), ":sum_1:");
        assert_eq!(answer.header("content-type"), "application/json");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_is_read_once_per_version() {
    let adder = Adder::new();
    let running = start(&adder, None, config());
    let client = running.client();
    let predict = || client.send("POST", "/v1/models/sum:predict", &[], r#"{"instances":[[1,2]]}"#);
    for _ in 0..3 {
        assert_eq!(predict().await.status, 200);
    }
    assert_eq!(adder.metadata_reads.load(Ordering::SeqCst), 1);
    running.route(route("sum", &[(2, 1, &[local_endpoint("builtin", 0)])]));
    assert_eq!(predict().await.header("x-seldon-route"), ":sum_2:");
    assert_eq!(adder.metadata_reads.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_and_compressed_bodies_are_within_the_budget() {
    let adder = Adder::new();
    let running = start(&adder, None, Config { max_memory: 16 << 20, max_body: 2 << 20, ..config() });
    let path = "/v1/models/sum:predict";
    let rows = format!("{{\"instances\":[{}[1,1]]}}", "[1,1],".repeat(50_000));
    let plain = running.client().send("POST", path, &[], rows.clone()).await;
    assert_eq!((plain.status.as_u16(), plain.text().matches("2.0").count()), (200, 50_001));
    let gzip = compress(rows.as_bytes(), Encoding::Gzip).unwrap();
    let answer = running.client().send("POST", path, &[("content-encoding", "gzip")], gzip).await;
    assert_eq!(answer.status, 503, "it may inflate to more than a connection may use");
    let running = start(&adder, None, Config { max_body: 2 << 20, ..config() });
    let gzip = compress(rows.as_bytes(), Encoding::Gzip).unwrap();
    let answer = running.client().send("POST", path, &[("content-encoding", "gzip")], gzip).await;
    assert_eq!(answer.body, plain.body);
    let bomb = compress(&vec![b' '; 4 << 20], Encoding::Gzip).unwrap();
    let answer = running.client().send("POST", path, &[("content-encoding", "gzip")], bomb).await;
    assert_eq!(answer.status, 413);
    assert_eq!(running.metric("gantry_gateway_memory_used_bytes"), 0, "everything is released");
}
