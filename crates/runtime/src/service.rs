//! REST and gRPC endpoints.

use crate::{
    InferenceError, Runtime,
    executor::{Loaded, rows_of},
    runtime::{metadata, prepare},
};
use bytes::Bytes;
use futures::future::BoxFuture;
use gantry_oip::{
    Code, Error, IndexEntry, InferRequest, InferResponse, InferTensor, ServerMetadata, grpc, rest, select,
    server::{self, INTERNAL_MODEL, InferenceServer, Reply},
};
use gantry_proto::inference as pb;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use prost::Message;
use std::{sync::Arc, time::Instant};

/// Larger bodies are decoded on the pool.
const INLINE_DECODE_MAX: usize = 64 << 10;

type Answer = Result<Response<Reply>, Error>;

impl InferenceServer for Runtime {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Response<Reply>> {
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path();
            let mut span = span(&self.config.tracer, path, &parts.headers);
            let answer = if let Some(method) = path.strip_prefix(grpc::SERVICE) {
                let answer = self.grpc(method, &parts.headers, body).await;
                answer.inspect_err(|e| span.fail(&e.message)).unwrap_or_else(|e| server::grpc_error(&e))
            } else {
                let answer = self.rest(&parts.method, path, &parts.headers, body).await;
                answer.inspect_err(|e| span.fail(&e.message)).unwrap_or_else(|e| server::rest_error(&e))
            };
            drop(span);
            answer
        })
    }
}

/// Health checks are not traced.
fn span(tracer: &gantry_trace::Tracer, path: &str, headers: &HeaderMap) -> gantry_trace::Span {
    let method = path.strip_prefix(grpc::SERVICE);
    if method.is_some_and(|m| m.starts_with("Server")) || path.starts_with("/v2/health/") {
        return gantry_trace::Span::default();
    }
    let what = || method.or_else(|| path.rsplit('/').next()).unwrap_or(path).to_owned();
    let mut span = tracer.server(headers, what);
    if span.is_recording()
        && let Some(model) = headers.get(INTERNAL_MODEL).and_then(|m| m.to_str().ok())
    {
        span.set("gantry.model", model.to_owned());
    }
    span
}

impl From<InferenceError> for Error {
    fn from(error: InferenceError) -> Self {
        let message = error.to_string();
        match error {
            InferenceError::Request(_) => Self::invalid(message),
            InferenceError::Model(_) => Self::internal(message),
            InferenceError::Busy { .. } => {
                Self { retry_after: Some(1), ..Self::new(Code::ResourceExhausted, message) }
            }
        }
    }
}

fn unknown_model(name: &str) -> Error {
    Error::not_found(format!("model {name} is not loaded"))
}

impl Runtime {
    /// The internal model header takes precedence over path and message.
    fn model(&self, headers: &HeaderMap, named: &str) -> Result<Arc<Loaded>, Error> {
        let name = headers.get(INTERNAL_MODEL).and_then(|v| v.to_str().ok()).unwrap_or(named);
        self.get(name).ok_or_else(|| unknown_model(name))
    }

    async fn rest(&self, method: &Method, path: &str, headers: &HeaderMap, body: Bytes) -> Answer {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let ok = |body: Bytes| Ok(server::json(StatusCode::OK, body));
        match (method.as_str(), parts.as_slice()) {
            ("POST", ["v2", "models", name, "infer"] | ["v2", "models", name, "versions", _, "infer"]) => {
                let model = self.model(headers, name)?;
                self.infer_rest(&model, headers, body).await
            }
            ("GET", ["v2", "models", "stats"]) => {
                let all: Vec<_> =
                    self.all().iter().map(|m| m.statistics.report(&m.name, &m.version)).collect();
                ok(rest::encode_statistics(&all))
            }
            ("GET", ["v2", "models", name] | ["v2", "models", name, "versions", _]) => {
                ok(rest::encode_model_metadata(&metadata(&*self.model(headers, name)?)))
            }
            ("GET", ["v2", "models", name, "ready"] | ["v2", "models", name, "versions", _, "ready"]) => {
                let model = self.model(headers, name)?;
                ok(format!("{{\"name\":\"{}\",\"ready\":true}}", model.name).into())
            }
            ("GET", ["v2", "models", name, "stats"] | ["v2", "models", name, "versions", _, "stats"]) => {
                let model = self.model(headers, name)?;
                ok(rest::encode_statistics(&[model.statistics.report(&model.name, &model.version)]))
            }
            ("GET", ["v2"]) => ok(rest::encode_server_metadata(&ServerMetadata::gantry())),
            ("GET", ["v2", "health", question @ ("live" | "ready")]) => {
                ok(format!("{{\"{question}\":true}}").into())
            }
            ("POST", ["v2", "repository", "index"]) => ok(rest::encode_index(&self.index())),
            ("POST", ["v2", "repository", "models", name, "load"]) => {
                self.load_by_name(name).await?;
                ok(Bytes::new())
            }
            ("POST", ["v2", "repository", "models", name, "unload"]) => {
                self.unload_by_name(name)?;
                ok(Bytes::new())
            }
            _ => Err(Error::not_found(format!("{method} {path} is not an OIP path"))),
        }
    }

