//! `infer` against a fake gateway, over REST and gRPC.

use crate::harness::{command, finish, gantry_with, snapshot};
use axum::{Router, extract::Path, http::StatusCode, response::IntoResponse, routing};
use gantry_proto::inference::{
    self as pb,
    grpc_inference_service_server::{GrpcInferenceService, GrpcInferenceServiceServer},
};
use std::net::SocketAddr;
use tokio::runtime::Runtime;
use tonic::{Request, Response, Status};

const METADATA: &str = r#"{"name":"iris","platform":"onnx","inputs":[{"name":"X","datatype":"FP32","shape":[-1,4]}],"outputs":[]}"#;

/// A gateway with one model, `iris`, that echoes the request.
pub(crate) struct FakeGateway {
    _runtime: Runtime,
    pub(crate) address: String,
}

impl FakeGateway {
    pub(crate) fn rest() -> Self {
        let app = Router::new()
            .route("/v2/models/{name}", routing::get(metadata))
            .route("/v2/models/{name}/infer", routing::post(echo));
        Self::start(|listener| async move { axum::serve(listener, app).await.unwrap() })
    }

    pub(crate) fn grpc() -> Self {
        Self::start(|listener| async move {
            let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
            tonic::transport::Server::builder()
                .add_service(GrpcInferenceServiceServer::new(Model))
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        })
    }

    fn start<F: Future<Output = ()> + Send + 'static>(
        serve: impl FnOnce(tokio::net::TcpListener) -> F + Send + 'static,
    ) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind(any)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        runtime.spawn(async move { serve(listener).await });
        Self { _runtime: runtime, address }
    }

    fn infer(&self, args: &[&str]) -> crate::harness::RunResult {
        finish(command(&["infer"]).args(args).env("SELDON_INFER_HOST", &self.address))
    }
}

fn error(status: StatusCode, text: &str) -> axum::response::Response {
    (status, format!("{{\"error\":\"{text}\"}}")).into_response()
}

async fn metadata(Path(name): Path<String>) -> axum::response::Response {
    match name.as_str() {
        "iris" => METADATA.into_response(),
        _ => error(StatusCode::NOT_FOUND, "model missing not found"),
    }
}

