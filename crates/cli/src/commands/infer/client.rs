//! Inference client over REST or gRPC.

use super::{
    Mode,
    payload::{Input, Payload},
};
use crate::{
    client::{Address, Connection, HttpError, error_text},
    error::{CommandError, Exit},
};
use bytes::Bytes;
use gantry_oip::{InferRequest, Limits, grpc, rest};
use gantry_proto::inference::{self as pb, grpc_inference_service_client::GrpcInferenceServiceClient};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde::Deserialize;
use std::time::Duration;
use tonic::{
    Code, Status,
    metadata::MetadataMap,
    transport::{Channel, Endpoint},
};

const MAX_MESSAGE_BYTES: usize = 256 << 20;

#[derive(Debug)]
pub(super) struct InferClient {
    address: Address,
    mode: Mode,
    model: String,
    headers: HeaderMap,
    timeout: Duration,
    rest: Connection,
    grpc: Option<GrpcInferenceServiceClient<Channel>>,
    json: Bytes,
    message: Option<pb::ModelInferRequest>,
}

/// Tensors in the model's metadata.
#[derive(Clone, Debug)]
pub(super) struct Signature {
    pub(super) inputs: Vec<Input>,
    pub(super) outputs: Vec<Input>,
}

#[derive(Clone, Debug)]
pub(super) struct InferResponse {
    pub(super) headers: HeaderMap,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Json(Bytes),
    Message(Box<pb::ModelInferResponse>),
}

#[derive(Clone, Debug)]
pub(super) struct InferError {
    pub(super) exit: Exit,
    /// Code of the response, if there was one: `404`, `NotFound`.
    code: Option<String>,
    text: String,
    pub(super) headers: Box<HeaderMap>,
}

impl InferError {
    fn new(exit: Exit, code: Option<String>, text: impl Into<String>) -> Self {
        Self { exit, code, text: text.into(), headers: Box::default() }
    }

    /// One line, for a summary.
    pub(super) fn line(&self) -> String {
        match &self.code {
            Some(code) => format!("{code}: {}", self.text),
            None => self.text.clone(),
        }
    }

    pub(super) fn command_error(&self, model: &str) -> CommandError {
        let text = match &self.code {
            Some(code) => format!("{model} returned {code}: {}", self.text),
            None => self.text.clone(),
        };
        CommandError::new(self.exit, text)
    }
}

impl InferClient {
    pub(super) fn new(
        address: &Address,
        mode: Mode,
        model: &str,
        headers: &HeaderMap,
        timeout: Duration,
    ) -> Self {
        Self {
            address: address.clone(),
            mode,
            model: model.to_owned(),
            headers: headers.clone(),
            timeout,
            rest: Connection::new(address.clone(), timeout),
            grpc: None,
            json: Bytes::new(),
            message: None,
        }
    }

    /// The same request over a new connection.
    pub(super) fn reconnected(&self) -> Self {
        Self {
            json: self.json.clone(),
            message: self.message.clone(),
            ..Self::new(&self.address, self.mode, &self.model, &self.headers, self.timeout)
        }
    }

    /// For gRPC, converts the JSON here, so that invalid data is reported before anything is sent.
    pub(super) fn set_payload(&mut self, payload: &Payload) -> Result<(), CommandError> {
        self.json = payload.json.clone();
        if self.mode == Mode::Grpc {
            let limits = Limits { body: usize::MAX, ..Limits::default() };
            let mut request = rest::decode_request(self.json.clone(), None, &limits)
                .map_err(|e| CommandError::usage(format!("DATA: {e}")))?;
            request.model_name.clone_from(&self.model);
            self.message = Some(grpc::encode_request(request));
        }
        Ok(())
    }

    /// Request line and headers, for `--show-headers`.
    pub(super) fn request_head(&self) -> String {
        let mut lines = vec![match self.mode {
            Mode::Rest => format!("> POST {} HTTP/1.1", self.path("/infer")),
            Mode::Grpc => "> POST /inference.GRPCInferenceService/ModelInfer HTTP/2".to_owned(),
        }];
        lines.push(format!("> host: {}", self.address));
        for (name, value) in &self.headers {
            lines.push(format!("> {name}: {}", String::from_utf8_lossy(value.as_bytes())));
        }
        lines.join("\n")
    }

    fn path(&self, rest: &str) -> String {
        format!("/v2/models/{}{rest}", self.model)
    }

    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// The model's inputs.
    pub(super) async fn metadata(&mut self) -> Result<Vec<Input>, InferError> {
        Ok(self.signature().await?.inputs)
    }

    /// The model's inputs and outputs.
    pub(super) async fn signature(&mut self) -> Result<Signature, InferError> {
        match self.mode {
            Mode::Rest => {
                let path = self.path("");
                let headers = self.headers.clone();
                let response = self.rest.send(Method::GET, &path, &headers, Bytes::new()).await;
                let body = self.check(response)?.1;
                let metadata: Metadata = serde_json::from_slice(&body).map_err(|e| {
                    InferError::new(Exit::Failed, None, format!("invalid model metadata: {e}"))
                })?;
                let tensor = |t: TensorMetadata| Input { name: t.name, datatype: t.datatype, shape: t.shape };
                Ok(Signature {
                    inputs: metadata.inputs.into_iter().map(tensor).collect(),
                    outputs: metadata.outputs.into_iter().map(tensor).collect(),
                })
            }
            Mode::Grpc => {
                let request = pb::ModelMetadataRequest { name: self.model.clone(), version: String::new() };
                let request = self.with_headers(request);
                let timeout = self.timeout;
                let mut client = self.client().await?;
                let response = with_timeout(timeout, client.model_metadata(request)).await;
                let metadata = response.map_err(|s| self.status_error(&s))?.into_inner();
                let tensor = |t: pb::model_metadata_response::TensorMetadata| Input {
                    name: t.name,
                    datatype: t.datatype,
                    shape: t.shape,
                };
                Ok(Signature {
                    inputs: metadata.inputs.into_iter().map(tensor).collect(),
                    outputs: metadata.outputs.into_iter().map(tensor).collect(),
                })
            }
        }
    }

