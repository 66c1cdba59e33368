//! The model behind REST or gRPC: the same questions, the same answers.

use super::{
    Mode,
    payload::{Input, Payload},
};
use crate::{
    client::{Address, Connection, HttpProblem, error_text},
    failure::{Exit, Failure},
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

/// Largest gRPC answer that is read.
const LARGEST: usize = 256 << 20;

/// A model, how it is reached, and what it is asked.
#[derive(Debug)]
pub(super) struct Target {
    address: Address,
    mode: Mode,
    model: String,
    headers: HeaderMap,
    deadline: Duration,
    rest: Connection,
    grpc: Option<GrpcInferenceServiceClient<Channel>>,
    json: Bytes,
    message: Option<pb::ModelInferRequest>,
}

/// What a model answered.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) headers: HeaderMap,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Json(Bytes),
    Message(Box<pb::ModelInferResponse>),
}

/// Why a model did not answer.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    exit: Exit,
    /// The code that came, if any did: `404`, `NotFound`.
    code: Option<String>,
    text: String,
    pub(super) headers: Box<HeaderMap>,
}

impl Trouble {
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

    /// The failure of a command that asked once.
    pub(super) fn failure(&self, model: &str) -> Failure {
        let text = match &self.code {
            Some(code) => format!("{model} answered {code}: {}", self.text),
            None => self.text.clone(),
        };
        Failure::new(self.exit, text)
    }
}

impl Target {
    pub(super) fn new(
        address: &Address,
        mode: Mode,
        model: &str,
        headers: &HeaderMap,
        deadline: Duration,
    ) -> Self {
        Self {
            address: address.clone(),
            mode,
            model: model.to_owned(),
            headers: headers.clone(),
            deadline,
            rest: Connection::new(address.clone(), deadline),
            grpc: None,
            json: Bytes::new(),
            message: None,
        }
    }

    /// The same target over a connection of its own.
    pub(super) fn another(&self) -> Self {
        Self {
            json: self.json.clone(),
            message: self.message.clone(),
            ..Self::new(&self.address, self.mode, &self.model, &self.headers, self.deadline)
        }
    }

    /// Sets what is asked. For gRPC the JSON is read here, so that mistakes in it are found before anything is sent.
    pub(super) fn set_payload(&mut self, payload: &Payload) -> Result<(), Failure> {
        self.json = payload.json.clone();
        if self.mode == Mode::Grpc {
            let limits = Limits { body: usize::MAX, ..Limits::default() };
            let mut request = rest::decode_request(self.json.clone(), None, &limits)
                .map_err(|e| Failure::usage(format!("DATA: {e}")))?;
            request.model_name.clone_from(&self.model);
            self.message = Some(grpc::encode_request(request));
        }
        Ok(())
    }

    /// The request's first line and headers, as `--show-headers` prints them.
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

    /// The inputs that the model takes.
    pub(super) async fn metadata(&mut self) -> Result<Vec<Input>, Trouble> {
        match self.mode {
            Mode::Rest => {
                let path = self.path("");
                let headers = self.headers.clone();
                let answer = self.rest.send(Method::GET, &path, &headers, Bytes::new()).await;
                let body = self.checked(answer)?.1;
                let metadata: Metadata = serde_json::from_slice(&body).map_err(|e| {
                    Trouble::new(Exit::Failed, None, format!("the model's metadata cannot be read: {e}"))
                })?;
                Ok(metadata
                    .inputs
                    .into_iter()
                    .map(|i| Input { name: i.name, datatype: i.datatype, shape: i.shape })
                    .collect())
            }
            Mode::Grpc => {
                let request = pb::ModelMetadataRequest { name: self.model.clone(), version: String::new() };
                let request = self.with_headers(request);
                let deadline = self.deadline;
                let mut client = self.client().await?;
                let answer = within(deadline, client.model_metadata(request)).await;
                let metadata = answer.map_err(|s| self.refused(&s))?.into_inner();
                Ok(metadata
                    .inputs
                    .into_iter()
                    .map(|i| Input { name: i.name, datatype: i.datatype, shape: i.shape })
                    .collect())
            }
        }
    }