async fn echo(
    Path(name): Path<String>,
    headers: axum::http::HeaderMap,
    body: String,
) -> axum::response::Response {
    match name.as_str() {
        "iris" if headers.contains_key("x-fail") => error(StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
        "iris" if headers.get("seldon-model").is_none_or(|m| m != "iris") => {
            error(StatusCode::BAD_REQUEST, "no seldon-model header")
        }
        "iris" => ([("x-seldon-route", ":iris_1:")], body).into_response(),
        "bad" => error(StatusCode::BAD_REQUEST, "input X: shape [1,4] needs 4 values, got 3"),
        "text" => (StatusCode::INTERNAL_SERVER_ERROR, "plain text").into_response(),
        _ => error(StatusCode::NOT_FOUND, "model missing not found"),
    }
}

struct Model;

type RpcResult<T> = Result<Response<T>, Status>;

fn unsupported<T>() -> RpcResult<T> {
    Err(Status::unimplemented("not implemented"))
}

#[tonic::async_trait]
impl GrpcInferenceService for Model {
    type ModelStreamInferStream =
        tokio_stream::wrappers::ReceiverStream<Result<pb::ModelStreamInferResponse, Status>>;

    async fn model_metadata(
        &self,
        request: Request<pb::ModelMetadataRequest>,
    ) -> RpcResult<pb::ModelMetadataResponse> {
        let name = request.into_inner().name;
        if name != "iris" {
            return Err(Status::not_found("model missing not found"));
        }
        let input = pb::model_metadata_response::TensorMetadata {
            name: "X".into(),
            datatype: "FP32".into(),
            shape: vec![-1, 4],
            ..Default::default()
        };
        Ok(Response::new(pb::ModelMetadataResponse { name, inputs: vec![input], ..Default::default() }))
    }

    async fn model_infer(
        &self,
        request: Request<pb::ModelInferRequest>,
    ) -> RpcResult<pb::ModelInferResponse> {
        let request = request.into_inner();
        let [input] = request.inputs.as_slice() else {
            return Err(Status::invalid_argument("one input is needed"));
        };
        let output = pb::model_infer_response::InferOutputTensor {
            name: "label".into(),
            datatype: input.datatype.clone(),
            shape: input.shape.clone(),
            contents: input.contents.clone(),
            ..Default::default()
        };
        let mut response = Response::new(pb::ModelInferResponse {
            model_name: request.model_name,
            outputs: vec![output],
            raw_output_contents: request.raw_input_contents,
            ..Default::default()
        });
        response.metadata_mut().insert("x-seldon-route", ":iris_1:".parse().unwrap());
        Ok(response)
    }

    async fn server_live(&self, _: Request<pb::ServerLiveRequest>) -> RpcResult<pb::ServerLiveResponse> {
        unsupported()
    }
    async fn server_ready(&self, _: Request<pb::ServerReadyRequest>) -> RpcResult<pb::ServerReadyResponse> {
        unsupported()
    }
    async fn model_ready(&self, _: Request<pb::ModelReadyRequest>) -> RpcResult<pb::ModelReadyResponse> {
        unsupported()
    }
    async fn server_metadata(
        &self,
        _: Request<pb::ServerMetadataRequest>,
    ) -> RpcResult<pb::ServerMetadataResponse> {
        unsupported()
    }
    async fn model_stream_infer(
        &self,
        _: Request<tonic::Streaming<pb::ModelInferRequest>>,
    ) -> RpcResult<Self::ModelStreamInferStream> {
        unsupported()
    }
    async fn model_statistics(
        &self,
        _: Request<pb::ModelStatisticsRequest>,
    ) -> RpcResult<pb::ModelStatisticsResponse> {
        unsupported()
    }
    async fn repository_index(
        &self,
        _: Request<pb::RepositoryIndexRequest>,
    ) -> RpcResult<pb::RepositoryIndexResponse> {
        unsupported()
    }
    async fn repository_model_load(
        &self,
        _: Request<pb::RepositoryModelLoadRequest>,
    ) -> RpcResult<pb::RepositoryModelLoadResponse> {
        unsupported()
    }
    async fn repository_model_unload(
        &self,
        _: Request<pb::RepositoryModelUnloadRequest>,
    ) -> RpcResult<pb::RepositoryModelUnloadResponse> {
        unsupported()
    }
}

const ZEROS: &str = r#"{"inputs":[{"data":[0,0,0,0],"datatype":"FP32","name":"X","shape":[1,4]}]}"#;

#[test]
fn rest_sends_zeros_values_or_a_full_request() {
    let gateway = FakeGateway::rest();
    assert_eq!(gateway.infer(&["iris"]).ok(), format!("{ZEROS}\n"));
    let values = gateway.infer(&["iris", "[[5.1,3.5,1.4,0.2]]"]).ok();
    assert_eq!(values, format!("{}\n", ZEROS.replace("0,0,0,0", "5.1,3.5,1.4,0.2")));
    let request = r#"{"inputs":[ ]}"#;
    assert_eq!(gateway.infer(&["iris", request]).ok(), format!("{request}\n"));
    assert_eq!(gateway.infer(&["iris", "--data", request]).ok(), format!("{request}\n"));
    let piped = gantry_with(&["infer", "iris", "-", "--inference", &gateway.address], request);
    assert_eq!(piped.ok(), format!("{request}\n"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("request.json");
    std::fs::write(&file, request).unwrap();
    assert_eq!(gateway.infer(&["iris", "-f", file.to_str().unwrap()]).ok(), format!("{request}\n"));
}

#[test]
fn grpc_response_matches_rest() {
    let gateway = FakeGateway::grpc();
    let ran = gateway.infer(&["iris", "[[5.1,3.5,1.4,0.2]]", "--mode", "grpc"]).ok();
    assert_eq!(
        ran,
        "{\"model_name\":\"iris\",\"outputs\":[{\"name\":\"label\",\"shape\":[1,4],\"datatype\":\"FP32\",\"data\":[5.1,3.5,1.4,0.2]}]}\n"
    );
    assert!(gateway.infer(&["iris", "--mode", "grpc"]).ok().contains("[0.0,0.0,0.0,0.0]"));
    let table = gateway.infer(&["iris", "[[1,2,3,4]]", "--mode", "grpc", "-o", "table"]).ok();
    assert!(
        table.starts_with("OUTPUT   DATATYPE   SHAPE   DATA\nlabel    FP32       [1,4]   [1.0,2.0,3.0,4.0]"),
        "{table}"
    );
    let bad = gateway.infer(&[
        "iris",
        r#"{"inputs":[{"name":"X","shape":[1,4],"datatype":"FP32","data":[1]}]}"#,
        "--mode",
        "grpc",
    ]);
    assert_eq!(bad.code, 2, "{bad:?}");
    assert!(bad.stderr.starts_with("DATA: "), "{bad:?}");
    let unknown = gateway.infer(&["missing", "--mode", "grpc"]);
    assert_eq!(
        (unknown.code, unknown.stderr.as_str()),
        (3, "missing returned NotFound: model missing not found\n")
    );
}

#[test]
fn errors_contain_the_server_message() {
    let gateway = FakeGateway::rest();
    for (args, code, message) in [
        (&["missing"][..], 3, "missing returned 404: model missing not found\n"),
        (&["missing", "{\"inputs\":[]}"], 3, "missing returned 404: model missing not found\n"),
        (&["bad", "{\"inputs\":[]}"], 2, "bad returned 400: input X: shape [1,4] needs 4 values, got 3\n"),
        (&["text", "{\"inputs\":[]}"], 1, "text returned 500: plain text\n"),
        (&["iris", "--header", "x-fail=1"], 4, "iris returned 503: overloaded\n"),
        (&["iris", "[[1,2],[3]]"], 2, "input X: lists have different lengths\n"),
        (&["iris", "{\"Y\":[1]}"], 2, "\"Y\" is not an input of the model; inputs are X. Did you mean X?\n"),
        (&["iris", "nonsense"], 2, "DATA is not JSON: expected ident at line 1 column 2\n"),
        (
            &["iris", "-f", "/nonexistent"],
            2,
            "/nonexistent cannot be read: No such file or directory (os error 2)\n",
        ),
    ] {
        let ran = gateway.infer(args);
        assert_eq!((ran.code, ran.stderr.as_str(), ran.stdout.as_str()), (code, message, ""), "{args:?}");
    }
}

#[test]
fn load_test_prints_summary_to_stderr_and_one_response_to_stdout() {
    for (gateway, mode) in [(FakeGateway::rest(), "rest"), (FakeGateway::grpc(), "grpc")] {
        let ran = gateway.infer(&["iris", "--mode", mode, "--iterations", "57", "--concurrency", "4"]);
        assert_eq!(ran.stdout.lines().count(), 1, "{ran:?}");
        let lines: Vec<&str> = ran.stderr.lines().collect();
        assert!(
            lines[0].starts_with("57 requests in ") && lines[0].ends_with(" requests/s, 0 failed"),
            "{ran:?}"
        );
        for label in ["min ", "p50 ", "p90 ", "p99 ", "max "] {
            assert!(lines[1].contains(label), "{ran:?}");
        }
        assert_eq!(lines[2], "  57 × route :iris_1:");
        let timed = gateway.infer(&["iris", "--mode", mode, "--seconds", "0.2"]);
        assert_eq!((timed.code, timed.stdout.lines().count()), (0, 1), "{timed:?}");
    }
    let gateway = FakeGateway::rest();
    let failing = gateway.infer(&["iris", "-i", "5", "--header", "x-fail=1"]);
    assert_eq!((failing.code, failing.stdout.as_str()), (4, ""));
    assert!(failing.stderr.ends_with("5 × 503: overloaded\n"), "{failing:?}");
}

#[test]
fn show_headers_prints_both_directions() {
    let gateway = FakeGateway::rest();
    let ran = gateway.infer(&["iris", "--show-headers", "--header", "x-request-id=7"]);
    for line in [
        "> POST /v2/models/iris/infer HTTP/1.1\n",
        "> seldon-model: iris\n",
        "> x-request-id: 7\n",
        "< x-seldon-route: :iris_1:\n",
    ] {
        assert!(ran.stderr.contains(line), "{line} is not in {}", ran.stderr);
    }
    assert_eq!(ran.ok(), format!("{ZEROS}\n"));
}

#[test]
fn show_prints_an_equivalent_request() {
    let gateway = FakeGateway::rest();
    let printed = |args: &[&str]| gateway.infer(args).ok().replace(&gateway.address, "HOST:PORT");
    snapshot("show-curl", &printed(&["iris", "--show", "curl", "--header", "x-a=it's"]));
    snapshot("show-python", &printed(&["iris", "--show", "python"]));
    let gateway = FakeGateway::grpc();
    let printed = |args: &[&str]| gateway.infer(args).ok().replace(&gateway.address, "HOST:PORT");
    snapshot(
        "show-python-grpc",
        &printed(&["iris", "--show", "python", "--mode", "grpc", "--header", "x-a=b"]),
    );
    let curl = gateway.infer(&["iris", "--show", "curl", "--mode", "grpc"]);
    assert_eq!(
        (curl.code, curl.stderr.as_str()),
        (2, "curl does not support gRPC: remove --mode grpc, or use --show python\n")
    );
}
