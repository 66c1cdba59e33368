//! REST and gRPC calls with the example models.

use crate::{Config, InferenceError, Model, Runtime, Settings, executor::Loaded};
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use gantry_oip::{
    Code, InferRequest, Limits, grpc,
    rest::{Encoding, compress},
    server::{INTERNAL_MODEL, InferenceServer as _, Reply},
};
use gantry_proto::inference as pb;
use gantry_tensor::{CancelToken, DataType, Elements, Tensor, TensorSpec};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use prost::Message;
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

const TIMEOUT: Duration = Duration::from_secs(30);

fn examples() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart")
}

fn runtime() -> Runtime {
    let runtime = Runtime::new(Config { repository: Some(examples()), ..Config::default() }).unwrap();
    for name in ["iris", "fraud", "demand"] {
        runtime.load(&format!("{name}_1"), &examples().join(name), []).unwrap();
    }
    runtime
}

async fn rest(runtime: &Runtime, method: Method, path: &str, body: &str) -> (StatusCode, String) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-length", body.len())
        .body(Bytes::copy_from_slice(body.as_bytes()))
        .unwrap();
    let response = runtime.call(request).await;
    (response.status(), String::from_utf8(response.body().data().to_vec()).unwrap())
}

async fn call<M: Message, R: Message + Default>(
    runtime: &Runtime,
    method: &str,
    message: &M,
) -> Result<R, (String, String)> {
    let request = Request::post(format!("/inference.GRPCInferenceService/{method}"))
        .body(grpc::encode_frame(message))
        .unwrap();
    let response = runtime.call(request).await;
    let status =
        response.headers().get("grpc-status").or_else(|| response.body().trailers()?.get("grpc-status"));
    let code = status.unwrap().to_str().unwrap().to_owned();
    if code != "0" {
        let message = response.headers().get("grpc-message").unwrap().as_bytes();
        return Err((code, grpc::percent_decode(message)));
    }
    let message = grpc::decode_frame(response.body().data(), None, 1 << 20).unwrap();
    Ok(R::decode(message).unwrap())
}