    /// Asks the model.
    pub(super) async fn infer(&mut self) -> Result<Answer, Trouble> {
        match self.mode {
            Mode::Rest => {
                let path = self.path("/infer");
                let mut headers = self.headers.clone();
                headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
                let answer = self.rest.send(Method::POST, &path, &headers, self.json.clone()).await;
                let (headers, body) = self.checked(answer)?;
                Ok(Answer { headers, body: Body::Json(body) })
            }
            Mode::Grpc => {
                let request = self.with_headers(self.message.clone().unwrap_or_default());
                let deadline = self.deadline;
                let mut client = self.client().await?;
                let answer = within(deadline, client.model_infer(request)).await;
                let answer = answer.map_err(|s| self.refused(&s))?;
                let headers = answer.metadata().clone().into_headers();
                Ok(Answer { headers, body: Body::Message(Box::new(answer.into_inner())) })
            }
        }
    }

    fn with_headers<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        *request.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
        request
    }

    async fn client(&mut self) -> Result<GrpcInferenceServiceClient<Channel>, Trouble> {
        if let Some(client) = &self.grpc {
            return Ok(client.clone());
        }
        let endpoint = Endpoint::from_shared(self.address.url())
            .map_err(|e| Trouble::new(Exit::Usage, None, format!("--inference {}: {e}", self.address)))?
            .connect_timeout(self.deadline)
            .tcp_nodelay(true);
        let channel = endpoint.connect().await.map_err(|_| self.unreachable())?;
        let client = GrpcInferenceServiceClient::new(channel)
            .max_decoding_message_size(LARGEST)
            .max_encoding_message_size(LARGEST);
        self.grpc = Some(client.clone());
        Ok(client)
    }

    fn unreachable(&self) -> Trouble {
        let text = format!(
            "no gateway answers at {}: start one with `gantry up`, or name another with --inference",
            self.address
        );
        Trouble::new(Exit::Unavailable, None, text)
    }

    fn late(&self) -> Trouble {
        let text =
            format!("{} did not answer within {:?}: --timeout allows more", self.address, self.deadline);
        Trouble::new(Exit::Timeout, None, text)
    }

    fn checked(
        &self,
        answer: Result<http::Response<Bytes>, HttpProblem>,
    ) -> Result<(HeaderMap, Bytes), Trouble> {
        let answer = answer.map_err(|problem| match problem {
            HttpProblem::Refused => self.unreachable(),
            HttpProblem::Late(_) => self.late(),
            HttpProblem::Broken(why) => {
                Trouble::new(Exit::Unavailable, None, format!("{} broke off: {why}", self.address))
            }
        })?;
        let (parts, body) = answer.into_parts();
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
        Err(Trouble { headers: parts.headers.into(), ..Trouble::new(exit, Some(code), text) })
    }

    fn refused(&self, status: &Status) -> Trouble {
        let exit = match status.code() {
            Code::DeadlineExceeded if status.message().is_empty() => return self.late(),
            Code::NotFound => Exit::NotFound,
            Code::InvalidArgument | Code::OutOfRange => Exit::Usage,
            Code::Unavailable | Code::ResourceExhausted => Exit::Unavailable,
            Code::DeadlineExceeded => Exit::Timeout,
            _ => Exit::Failed,
        };
        let code = format!("{:?}", status.code());
        let headers = status.metadata().clone().into_headers().into();
        Trouble { headers, ..Trouble::new(exit, Some(code), status.message()) }
    }
}

async fn within<T>(deadline: Duration, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    tokio::time::timeout(deadline, call).await.unwrap_or_else(|_| Err(Status::deadline_exceeded("")))
}

impl Answer {
    /// The answer as JSON, whichever way it came.
    pub(super) fn json(&self) -> Result<Bytes, Failure> {
        match &self.body {
            Body::Json(json) => Ok(json.clone()),
            Body::Message(message) => {
                let limits = Limits { body: usize::MAX, ..Limits::default() };
                let broken =
                    |e: &dyn std::fmt::Display| Failure::failed(format!("the answer cannot be read: {e}"));
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
}

#[derive(Deserialize)]
struct TensorMetadata {
    name: String,
    datatype: String,
    #[serde(default)]
    shape: Vec<i64>,
}
