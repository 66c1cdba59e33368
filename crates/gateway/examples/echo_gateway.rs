//! A gateway with one model, `echo`, that returns its inputs: a target for client tests.
//!
//! `cargo run -p gantry-gateway --example echo_gateway -- PORT`

#![allow(clippy::print_stdout, reason = "prints its address")]

use bytes::Bytes;
use futures::future::BoxFuture;
use gantry_gateway::{Config, Gateway};
use gantry_oip::{
    Error, InferRequest, InferResponse, Limits, ModelMetadata, ModelStatistics, grpc, rest, select,
    server::{InferenceServer, Reply, grpc_error, grpc_reply, inferred, json, rest_error},
};
use gantry_proto::{
    gantry::{Endpoint, Reset, Route, RouteEvent, RouteVersion, Synced, route_event::Event},
    inference as pb,
};
use gantry_tensor::{DataType, TensorSpec};
use http::{Request, Response, StatusCode};
use prost::Message;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

struct Echo;

impl InferenceServer for Echo {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Response<Reply>> {
        let path = request.uri().path();
        let answer = if let Some(method) = path.strip_prefix(grpc::SERVICE) {
            over_grpc(method, &request).unwrap_or_else(|error| grpc_error(&error))
        } else {
            over_rest(path, &request).unwrap_or_else(|error| rest_error(&error))
        };
        Box::pin(std::future::ready(answer))
    }
}

fn echo(request: &mut InferRequest) -> Result<InferResponse, Error> {
    let inputs = std::mem::take(&mut request.inputs).into_iter().map(|i| i.tensor).collect();
    Ok(InferResponse {
        model_name: "echo_1".into(),
        model_version: "1".into(),
        id: request.id.clone(),
        outputs: select(inputs, request)?,
        ..Default::default()
    })
}

fn metadata() -> ModelMetadata {
    let spec = TensorSpec { name: "X".into(), datatype: DataType::Fp32, shape: vec![-1] };
    ModelMetadata {
        name: "echo_1".into(),
        versions: vec!["1".into()],
        platform: "echo".into(),
        inputs: vec![spec.clone()],
        outputs: vec![spec],
        ..Default::default()
    }
}

fn over_rest(path: &str, request: &Request<Bytes>) -> Result<Response<Reply>, Error> {
    let header = |name: &str| request.headers().get(name).map(http::HeaderValue::as_bytes);
    match path.rsplit('/').next() {
        Some("infer") => {
            let encoding = rest::Encoding::parse(header("content-encoding"))?;
            let length = match header(rest::HEADER_LENGTH).map(std::str::from_utf8) {
                None => None,
                Some(text) => Some(
                    text.ok()
                        .and_then(|t| t.parse().ok())
                        .ok_or_else(|| Error::invalid("Inference-Header-Content-Length must be a number"))?,
                ),
            };
            let limits = Limits::default();
            let body = rest::decompress(request.body().clone(), encoding, limits.body)?;
            let mut request = rest::decode_request(body, length, &limits)?;
            let response = echo(&mut request)?;
            Ok(inferred(rest::encode_response(&response, &request)?))
        }
        Some("ready") => Ok(Response::default()),
        Some("stats") => {
            let statistics = ModelStatistics { name: "echo_1".into(), ..Default::default() };
            Ok(json(StatusCode::OK, rest::encode_statistics(&[statistics])))
        }
        _ => Ok(json(StatusCode::OK, rest::encode_model_metadata(&metadata()))),
    }
}

fn over_grpc(method: &str, request: &Request<Bytes>) -> Result<Response<Reply>, Error> {
    let limits = Limits::default();
    let encoding = request.headers().get("grpc-encoding").map(http::HeaderValue::as_bytes);
    let message = grpc::decode_frame(request.body(), encoding, limits.body)?;
    Ok(match method {
        "ModelInfer" => {
            let message =
                pb::ModelInferRequest::decode(message).map_err(|e| Error::invalid(e.to_string()))?;
            let mut request = grpc::decode_request(message, &limits)?;
            let response = echo(&mut request)?;
            grpc_reply(&grpc::encode_response(response, &request))
        }
        "ModelReady" => grpc_reply(&pb::ModelReadyResponse { ready: true }),
        "ModelMetadata" => grpc_reply(&pb::ModelMetadataResponse::from(&metadata())),
        _ => grpc_reply(&pb::ModelStatisticsResponse {
            model_stats: vec![pb::ModelStatistics { name: "echo_1".into(), ..Default::default() }],
        }),
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::args().nth(1).unwrap_or_else(|| "9000".into());
    let gateway =
        Gateway::bind(Config { listen: format!("127.0.0.1:{port}").parse()?, ..Config::default() })?;
    gateway.register_local("builtin", 0, Arc::new(Echo));
    let endpoint = Endpoint { server: "builtin".into(), ..Default::default() };
    let version = RouteVersion { version: 1, weight: 100, endpoints: vec![endpoint] };
    let route = Route { model: "echo".into(), versions: vec![version], ..Route::default() };
    for event in [Event::Reset(Reset {}), Event::Upsert(route), Event::Synced(Synced {})] {
        gateway.routes().apply(RouteEvent { epoch: 1, event: Some(event), ..Default::default() });
    }
    println!("{}", gateway.local_addr());
    gateway.serve(CancellationToken::new()).await?;
    Ok(())
}