#[tokio::test]
async fn rest_endpoints() {
    let runtime = runtime();
    let infer =
        r#"{"id":"7","inputs":[{"name":"X","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}"#;
    let row = r#"{"inputs":[{"name":"any","shape":[1,4],"datatype":"FP32","data":[1,8,20,0]}]}"#;
    let many = |outputs: &str| {
        format!(
            r#"{{"inputs":[{{"name":"x","shape":[4],"datatype":"FP64","data":[1,8,20,0]}}],"outputs":[{outputs}]}}"#
        )
    };
    let columns = r#"{"inputs":[{"name":"rain","shape":[2],"datatype":"FP64","data":[0,1]},{"name":"hour","shape":[2,1],"datatype":"INT32","data":[8,8]},
        {"name":"celsius","shape":[2],"datatype":"FP32","data":[20,20]},{"name":"weekday","shape":[2],"datatype":"INT64","data":[1,1]}]}"#;
    let short = r#"{"inputs":[{"name":"X","shape":[1,4],"datatype":"FP32","data":[1,2,3]}]}"#;
    let wide = r#"{"inputs":[{"name":"X","shape":[1,3],"datatype":"FP32","data":[1,2,3]}]}"#;
    let words = r#"{"inputs":[{"name":"x","shape":[1,4],"datatype":"BYTES","data":["a","b","c","d"]}]}"#;
    for (method, path, body, status, expected) in [
        (
            "POST",
            "/v2/models/iris_1/infer",
            infer,
            200,
            r#""model_name":"iris_1","model_version":"1","id":"7""#,
        ),
        ("POST", "/v2/models/iris_1/infer", infer, 200, r#""datatype":"INT64","data":[0]"#),
        ("POST", "/v2/models/fraud_1/infer", row, 200, r#"{"name":"predict","shape":[1],"datatype":"FP32""#),
        ("POST", "/v2/models/demand_1/infer", row, 200, r#""data":[216.67908687857903]"#),
        ("GET", "/", "", 200, r#"{"status":"alive"}"#),
        ("GET", "/v1/models", "", 200, r#"{"models":["demand_1","fraud_1","iris_1"]}"#),
        ("GET", "/v1/models/iris_1", "", 200, r#"{"name":"iris_1","ready":true}"#),
        ("GET", "/v1/models/none", "", 404, "model none is not loaded"),
        (
            "POST",
            "/v1/models/demand_1:predict",
            r#"{"instances":[[1,8,20,0]]}"#,
            200,
            r#"{"predictions":[216.67908687857903]}"#,
        ),
        (
            "POST",
            "/v1/models/demand_1:predict",
            r#"{"instances":[[1,8,20]]}"#,
            400,
            "the model takes values of shape [4]",
        ),
        (
            "POST",
            "/v1/models/iris_1:predict",
            r#"{"instances":[[5.1,3.5,1.4,0.2]]}"#,
            200,
            r#"{"predictions":[{"label":0,"#,
        ),
        ("POST", "/v1/models/none:predict", "{}", 404, "model none is not loaded"),
        ("POST", "/v1/models/iris_1:explain", "{}", 501, "model iris_1 has no explainer"),
        (
            "POST",
            "/v2/models/demand_1/infer",
            columns,
            200,
            r#""shape":[2],"datatype":"FP64","data":[216.67908687857903,"#,
        ),
        (
            "POST",
            "/v2/models/demand_1/infer",
            &many(r#"{"name":"leaf"},{"name":"margin"}"#),
            200,
            r#"{"name":"leaf","shape":[1,60]"#,
        ),
        ("POST", "/v2/models/demand_1/infer", &many(r#"{"name":"class"}"#), 400, "does not classify"),
        ("POST", "/v2/models/demand_1/infer", &many(r#"{"name":"x"}"#), 400, "the model has no such output"),
        ("POST", "/v2/models/demand_1/infer", words, 400, "expected numbers, got BYTES"),
        ("POST", "/v2/models/iris_1/infer", short, 400, "input X: shape [1,4] needs 4 values, got 3"),
        ("POST", "/v2/models/iris_1/infer", wide, 400, "input X: expected FP32 [-1,4], got FP32 [1,3]"),
        ("POST", "/v2/models/fraud_1/infer", wide, 400, "expected shape [-1,4]"),
        ("POST", "/v2/models/iris_1/infer", "{", 400, "error"),
        ("POST", "/v2/models/absent/infer", infer, 404, "model absent is not loaded"),
        ("GET", "/v2/models/iris_1", "", 200, r#"{"name":"X","datatype":"FP32","shape":[-1,4]}"#),
        ("GET", "/v2/models/iris_1/ready", "", 200, r#"{"name":"iris_1","ready":true}"#),
        ("GET", "/v2/models/absent/ready", "", 404, "absent"),
        ("GET", "/v2/models/iris_1/stats", "", 200, r#""success":{"count":3"#),
        ("GET", "/v2/models/stats", "", 200, r#""name":"demand_1""#),
        ("GET", "/v2", "", 200, r#""name":"gantry""#),
        ("GET", "/v2/health/live", "", 200, r#"{"live":true}"#),
        ("GET", "/v2/health/ready", "", 200, r#"{"ready":true}"#),
        ("POST", "/v2/repository/index", "", 200, r#"{"name":"iris","version":"","state":"UNAVAILABLE""#),
        ("POST", "/v2/repository/models/iris/load", "", 200, ""),
        ("POST", "/v2/repository/index", "", 200, r#"{"name":"iris","version":"1","state":"READY""#),
        ("POST", "/v2/repository/models/iris/unload", "", 200, ""),
        ("POST", "/v2/repository/models/iris/unload", "", 404, "iris"),
        ("POST", "/v2/repository/models/../load", "", 400, "is not a valid model name"),
        ("POST", "/v2/repository/models/none/load", "", 400, "does not exist"),
        ("GET", "/v3", "", 404, "is not an OIP path"),
    ] {
        let (got, text) = rest(&runtime, method.parse().unwrap(), path, body).await;
        assert_eq!(got.as_u16(), status, "{method} {path}: {text}");
        assert!(text.contains(expected), "{method} {path}: {text}");
    }
}

#[tokio::test]
async fn grpc_endpoints() {
    let runtime = runtime();
    let input = |shape: Vec<i64>| pb::model_infer_request::InferInputTensor {
        name: "X".into(),
        datatype: "FP32".into(),
        shape,
        ..Default::default()
    };
    let values: Vec<u8> = [5.1f32, 3.5, 1.4, 0.2].iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut request = pb::ModelInferRequest {
        model_name: "iris_1".into(),
        inputs: vec![input(vec![1, 4])],
        raw_input_contents: vec![values.into()],
        ..Default::default()
    };
    let answer: pb::ModelInferResponse = call(&runtime, "ModelInfer", &request).await.unwrap();
    assert_eq!(
        answer.outputs.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(),
        ["label", "probabilities"]
    );
    assert_eq!(answer.raw_output_contents[0], 0i64.to_le_bytes().as_slice());
    request.inputs = vec![input(vec![1, 5])];
    let (code, message) =
        call::<_, pb::ModelInferResponse>(&runtime, "ModelInfer", &request).await.unwrap_err();
    assert_eq!(code, "3", "{message}");
    request.model_name = "absent".into();
    let (code, message) =
        call::<_, pb::ModelInferResponse>(&runtime, "ModelInfer", &request).await.unwrap_err();
    assert_eq!((code.as_str(), message.as_str()), ("5", "model absent is not loaded"));
    let name = |name: &str| pb::ModelReadyRequest { name: name.into(), version: String::new() };
    let ready: pb::ModelReadyResponse = call(&runtime, "ModelReady", &name("iris_1")).await.unwrap();
    let absent: pb::ModelReadyResponse = call(&runtime, "ModelReady", &name("absent")).await.unwrap();
    assert!(ready.ready && !absent.ready);
    let metadata: pb::ModelMetadataResponse =
        call(&runtime, "ModelMetadata", &name("fraud_1")).await.unwrap();
    assert_eq!((metadata.platform.as_str(), metadata.inputs[0].shape.as_slice()), ("xgboost", &[-1, 4][..]));
    let all = pb::ModelStatisticsRequest::default();
    let statistics: pb::ModelStatisticsResponse = call(&runtime, "ModelStatistics", &all).await.unwrap();
    assert_eq!(statistics.model_stats.len(), 3);
    let (code, _) = call::<_, pb::ServerLiveResponse>(&runtime, "Nothing", &all).await.unwrap_err();
    assert_eq!(code, "12");
}

#[tokio::test]
async fn internal_model_header_takes_precedence() {
    let runtime = runtime();
    let request =
        Request::get("/v2/models/iris").header(INTERNAL_MODEL, "iris_1").body(Bytes::new()).unwrap();
    assert_eq!(runtime.call(request).await.status(), StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn batched_results_equal_single_results() {
    let runtime = std::sync::Arc::new(runtime());
    let batching = [("max_batch_size", "16"), ("max_batch_time", "0.01")];
    runtime.load("batched_1", &examples().join("demand"), batching).unwrap();
    let body = |i: usize| {
        format!(r#"{{"inputs":[{{"name":"x","shape":[1,4],"datatype":"FP64","data":[1,{i},20,0]}}]}}"#)
    };
    let answers = futures::future::join_all((0..24).map(|i| {
        let runtime = runtime.clone();
        tokio::spawn(
            async move { rest(&runtime, Method::POST, "/v2/models/batched_1/infer", &body(i)).await },
        )
    }))
    .await;
    for (i, answer) in answers.into_iter().enumerate() {
        let (status, batched) = answer.unwrap();
        let (_, single) = rest(&runtime, Method::POST, "/v2/models/demand_1/infer", &body(i)).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(batched.replace("batched_1", "demand_1"), single);
    }
    let (_, statistics) = rest(&runtime, Method::GET, "/v2/models/batched_1/stats", "").await;
    let report: Vec<_> = runtime.usage().into_iter().filter(|u| u.statistics.name == "batched_1").collect();
    let [usage] = report.as_slice() else { panic!("{statistics}") };
    assert_eq!(usage.statistics.inference_count, 24, "without warm-up runs");
    assert!(usage.statistics.execution_count < 24, "{statistics}");
}

/// Returns `columns` zeros for each element, or fails; `freed` gets the thread that drops it.
struct Wide {
    inputs: Vec<TensorSpec>,
    columns: usize,
    infer: fn(&CancelToken) -> Result<(), InferenceError>,
    freed: Option<mpsc::Sender<std::thread::ThreadId>>,
}

impl Drop for Wide {
    fn drop(&mut self) {
        if let Some(freed) = &self.freed {
            let _ = freed.send(std::thread::current().id());
        }
    }
}

impl Wide {
    fn new(columns: usize, infer: fn(&CancelToken) -> Result<(), InferenceError>) -> Self {
        let input = TensorSpec { name: "x".into(), datatype: DataType::Fp32, shape: vec![-1, 1] };
        Self { inputs: vec![input], columns, infer, freed: None }
    }
}

impl Model for Wide {
    fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }
    fn outputs(&self) -> &[TensorSpec] {
        &[]
    }
    fn platform(&self) -> &'static str {
        "test"
    }
    fn engine(&self) -> String {
        "test".into()
    }
    fn memory_bytes(&self) -> usize {
        0
    }
    fn batchable(&self) -> bool {
        true
    }
    fn infer(
        &self,
        inputs: &[Tensor],
        _: &[&str],
        cancel: &CancelToken,
    ) -> Result<Vec<Tensor>, InferenceError> {
        (self.infer)(cancel)?;
        let elements = inputs[0].elements().len() * self.columns;
        Ok(vec![Tensor::new("y", [1, elements], Elements::Fp32(vec![0.0; elements])).unwrap()])
    }
}

/// Installs a model that runs on the calling thread unless it is large.
fn install(runtime: &Runtime, name: &str, model: Wide, settings: &Settings) -> Arc<Loaded> {
    let loaded = Arc::new(Loaded::new(name, Box::new(model), settings));
    loaded.statistics.learn(1, Duration::from_nanos(1));
    runtime.install(loaded.clone());
    loaded
}

/// Holds all jobs of a model back until the lock is released.
fn hold<'a>(runtime: &Runtime, model: &Loaded, gate: &'a Arc<Mutex<()>>) -> std::sync::MutexGuard<'a, ()> {
    let held = gate.lock().unwrap();
    let (start, started) = mpsc::channel();
    for _ in 0..runtime.config.threads {
        let (start, gate) = (start.clone(), gate.clone());
        let job = move |_: &CancelToken| {
            start.send(()).unwrap();
            drop(gate.lock());
        };
        runtime.pool.submit(&model.queue, CancelToken::default(), job).unwrap();
        started.recv_timeout(TIMEOUT).unwrap();
    }
    held
}

fn post(path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Request<Bytes> {
    let mut request = Request::post(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body.into()).unwrap()
}

fn infer(model: &str, rows: usize, more: &str) -> Request<Bytes> {
    let data = vec!["0"; rows].join(",");
    let body = format!(
        r#"{{"inputs":[{{"name":"x","shape":[{rows},1],"datatype":"FP32","data":[{data}]}}]{more}}}"#
    );
    post(&format!("/v2/models/{model}/infer"), &[], body)
}

async fn answered(call: BoxFuture<'_, Response<Reply>>) -> (u16, String) {
    let response = tokio::time::timeout(TIMEOUT, call).await.unwrap();
    (response.status().as_u16(), String::from_utf8_lossy(response.body().data()).into_owned())
}

fn grpc_frame(message: &[u8], encoding: Encoding) -> Bytes {
    let packed = compress(message, encoding).unwrap();
    let mut frame = vec![u8::from(encoding != Encoding::Identity)];
    frame.extend_from_slice(&u32::try_from(packed.len()).unwrap().to_be_bytes());
    frame.extend_from_slice(&packed);
    frame.into()
}

#[tokio::test]
async fn large_work_stays_off_the_calling_thread() {
    let runtime = Runtime::new(Config { threads: 1, ..Config::default() }).unwrap();
    let narrow = install(&runtime, "narrow_1", Wide::new(0, |_| Ok(())), &Settings::default());
    let wide = install(&runtime, "wide_1", Wide::new(100_000, |_| Ok(())), &Settings::default());
    let large = vec![b' '; 200_000];
    let gzip = [("content-encoding", "gzip")];
    let grpc_headers = [("grpc-encoding", "gzip"), (INTERNAL_MODEL, "narrow_1")];
    let rest = "/v2/models/narrow_1/infer";
    let rpc = "/inference.GRPCInferenceService/ModelInfer";
    let unnamed = pb::ModelInferRequest {
        model_name: "narrow_1".into(),
        raw_input_contents: vec![large.clone().into()],
        ..Default::default()
    };
    let one_row = String::from_utf8(infer("narrow_1", 20_000, "").into_body().to_vec()).unwrap();
    let one_row = one_row.replace("[20000,1]", "[1,20000]");
    // Each body is invalid: decoded on the calling thread, it would be answered at once.
    let cases: Vec<(&str, &Loaded, Request<Bytes>, u16)> = vec![
        ("large body", &narrow, post(rest, &[], large.clone()), 400),
        (
            "small gzip of a large body",
            &narrow,
            post(rest, &gzip, compress(&large, Encoding::Gzip).unwrap()),
            400,
        ),
        ("large frame", &narrow, post(rpc, &grpc_headers, grpc_frame(&large, Encoding::Identity)), 200),
        (
            "small frame of a large message",
            &narrow,
            post(rpc, &grpc_headers, grpc_frame(&large, Encoding::Gzip)),
            200,
        ),
        (
            "the same without a header",
            &narrow,
            post(rpc, &grpc_headers[..1], grpc_frame(&unnamed.encode_to_vec(), Encoding::Gzip)),
            200,
        ),
        ("many elements in one row", &narrow, post(rest, &[], one_row), 200),
        ("large output", &wide, infer("wide_1", 1, ""), 200),
        (
            "classification of a large output",
            &wide,
            infer("wide_1", 1, r#","outputs":[{"name":"y","parameters":{"classification":1}}]"#),
            200,
        ),
    ];
    let gate = Arc::default();
    for (what, model, request, status) in cases {
        let held = hold(&runtime, model, &gate);
        let mut call = runtime.call(request);
        assert!((&mut call).now_or_never().is_none(), "{what} is processed on the calling thread");
        drop(held);
        assert_eq!(answered(call).await.0, status, "{what}");
    }
    // Small work is done on the calling thread, compressed or not.
    let held = hold(&runtime, &narrow, &gate);
    let small = infer("narrow_1", 2, "").into_body();
    let packed = compress(&small, Encoding::Gzip).unwrap();
    for request in [post(rest, &[], small), post(rest, &gzip, packed)] {
        assert_eq!(runtime.call(request).now_or_never().map(|r| r.status()), Some(StatusCode::OK));
    }
    drop(held);
}

#[tokio::test]
async fn memory_of_large_requests_is_bounded() {
    let config = Config { threads: 1, request_memory: 1 << 20, ..Config::default() };
    let runtime = Runtime::new(config).unwrap();
    let batching =
        Settings { max_batch_size: 2, max_batch_time: Duration::from_hours(1), ..Settings::default() };
    install(&runtime, "batched_1", Wide::new(1, |_| Ok(())), &batching);
    install(&runtime, "m_1", Wide::new(1, |_| Ok(())), &Settings::default());
    // Waits for others in its batch, decoded.
    let mut first = runtime.call(infer("batched_1", 100_000, ""));
    assert!((&mut first).now_or_never().is_none());
    let full = loop {
        let (status, text) = answered(runtime.call(infer("m_1", 100_000, ""))).await;
        if status != 200 {
            break (status, text);
        }
        assert!((&mut first).now_or_never().is_none());
    };
    let expected =
        "the runtime is busy: large requests in flight need all of the 1 MiB for them: retry in 1 s";
    assert_eq!((full.0, full.1.contains(expected)), (429, true), "{}", full.1);
    drop(first);
    // A thread that decodes the dropped request frees its memory when it ends.
    let freed = async { while answered(runtime.call(infer("m_1", 100_000, ""))).await.0 != 200 {} };
    tokio::time::timeout(Duration::from_secs(30), freed).await.unwrap();
}

fn spin(cancel: &CancelToken) -> Result<(), InferenceError> {
    while !cancel.is_cancelled() {
        std::thread::yield_now();
    }
    Err(InferenceError::Cancelled)
}

/// Installs models that run until they are cancelled: one on the pool, one batched.
fn install_endless(runtime: &Runtime) -> [Arc<Loaded>; 2] {
    let batching = Settings { max_batch_size: 8, ..Settings::default() };
    [("plain_1", Settings::default()), ("batched_1", batching)].map(|(name, settings)| {
        let loaded = install(runtime, name, Wide::new(1, spin), &settings);
        loaded.statistics.learn(1, Duration::from_secs(1));
        loaded
    })
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.expect(what);
}

#[tokio::test]
async fn run_stops_when_its_caller_is_gone() {
    let runtime = Runtime::new(Config { threads: 1, ..Config::default() }).unwrap();
    for model in install_endless(&runtime) {
        let mut calls: Vec<_> = (0..3).map(|_| runtime.call(infer(&model.name, 1, ""))).collect();
        for call in &mut calls {
            assert!(call.now_or_never().is_none());
        }
        until("the first runs", || runtime.pool.running(&model.queue) == 1).await;
        drop(calls);
        // Nothing holds the thread: the next job of the model runs.
        let next = runtime.pool.run(&model.queue, |_| ());
        tokio::time::timeout(TIMEOUT, next).await.expect("the runs stop").unwrap();
    }
}

#[tokio::test]
async fn unload_cancels_requests() {
    let runtime = Runtime::new(Config { threads: 1, ..Config::default() }).unwrap();
    for model in install_endless(&runtime) {
        let mut calls: Vec<_> = (0..3).map(|_| runtime.call(infer(&model.name, 1, ""))).collect();
        for call in &mut calls {
            assert!(call.now_or_never().is_none());
        }
        until("the first runs", || runtime.pool.running(&model.queue) == 1).await;
        assert!(runtime.unload(&model.name));
        for call in calls {
            let (status, text) = answered(call).await;
            assert_eq!((status, text), (503, format!("{{\"error\":\"model {} was unloaded\"}}", model.name)));
        }
        let last = Arc::downgrade(&model);
        drop(model);
        until("the model is freed", || last.strong_count() == 0).await;
    }
}

#[tokio::test]
async fn model_is_freed_on_another_thread() {
    let runtime = Runtime::new(Config { threads: 1, ..Config::default() }).unwrap();
    let (send, freed) = mpsc::channel();
    for name in ["unloaded_1", "replaced_1"] {
        let mut model = Wide::new(1, |_| Ok(()));
        model.freed = Some(send.clone());
        install(&runtime, name, model, &Settings::default());
    }
    assert!(runtime.unload("unloaded_1"));
    install(&runtime, "replaced_1", Wide::new(1, |_| Ok(())), &Settings::default());
    for _ in 0..2 {
        assert_ne!(freed.recv_timeout(TIMEOUT).unwrap(), std::thread::current().id());
    }
}

#[tokio::test]
async fn waiting_for_a_batch_holds_no_thread() {
    let runtime = Runtime::new(Config { threads: 1, ..Config::default() }).unwrap();
    let batching =
        Settings { max_batch_size: 2, max_batch_time: Duration::from_hours(1), ..Settings::default() };
    let model = install(&runtime, "batched_1", Wide::new(1, |_| Ok(())), &batching);
    let mut first = runtime.call(infer("batched_1", 1, ""));
    assert!((&mut first).now_or_never().is_none());
    let other = runtime.pool.run(&model.queue, |_| ());
    tokio::time::timeout(TIMEOUT, other).await.expect("the thread is free").unwrap();
    // A full batch runs at once.
    let second = runtime.call(infer("batched_1", 1, ""));
    let (first, second) = futures::join!(answered(first), answered(second));
    assert_eq!((first.0, second.0), (200, 200));
    let soon = Settings { max_batch_time: Duration::from_millis(5), ..batching };
    install(&runtime, "soon_1", Wide::new(1, |_| Ok(())), &soon);
    assert_eq!(answered(runtime.call(infer("soon_1", 1, ""))).await.0, 200);
}

fn values(model: &str, tensor: Tensor) -> InferRequest {
    InferRequest { model_name: model.into(), inputs: vec![tensor.into()], ..InferRequest::default() }
}

#[tokio::test]
async fn inference_on_values_equals_inference_over_grpc() {
    let runtime = runtime();
    let row = Tensor::new("X", [1, 4], Elements::Fp32(vec![5.1, 3.5, 1.4, 0.2])).unwrap();
    let request = values("iris_1", row);
    let message = grpc::encode_request(request.clone());
    let encoded: pb::ModelInferResponse = call(&runtime, "ModelInfer", &message).await.unwrap();
    let response = runtime.infer(request, HeaderMap::new()).await.unwrap();
    assert_eq!(response.model_name, "iris_1");
    assert_eq!(grpc::decode_response(encoded, &Limits::default()).unwrap().outputs, response.outputs);
    let wrong = Tensor::new("X", [1, 3], Elements::Fp32(vec![5.1, 3.5, 1.4])).unwrap();
    let error = runtime.infer(values("iris_1", wrong.clone()), HeaderMap::new()).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument, "{error}");
    let error = runtime.infer(values("other_1", wrong), HeaderMap::new()).await.unwrap_err();
    assert_eq!(error.code, Code::NotFound, "{error}");
    let usage = runtime.usage();
    let usage = &usage.iter().find(|model| model.statistics.name == "iris_1").unwrap().statistics;
    assert_eq!((usage.success.count, usage.fail.count), (2, 1));
}

#[tokio::test]
async fn inference_on_values_stops_when_its_caller_is_gone() {
    let runtime = Runtime::new(Config { threads: 1, ..Config::default() }).unwrap();
    for model in install_endless(&runtime) {
        let input = Tensor::new("x", [1, 1], Elements::Fp32(vec![0.0])).unwrap();
        let mut calling = runtime.infer(values(&model.name, input), HeaderMap::new());
        assert!((&mut calling).now_or_never().is_none());
        until("it runs", || runtime.pool.running(&model.queue) == 1).await;
        drop(calling);
        let next = runtime.pool.run(&model.queue, |_| ());
        tokio::time::timeout(TIMEOUT, next).await.expect("the run stops").unwrap();
    }
}

#[tokio::test]
async fn panic_is_an_error_of_its_request() {
    let runtime = Runtime::new(Config { threads: 1, ..Config::default() }).unwrap();
    install(&runtime, "m_1", Wide::new(1, |_| panic!("on purpose")), &Settings::default());
    for _ in 0..3 {
        let (status, text) = answered(runtime.call(infer("m_1", 1, ""))).await;
        assert_eq!((status, text.contains("panicked")), (500, true), "{text}");
    }
    let usage = &runtime.usage()[0].statistics;
    assert_eq!((usage.success.count, usage.fail.count), (0, 3));
}

#[test]
fn rejected_requests_do_not_change_the_estimate() {
    let rejects = |_: &CancelToken| Err(InferenceError::Request("too small".into()));
    let model = Loaded::new("m_1", Box::new(Wide::new(1, rejects)), &Settings::default());
    model.statistics.learn(1, Duration::from_hours(1));
    let inputs = [Tensor::new("x", [1, 1], Elements::Fp32(vec![0.0])).unwrap()];
    for _ in 0..1000 {
        assert!(model.run(&inputs, &[], &CancelToken::default()).is_err());
    }
    assert_eq!(model.statistics.estimate(1), Some(Duration::from_hours(1)));
}

#[test]
fn model_that_fails_on_zeros_is_not_loaded() {
    let warm_up =
        |model: Wide, limit| Loaded::new("m_1", Box::new(model), &Settings::default()).warm_up(limit);
    let fails = |_: &CancelToken| Err(InferenceError::Model("no kernel".into()));
    assert_eq!(warm_up(Wide::new(1, fails), TIMEOUT), Err("a run on zeros failed: no kernel".into()));
    let slow = warm_up(Wide::new(1, spin), Duration::from_millis(20));
    assert_eq!(slow, Err("a run on zeros takes longer than 0.02 s; raise the parameter max_run_time".into()));
    let rejects = |_: &CancelToken| Err(InferenceError::Request("zero is not a valid key".into()));
    assert_eq!(warm_up(Wide::new(1, rejects), TIMEOUT), Ok(()));
    // Another width could succeed.
    let mut dynamic = Wide::new(1, fails);
    dynamic.inputs[0].shape = vec![-1, -1];
    assert_eq!(warm_up(dynamic, TIMEOUT), Ok(()));
}
