//! REST and gRPC calls with the example models.

use crate::{Config, Runtime};
use bytes::Bytes;
use gantry_oip::{
    grpc,
    server::{INTERNAL_MODEL, InferenceServer as _},
};
use gantry_proto::inference as pb;
use http::{Method, Request, StatusCode};
use prost::Message;
use std::path::PathBuf;

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
        ("GET", "/v2/models/iris_1/stats", "", 200, r#""success":{"count":2"#),
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
    // Three warm-up runs.
    assert_eq!(usage.statistics.inference_count, 24 + 3);
    assert!(usage.statistics.execution_count < 24, "{statistics}");
}
