//! REST and gRPC endpoints.

use crate::{
    InferenceError, Runtime,
    executor::{Loaded, elements_of},
    memory::{MemoryBudget, Reserved},
    runtime::{metadata, prepare},
};
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use gantry_oip::{
    Code, Error, IndexEntry, InferRequest, InferResponse, InferTensor, ServerMetadata, grpc, rest, select,
    server::{self, INTERNAL_MODEL, InferenceServer, Reply},
    v1,
};
use gantry_proto::inference as pb;
use gantry_tensor::{CancelToken, Elements, Tensor};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use prost::Message;
use std::{panic::AssertUnwindSafe, sync::Arc, time::Instant};

/// Larger bodies are decoded, larger outputs encoded on the pool.
const INLINE_MAX_BYTES: usize = 64 << 10;
/// Outputs with more elements are classified and encoded on the pool.
const INLINE_MAX_ELEMENTS: usize = 4 << 10;
/// Memory of a decoded request, in bytes of its body; until it is decoded.
const DECODED_FACTOR: usize = 4;
/// The best that deflate can do.
const MAX_COMPRESSION: usize = 1032;

type Answer = Result<Response<Reply>, Error>;
/// From the response to the answer of a caller: encoded, or as it is.
type Encode<A> = fn(InferResponse, &InferRequest) -> Result<A, Error>;

/// A request whose body is decoded where it runs, unless it is small.
enum Received {
    Small(InferRequest),
    Large {
        /// Limit of the decompressed body.
        bytes: usize,
        decode: Box<dyn FnOnce() -> Result<InferRequest, Error> + Send>,
    },
}

impl Received {
    fn large(bytes: usize, decode: impl FnOnce() -> Result<InferRequest, Error> + Send + 'static) -> Self {
        Self::Large { bytes, decode: Box::new(decode) }
    }
}