    async fn infer_rest(&self, model: &Arc<Loaded>, headers: &HeaderMap, body: Bytes) -> Answer {
        let started = Instant::now();
        let answer = self.answer_rest(model, headers, body).await;
        model.statistics.record_request(answer.is_ok(), started.elapsed());
        answer
    }

    async fn answer_rest(&self, model: &Arc<Loaded>, headers: &HeaderMap, body: Bytes) -> Answer {
        let header_length = match headers.get(rest::HEADER_LENGTH) {
            None => None,
            Some(value) => {
                let length = value.to_str().ok().and_then(|v| v.trim().parse().ok());
                Some(
                    length
                        .ok_or_else(|| Error::invalid("Inference-Header-Content-Length is not a number"))?,
                )
            }
        };
        let encoding =
            rest::Encoding::parse(headers.get(header::CONTENT_ENCODING).map(http::HeaderValue::as_bytes))?;
        let limits = self.config.limits;
        let decode = move || {
            let body = rest::decompress(body, encoding, limits.body)?;
            rest::decode_request(body, header_length, &limits)
        };
        let request = self.run_inline_or_on_pool(headers, decode).await?;
        let (request, response) = self.infer(model, request).await?;
        Ok(server::inferred(rest::encode_response(&response, &request)?))
    }