    pub(super) async fn infer(&mut self) -> Result<InferResponse, InferError> {
        match self.mode {
            Mode::Rest => {
                let path = self.path("/infer");
                let mut headers = self.headers.clone();
                headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
                let response = self.rest.send(Method::POST, &path, &headers, self.json.clone()).await;
                let (headers, body) = self.check(response)?;
                Ok(InferResponse { headers, body: Body::Json(body) })
            }
            Mode::Grpc => {
                let request = self.with_headers(self.message.clone().unwrap_or_default());
                let timeout = self.timeout;
                let mut client = self.client().await?;
                let response = with_timeout(timeout, client.model_infer(request)).await;
                let response = response.map_err(|s| self.status_error(&s))?;
                let headers = response.metadata().clone().into_headers();
                Ok(InferResponse { headers, body: Body::Message(Box::new(response.into_inner())) })
            }
        }
    }

    fn with_headers<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        *request.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
        request
    }

    async fn client(&mut self) -> Result<GrpcInferenceServiceClient<Channel>, InferError> {
        if let Some(client) = &self.grpc {
            return Ok(client.clone());
        }
        let endpoint = Endpoint::from_shared(self.address.url())
            .map_err(|e| InferError::new(Exit::Usage, None, format!("--inference {}: {e}", self.address)))?
            .connect_timeout(self.timeout)
            .tcp_nodelay(true);
        let channel = endpoint.connect().await.map_err(|_| self.unreachable())?;
        let client = GrpcInferenceServiceClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        self.grpc = Some(client.clone());
        Ok(client)
    }

    fn unreachable(&self) -> InferError {
        let text = format!("no gateway at {}: start one with `gantry up`, or set --inference", self.address);
        InferError::new(Exit::Unavailable, None, text)
    }

    fn timed_out(&self) -> InferError {
        let text = format!("{} did not answer within {:?}: raise --timeout", self.address, self.timeout);
        InferError::new(Exit::Timeout, None, text)
    }

    fn check(
        &self,
        response: Result<http::Response<Bytes>, HttpError>,
    ) -> Result<(HeaderMap, Bytes), InferError> {
        let response = response.map_err(|error| match error {
            HttpError::Refused => self.unreachable(),
            HttpError::Timeout(_) => self.timed_out(),
            HttpError::Failed(why) => InferError::new(
                Exit::Unavailable,
                None,
                format!("connection to {} failed: {why}", self.address),
            ),
        })?;
        let (parts, body) = response.into_parts();
        if parts.status.is_success() {
            return Ok((parts.headers, body));
        }
        let exit = match parts.status {
            StatusCode::NOT_FOUND => Exit::NotFound,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY => {
                Exit::Unavailable
            }
            StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => Exit::Timeout,
            status if status.is_client_error() => Exit::Usage,
            _ => Exit::Failed,
        };
        let code = parts.status.as_u16().to_string();
        let text = error_text(parts.status, &body);
        Err(InferError { headers: parts.headers.into(), ..InferError::new(exit, Some(code), text) })
    }

    fn status_error(&self, status: &Status) -> InferError {
        let exit = match status.code() {
            Code::DeadlineExceeded if status.message().is_empty() => return self.timed_out(),
            Code::NotFound => Exit::NotFound,
            Code::InvalidArgument | Code::OutOfRange => Exit::Usage,
            Code::Unavailable | Code::ResourceExhausted => Exit::Unavailable,
            Code::DeadlineExceeded => Exit::Timeout,
            _ => Exit::Failed,
        };
        let code = format!("{:?}", status.code());
        let headers = status.metadata().clone().into_headers().into();
        InferError { headers, ..InferError::new(exit, Some(code), status.message()) }
    }
}

async fn with_timeout<T>(
    timeout: Duration,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    tokio::time::timeout(timeout, call).await.unwrap_or_else(|_| Err(Status::deadline_exceeded("")))
}

impl InferResponse {
    pub(super) fn json(&self) -> Result<Bytes, CommandError> {
        match &self.body {
            Body::Json(json) => Ok(json.clone()),
            Body::Message(message) => {
                let limits = Limits { body: usize::MAX, ..Limits::default() };
                let broken =
                    |e: &dyn std::fmt::Display| CommandError::failed(format!("invalid response: {e}"));
                let response = grpc::decode_response((**message).clone(), &limits).map_err(|e| broken(&e))?;
                rest::encode_response(&response, &InferRequest::default())
                    .map(|e| e.body)
                    .map_err(|e| broken(&e))
            }
        }
    }
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    inputs: Vec<TensorMetadata>,
    #[serde(default)]
    outputs: Vec<TensorMetadata>,
}

#[derive(Deserialize)]
struct TensorMetadata {
    name: String,
    datatype: String,
    #[serde(default)]
    shape: Vec<i64>,
}