impl InferenceServer for Runtime {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Response<Reply>> {
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path();
            let is_grpc = path.starts_with(grpc::SERVICE);
            let mut span = span(&self.config.tracer, path, &parts.headers);
            let answering = async {
                match path.strip_prefix(grpc::SERVICE) {
                    Some(method) => self.grpc(method, &parts.headers, body).await,
                    None => self.rest(&parts.method, path, &parts.headers, body).await,
                }
            };
            // A panic fails its request only.
            let answer = AssertUnwindSafe(answering).catch_unwind().await.unwrap_or_else(|_| {
                tracing::error!(path, "request panicked");
                Err(Error::internal("the request panicked; see the log"))
            });
            answer.unwrap_or_else(|error| {
                span.fail(&error.message);
                if is_grpc { server::grpc_error(&error) } else { server::rest_error(&error) }
            })
        })
    }

    fn infer(
        &self,
        request: InferRequest,
        headers: HeaderMap,
    ) -> BoxFuture<'_, Result<InferResponse, Error>> {
        Box::pin(async move {
            let mut span = self.config.tracer.server(&headers, || "infer".to_owned());
            if span.is_recording() {
                span.set("gantry.model", request.model_name.clone());
            }
            let answering = AssertUnwindSafe(self.infer_values(request)).catch_unwind();
            let answer = answering.await.unwrap_or_else(|_| {
                tracing::error!("request panicked");
                Err(Error::internal("the request panicked; see the log"))
            });
            if let Err(error) = &answer {
                span.fail(&error.message);
            }
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
            InferenceError::Cancelled => Self::new(Code::DeadlineExceeded, message),
            InferenceError::Unavailable(_) => {
                Self { retry_after: Some(1), ..Self::new(Code::Unavailable, message) }
            }
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
            ("GET", [""]) => ok(Bytes::from_static(b"{\"status\":\"alive\"}")),
            ("GET", ["v1", "models"]) => {
                let mut names: Vec<String> = self.all().iter().map(|m| m.name.clone()).collect();
                names.sort_unstable();
                ok(v1::encode_names(&names))
            }
            ("GET", ["v1", "models", name]) if !name.contains(':') => {
                let model = self.model(headers, name)?;
                ok(format!("{{\"name\":\"{}\",\"ready\":true}}", model.name).into())
            }
            ("POST", ["v1", "models", named]) if named.ends_with(":predict") => {
                let model = self.model(headers, named.strip_suffix(":predict").unwrap_or(named))?;
                self.predict(&model, headers, body).await
            }
            ("POST", ["v1", "models", named]) if named.ends_with(":explain") => {
                let model = self.model(headers, named.strip_suffix(":explain").unwrap_or(named))?;
                Err(Error::new(Code::Unimplemented, format!("model {} has no explainer", model.name)))
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

    async fn infer_values(&self, mut request: InferRequest) -> Result<InferResponse, Error> {
        let started = Instant::now();
        let name = std::mem::take(&mut request.model_name);
        let model = self.get(&name).ok_or_else(|| unknown_model(&name))?;
        let answer = self.infer(&model, Received::Small(request), |response, _| Ok(response)).await;
        model.statistics.record_request(answer.is_ok(), started.elapsed());
        answer
    }

    async fn infer_rest(&self, model: &Arc<Loaded>, headers: &HeaderMap, body: Bytes) -> Answer {
        let started = Instant::now();
        let answer = match self.receive_rest(headers, body) {
            Ok(received) => self.infer(model, received, encode_rest).await,
            Err(error) => Err(error),
        };
        model.statistics.record_request(answer.is_ok(), started.elapsed());
        answer
    }

    /// Inference in the V1 protocol.
    async fn predict(&self, model: &Arc<Loaded>, headers: &HeaderMap, body: Bytes) -> Answer {
        let started = Instant::now();
        let (limits, this) = (self.config.limits, model.clone());
        let decode = move |body| v1::decode_request(body, this.model.inputs(), &limits);
        let answer = match self.receive(headers, body, decode) {
            Ok(received) => self.infer(model, received, encode_v1).await,
            Err(error) => Err(error),
        };
        model.statistics.record_request(answer.is_ok(), started.elapsed());
        answer
    }

    fn receive_rest(&self, headers: &HeaderMap, body: Bytes) -> Result<Received, Error> {
        let (limits, header_length) = (self.config.limits, rest::header_length(headers)?);
        self.receive(headers, body, move |body| rest::decode_request(body, header_length, &limits))
    }

    /// `decode` gets the decompressed body.
    fn receive(
        &self,
        headers: &HeaderMap,
        body: Bytes,
        decode: impl FnOnce(Bytes) -> Result<InferRequest, Error> + Send + 'static,
    ) -> Result<Received, Error> {
        let encoding = rest::Encoding::of(headers)?;
        let limits = self.config.limits;
        let bytes = expanded(body.len(), encoding != rest::Encoding::Identity, limits.body);
        if body.len() <= INLINE_MAX_BYTES {
            if encoding == rest::Encoding::Identity {
                return decode(body).map(Received::Small);
            }
            let limit = INLINE_MAX_BYTES.min(limits.body);
            match rest::decompress(body.clone(), encoding, limit) {
                Err(error) if error.code == Code::PayloadTooLarge => {}
                plain => return decode(plain?).map(Received::Small),
            }
        }
        Ok(Received::large(bytes, move || decode(rest::decompress(body, encoding, limits.body)?)))
    }

    /// Decodes, runs and encodes: on the calling thread what is short, the rest on the pool, in one job if possible.
    async fn infer<A: Send + 'static>(
        &self,
        model: &Arc<Loaded>,
        received: Received,
        encode: Encode<A>,
    ) -> Result<A, Error> {
        let (mut request, _reserved) = match received {
            Received::Small(request) => (request, None),
            Received::Large { bytes, decode } if model.batches() => {
                let memory = self.memory.clone();
                let decoding = self.on_pool(model, move |_| {
                    let (request, reserved) = decode_large(&memory, bytes, decode)?;
                    Ok((request, Some(reserved)))
                });
                decoding.await?
            }
            Received::Large { bytes, decode } => {
                let (this, memory) = (model.clone(), self.memory.clone());
                let running = self.on_pool(model, move |cancel| {
                    let (mut request, _reserved) = decode_large(&memory, bytes, decode)?;
                    let inputs = take_inputs(&mut request);
                    run_and_encode(&this, &inputs, &request, encode, cancel)
                });
                return running.await;
            }
        };
        let inputs = take_inputs(&mut request);
        let tensors = if model.runs_inline(&inputs) {
            self.pool.note_use(&model.queue);
            model.run(&inputs, &wanted(&request), model.queue.closed())
        } else if let Some(batcher) = model.batcher(&wanted(&request)) {
            match batcher.enqueue(inputs) {
                Ok(waiting) => waiting.answer(|| model.submit_batch(&self.pool)).await,
                Err(error) => Err(error),
            }
        } else {
            let this = model.clone();
            let running =
                self.on_pool(model, move |cancel| run_and_encode(&this, &inputs, &request, encode, cancel));
            return running.await;
        };
        let tensors = tensors.map_err(|e| failed(model, e))?;
        let small = elements_of(&tensors) <= INLINE_MAX_ELEMENTS
            && tensors.iter().map(|t| t.elements().raw_len()).sum::<usize>() <= INLINE_MAX_BYTES;
        if small {
            return respond(model, &request, tensors, encode);
        }
        let this = model.clone();
        self.on_pool(model, move |_| respond(&this, &request, tensors, encode)).await
    }

    /// Dropping the future cancels the work.
    async fn on_pool<T: Send + 'static>(
        &self,
        model: &Loaded,
        work: impl FnOnce(&CancelToken) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.pool.run(&model.queue, work).await.map_err(|e| failed(model, e))?
    }

    async fn grpc(&self, method: &str, headers: &HeaderMap, body: Bytes) -> Answer {
        if method == "ModelInfer" {
            return self.infer_grpc(headers, body).await;
        }
        let encoding = headers.get("grpc-encoding").map(http::HeaderValue::as_bytes);
        let message = grpc::decode_frame(&body, encoding, INLINE_MAX_BYTES)?;
        match method {
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

    async fn infer_grpc(&self, headers: &HeaderMap, body: Bytes) -> Answer {
        let started = Instant::now();
        let encoding = headers.get("grpc-encoding").map(http::HeaderValue::as_bytes);
        let model = if headers.contains_key(INTERNAL_MODEL) {
            self.model(headers, "")?
        } else {
            self.model(headers, &grpc::peek_frame_name(&body, encoding, INLINE_MAX_BYTES)?)?
        };
        let answer = match self.receive_grpc(encoding, body) {
            Ok(received) => self.infer(&model, received, encode_grpc).await,
            Err(error) => Err(error),
        };
        model.statistics.record_request(answer.is_ok(), started.elapsed());
        answer
    }

    fn receive_grpc(&self, encoding: Option<&[u8]>, body: Bytes) -> Result<Received, Error> {
        let limits = self.config.limits;
        let decode = move |message| grpc::decode_request(decode::<pb::ModelInferRequest>(message)?, &limits);
        let bytes = expanded(body.len(), body.first() == Some(&1), limits.body);
        if body.len() <= INLINE_MAX_BYTES + grpc::PREFIX {
            match grpc::decode_frame(&body, encoding, INLINE_MAX_BYTES.min(limits.body)) {
                Err(error) if error.code == Code::PayloadTooLarge => {}
                message => return decode(message?).map(Received::Small),
            }
        }
        let encoding = encoding.map(<[u8]>::to_vec);
        Ok(Received::large(bytes, move || {
            decode(grpc::decode_frame(&body, encoding.as_deref(), limits.body)?)
        }))
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
        let config = self.config.clone();
        let preparing = self.pool.run(&self.loads, move |_| prepare(&name, &path, [], &config));
        let prepared = preparing.await?;
        self.install(prepared.map_err(|e| Error::invalid(e.to_string()))?);
        Ok(())
    }

    fn unload_by_name(&self, name: &str) -> Result<(), Error> {
        if self.unload(name) { Ok(()) } else { Err(unknown_model(name)) }
    }
}

/// Limit of the size after decompression.
fn expanded(length: usize, compressed: bool, limit: usize) -> usize {
    if compressed { length.saturating_mul(MAX_COMPRESSION).min(limit) } else { length }
}

fn decode_large(
    memory: &MemoryBudget,
    bytes: usize,
    decode: Box<dyn FnOnce() -> Result<InferRequest, Error> + Send>,
) -> Result<(InferRequest, Reserved), Error> {
    let Some(mut reserved) = memory.reserve(bytes.saturating_mul(DECODED_FACTOR)) else {
        let message = format!(
            "the runtime is busy: large requests in flight need all of the {} MiB for them: retry in 1 s",
            memory.total() >> 20
        );
        return Err(Error { retry_after: Some(1), ..Error::new(Code::ResourceExhausted, message) });
    };
    let request = decode()?;
    reserved.shrink(request.inputs.iter().map(|i| memory_of(&i.tensor)).sum());
    Ok((request, reserved))
}

fn memory_of(tensor: &Tensor) -> usize {
    let handles = match tensor.elements() {
        Elements::Bytes(elements) => elements.len() * size_of::<Bytes>(),
        _ => 0,
    };
    tensor.elements().raw_len() + handles
}

fn take_inputs(request: &mut InferRequest) -> Vec<Tensor> {
    std::mem::take(&mut request.inputs).into_iter().map(|i| i.tensor).collect()
}

fn wanted(request: &InferRequest) -> Vec<&str> {
    request.outputs.iter().map(|o| o.name.as_str()).collect()
}

fn run_and_encode<A>(
    model: &Loaded,
    inputs: &[Tensor],
    request: &InferRequest,
    encode: Encode<A>,
    cancel: &CancelToken,
) -> Result<A, Error> {
    let tensors = model.run(inputs, &wanted(request), cancel).map_err(|e| failed(model, e))?;
    respond(model, request, tensors, encode)
}

fn respond<A>(
    model: &Loaded,
    request: &InferRequest,
    tensors: Vec<Tensor>,
    encode: Encode<A>,
) -> Result<A, Error> {
    let outputs: Vec<InferTensor> = if request.outputs.is_empty() {
        tensors.into_iter().map(InferTensor::from).collect()
    } else {
        select(tensors, request)?
    };
    let response = InferResponse {
        model_name: model.name.clone(),
        model_version: model.version.clone(),
        id: request.id.clone(),
        parameters: gantry_oip::Parameters::new(),
        outputs,
    };
    encode(response, request)
}

#[expect(clippy::needless_pass_by_value, reason = "the type of encode_grpc")]
fn encode_rest(response: InferResponse, request: &InferRequest) -> Answer {
    Ok(server::inferred(rest::encode_response(&response, request)?))
}

#[expect(clippy::needless_pass_by_value, reason = "the type of encode_grpc")]
fn encode_v1(response: InferResponse, _: &InferRequest) -> Answer {
    Ok(server::json(StatusCode::OK, v1::encode_response(&response.outputs)?))
}

#[expect(clippy::unnecessary_wraps, reason = "the type of encode_rest")]
fn encode_grpc(response: InferResponse, request: &InferRequest) -> Answer {
    Ok(server::grpc_reply(&grpc::encode_response(response, request)))
}

fn failed(model: &Loaded, error: InferenceError) -> Error {
    if error == InferenceError::Cancelled && model.queue.closed().is_cancelled() {
        return Error::unavailable(format!("model {} was unloaded", model.name), 1);
    }
    error.into()
}

fn decode<M: Message + Default>(message: Bytes) -> Result<M, Error> {
    M::decode(message).map_err(|e| Error::invalid(format!("the message cannot be decoded: {e}")))
}