    /// Runs small work inline, large work on the pool.
    async fn run_inline_or_on_pool<T: Send + 'static>(
        &self,
        headers: &HeaderMap,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let length = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|l| l <= INLINE_DECODE_MAX) {
            return work();
        }
        let (reply, answer) = tokio::sync::oneshot::channel();
        self.pool.submit(move || drop(reply.send(work())))?;
        answer.await.map_err(|_| Error::internal("the request could not be decoded"))?
    }

    /// Returns the request without inputs, too: encoding needs its output options.
    async fn infer(
        &self,
        model: &Arc<Loaded>,
        mut request: InferRequest,
    ) -> Result<(InferRequest, InferResponse), Error> {
        let inputs: Vec<_> = std::mem::take(&mut request.inputs).into_iter().map(|i| i.tensor).collect();
        let wanted: Vec<&str> = request.outputs.iter().map(|o| o.name.as_str()).collect();
        let tensors = if model.runs_inline(rows_of(&inputs)) {
            model.run(&inputs, &wanted)?
        } else {
            let wanted = wanted.into_iter().map(str::to_owned).collect();
            model.run_on_pool(inputs, wanted, &self.pool).await?
        };
        let outputs: Vec<InferTensor> = if request.outputs.is_empty() {
            tensors.into_iter().map(InferTensor::from).collect()
        } else {
            select(tensors, &request)?
        };
        let response = InferResponse {
            model_name: model.name.clone(),
            model_version: model.version.clone(),
            id: request.id.clone(),
            parameters: gantry_oip::Parameters::new(),
            outputs,
        };
        Ok((request, response))
    }

    async fn grpc(&self, method: &str, headers: &HeaderMap, body: Bytes) -> Answer {
        let encoding = headers.get("grpc-encoding").map(http::HeaderValue::as_bytes);
        let message = grpc::decode_frame(&body, encoding, self.config.limits.body)?;
        match method {
            "ModelInfer" => self.infer_grpc(headers, message).await,
            "ServerLive" => Ok(server::grpc_reply(&pb::ServerLiveResponse { live: true })),
            "ServerReady" => Ok(server::grpc_reply(&pb::ServerReadyResponse { ready: true })),
            "ServerMetadata" => {
                Ok(server::grpc_reply(&pb::ServerMetadataResponse::from(&ServerMetadata::gantry())))
            }
            "ModelReady" => {
                let request: pb::ModelReadyRequest = decode(message)?;
                let ready = self.model(headers, &request.name).is_ok();
                Ok(server::grpc_reply(&pb::ModelReadyResponse { ready }))
            }
            "ModelMetadata" => {
                let request: pb::ModelMetadataRequest = decode(message)?;
                let model = self.model(headers, &request.name)?;
                Ok(server::grpc_reply(&pb::ModelMetadataResponse::from(&metadata(&model))))
            }
            "ModelStatistics" => {
                let request: pb::ModelStatisticsRequest = decode(message)?;
                let all = if request.name.is_empty() && !headers.contains_key(INTERNAL_MODEL) {
                    self.all()
                } else {
                    vec![self.model(headers, &request.name)?]
                };
                let model_stats =
                    all.iter().map(|m| (&m.statistics.report(&m.name, &m.version)).into()).collect();
                Ok(server::grpc_reply(&pb::ModelStatisticsResponse { model_stats }))
            }
            "RepositoryIndex" => {
                let models = self.index().iter().map(Into::into).collect();
                Ok(server::grpc_reply(&pb::RepositoryIndexResponse { models }))
            }
            "RepositoryModelLoad" => {
                let request: pb::RepositoryModelLoadRequest = decode(message)?;
                self.load_by_name(&request.model_name).await?;
                Ok(server::grpc_reply(&pb::RepositoryModelLoadResponse {}))
            }
            "RepositoryModelUnload" => {
                let request: pb::RepositoryModelUnloadRequest = decode(message)?;
                self.unload_by_name(&request.model_name)?;
                Ok(server::grpc_reply(&pb::RepositoryModelUnloadResponse {}))
            }
            other => Err(Error::new(Code::Unimplemented, format!("unknown method {other}"))),
        }
    }

    async fn infer_grpc(&self, headers: &HeaderMap, message: Bytes) -> Answer {
        let named = grpc::peek_name(&message).unwrap_or_default().to_owned();
        let model = self.model(headers, &named)?;
        let started = Instant::now();
        let limits = self.config.limits;
        let large = message.len() > INLINE_DECODE_MAX;
        let decode = move || grpc::decode_request(decode::<pb::ModelInferRequest>(message)?, &limits);
        let decoded = async {
            if !large {
                return decode();
            }
            let (reply, answer) = tokio::sync::oneshot::channel();
            self.pool.submit(move || drop(reply.send(decode())))?;
            answer.await.map_err(|_| Error::internal("the request could not be decoded"))?
        };
        let answer = match decoded.await {
            Ok(request) => self.infer(&model, request).await,
            Err(error) => Err(error),
        };
        model.statistics.record_request(answer.is_ok(), started.elapsed());
        let (request, response) = answer?;
        Ok(server::grpc_reply(&grpc::encode_response(response, &request)))
    }

    fn index(&self) -> Vec<IndexEntry> {
        let entry = |name: &str, version: &str, state: &str| IndexEntry {
            name: name.to_owned(),
            version: version.to_owned(),
            state: state.to_owned(),
            reason: String::new(),
        };
        let mut entries: Vec<_> = self.all().iter().map(|m| entry(&m.name, &m.version, "READY")).collect();
        let folders = self.config.repository.as_deref().and_then(|r| std::fs::read_dir(r).ok());
        for folder in folders.into_iter().flatten().flatten() {
            let name = folder.file_name().to_string_lossy().into_owned();
            if folder.path().is_dir() && !entries.iter().any(|e| e.name == name) {
                entries.push(entry(&name, "", "UNAVAILABLE"));
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        entries
    }

    async fn load_by_name(&self, name: &str) -> Result<(), Error> {
        let Some(root) = &self.config.repository else {
            return Err(Error::new(Code::FailedPrecondition, "no model repository is configured"));
        };
        let plain = !name.is_empty() && !name.contains(['/', '\\', '\0']) && name != "." && name != "..";
        if !plain {
            return Err(Error::invalid(format!("\"{}\" is not a valid model name", name.escape_debug())));
        }
        let (name, path) = (name.to_owned(), root.join(name));
        let (reply, answer) = tokio::sync::oneshot::channel();
        let worker = self.config.onnx_worker.clone();
        self.pool.submit(move || drop(reply.send(prepare(&name, &path, [], worker.as_ref()))))?;
        let prepared = answer.await.map_err(|_| Error::internal("the model could not be loaded"))?;
        self.install(prepared.map_err(|e| Error::invalid(e.to_string()))?);
        Ok(())
    }

    fn unload_by_name(&self, name: &str) -> Result<(), Error> {
        if self.unload(name) { Ok(()) } else { Err(unknown_model(name)) }
    }
}

fn decode<M: Message + Default>(message: Bytes) -> Result<M, Error> {
    M::decode(message).map_err(|e| Error::invalid(format!("the message cannot be decoded: {e}")))
}
