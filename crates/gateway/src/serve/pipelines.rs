//! Requests of pipelines over REST and gRPC.

use super::{
    Worker,
    client::Exchange,
    destination::WantedPipeline,
    grpc, headers, local_response,
    path::Operation,
    request_body::{self, BodyLimits},
    rest::json_response,
};
use crate::{
    body::ResponseBody,
    pipeline::{Record, RunContext, StepTensor, execute, off_the_event_loop},
    policy::result_class::ResultClass,
    routes::{Attribution, Experiment, Pipeline},
};
use bytes::Bytes;
use gantry_oip::{
    Code, Error, InferRequest, InferResponse, InferTensor, Limits,
    grpc::{decode_frame, decode_request, encode_frame, encode_response},
    rest as oip_rest, select, server,
};
use gantry_proto::inference as pb;
use gantry_transport::{Protocol, deadline};
use http::{HeaderMap, HeaderName, HeaderValue, Response, header, request::Parts};
use hyper::body::Incoming;
use prost::Message as _;
use std::sync::Arc;
use tokio::time::Instant;

const PIPELINE_VERSION: HeaderName = HeaderName::from_static("x-pipeline-version");
/// Request: `true` returns a trace of the steps. Response: the trace as JSON.
const TRACE: HeaderName = HeaderName::from_static("x-gantry-trace");

/// The most that deflate can do.
const MAX_COMPRESSION: usize = 1032;

pub(super) struct PipelineRequest<'a> {
    pub(super) wanted: WantedPipeline,
    pub(super) sticky: Option<HeaderValue>,
    pub(super) request_id: HeaderValue,
    pub(super) exchange: &'a mut Exchange,
}

/// A request is recorded when it ends; by default as cancelled by the client.
struct Recorded<'a> {
    worker: &'a Worker,
    pipeline: Arc<Pipeline>,
    experiment: Option<Arc<Experiment>>,
    protocol: Protocol,
    started: Instant,
    code: u16,
    /// What the request counts for, if the pipeline has a rollout.
    attribution: Option<Attribution>,
    class: ResultClass,
}

impl Recorded<'_> {
    /// Counts the values of a request or a response, if they are observed.
    fn observe(&self, is_input: bool, tensors: &[InferTensor]) {
        let sample = self.attribution.as_ref().and_then(|attribution| attribution.sample.as_ref());
        if let Some(sample) = sample.filter(|sample| sample.is_input() == is_input) {
            sample.record(tensors);
        }
    }
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        let Self { worker, pipeline, experiment, protocol, started, code, attribution, class } = self;
        let took = started.elapsed();
        if let Some(attribution) = attribution {
            attribution.record(*class, Instant::now());
        }
        worker.shared.metrics.record_pipeline(&pipeline.metrics, *protocol, *code, took);
        if let Some(experiment) = experiment {
            experiment.record(&pipeline.name, *code != protocol.ok(), took);
        }
    }
}

impl Worker {
    pub(super) async fn rest_pipeline(
        self: &Arc<Self>,
        request: PipelineRequest<'_>,
        operation: Operation<'_>,
        parts: &Parts,
        body: &mut Incoming,
    ) -> Result<Response<ResponseBody>, Error> {
        let pipeline = Arc::clone(&request.wanted.pipeline);
        let mut response = match operation {
            Operation::Infer => {
                let started = Instant::now();
                let limits = BodyLimits {
                    client: &request.exchange.client,
                    protocol: Protocol::Rest,
                    max: self.shared.config.max_body,
                    deadline: deadline(started, self.shared.config.request_timeout),
                };
                let body = self.read_body(body, &limits).await?;
                let deadline = limits.deadline;
                return self.infer_pipeline(request, Protocol::Rest, parts, body, started, deadline).await;
            }
            Operation::Ready if pipeline.ready => {
                json_response(serde_json::json!({ "name": &*pipeline.name, "ready": true }).to_string())
            }
            Operation::Ready => return Err(not_ready(&pipeline)),
            Operation::Metadata => json_response(
                serde_json::json!({
                    "name": &*pipeline.name,
                    "versions": [pipeline.version.to_string()],
                    "platform": "pipeline",
                    "inputs": [],
                    "outputs": [],
                })
                .to_string(),
            ),
            _ => {
                return Err(Error::not_found("a pipeline has infer, ready and metadata only"));
            }
        };
        response.headers_mut().insert(headers::ROUTE, pipeline.route_header.clone());
        Ok(response)
    }

    pub(super) async fn grpc_pipeline(
        self: &Arc<Self>,
        request: PipelineRequest<'_>,
        method: &str,
        parts: &Parts,
        framed: Bytes,
        deadline: Instant,
    ) -> Result<Response<ResponseBody>, Error> {
        let pipeline = &request.wanted.pipeline;
        match method {
            "ModelInfer" => {
                self.infer_pipeline(request, Protocol::Grpc, parts, framed, Instant::now(), deadline).await
            }
            "ModelReady" => Ok(grpc::reply(&pb::ModelReadyResponse { ready: pipeline.ready })),
            "ModelMetadata" => Ok(grpc::reply(&pb::ModelMetadataResponse {
                name: pipeline.name.to_string(),
                versions: vec![pipeline.version.to_string()],
                platform: "pipeline".to_owned(),
                ..Default::default()
            })),
            _ => Err(Error::new(Code::Unimplemented, format!("pipelines do not support {method}"))),
        }
    }

    async fn infer_pipeline(
        self: &Arc<Self>,
        request: PipelineRequest<'_>,
        protocol: Protocol,
        parts: &Parts,
        body: Bytes,
        started: Instant,
        deadline: Instant,
    ) -> Result<Response<ResponseBody>, Error> {
        let PipelineRequest { wanted: WantedPipeline { pipeline, experiment }, sticky, .. } = request;
        let pipeline = pipeline.pick(|| fastrand::u64(..));
        let code = if protocol == Protocol::Grpc { 1 } else { 499 };
        let mut recorded = Recorded {
            worker: self,
            pipeline: Arc::clone(&pipeline),
            experiment: experiment.clone(),
            protocol,
            started,
            code,
            attribution: pipeline.attribute(),
            class: ResultClass::of(protocol, code),
        };
        let mut record = Record::default();
        let mut context = None;
        let run = async {
            request.exchange.admitted = Some(self.admit(&request.exchange.client, protocol)?);
            let graph = pipeline.graph.as_ref().map_err(|reason| {
                Error::unavailable(format!("pipeline {} is not served: {reason}", pipeline.name), 1)
            })?;
            let memory = &request.exchange.client.memory;
            let exhausted = |_| request_body::memory_exhausted(protocol);
            let is_compressed = match protocol {
                Protocol::Rest => parts.headers.contains_key(header::CONTENT_ENCODING),
                Protocol::Grpc => body.first() == Some(&1),
            };
            let mut bytes = body.len();
            let mut inflated = None;
            if is_compressed {
                bytes = bytes.saturating_mul(MAX_COMPRESSION).min(self.shared.config.max_body);
                inflated = memory.hold(bytes).map_err(exhausted)?;
            }
            let mut decoded = self.decode(protocol, parts, body, bytes).await?;
            drop(inflated);
            recorded.observe(true, &decoded.inputs);
            let inputs = StepTensor::hold(std::mem::take(&mut decoded.inputs), memory).map_err(exhausted)?;
            let run = Arc::new(RunContext {
                worker: Arc::clone(self),
                pipeline: Arc::clone(&pipeline),
                graph: Arc::clone(graph),
                request_id: request.request_id,
                sticky,
                forwarded: forwarded(&parts.headers),
                trace: self.shared.config.tracer.context(&parts.headers),
                parameters: std::mem::take(&mut decoded.parameters),
                memory: Arc::clone(memory),
                started,
                deadline,
                hops: 0,
                durable: false,
            });
            if let Some(experiment) = &experiment {
                self.mirror_pipeline(experiment, &run, &inputs);
            }
            context = Some(Arc::clone(&run));
            let outputs = execute(&run, inputs, &mut record).await?;
            recorded.observe(false, &outputs);
            respond(protocol, decoded, outputs).await
        };
        let result = run.await;
        recorded.code = match &result {
            Ok(_) => protocol.ok(),
            Err(error) => protocol.code(error),
        };
        let error = result.as_ref().err().cloned();
        recorded.class = record.result_class(protocol, error.as_ref());
        let mut response = result.unwrap_or_else(|error| local_response::error(&error, protocol));
        let headers = response.headers_mut();
        for route in record.routes() {
            headers.append(headers::ROUTE, route);
        }
        headers.append(headers::ROUTE, pipeline.route_header.clone());
        headers.insert(PIPELINE_VERSION, HeaderValue::from(pipeline.version));
        if parts.headers.get(TRACE).is_some_and(|trace| trace == "true")
            && let Some(trace) = record.trace(&pipeline.name, pipeline.version, started.elapsed())
        {
            headers.insert(TRACE, trace);
        }
        if let Some(context) = context {
            pipeline.recent.keep(&context, record, error.as_ref());
        }
        Ok(response)
    }

    /// `bytes` limits the size after decompression.
    async fn decode(
        &self,
        protocol: Protocol,
        parts: &Parts,
        body: Bytes,
        bytes: usize,
    ) -> Result<InferRequest, Error> {
        let limits = Limits { body: self.shared.config.max_body, ..Limits::default() };
        match protocol {
            Protocol::Rest => {
                let length = oip_rest::header_length(&parts.headers)?;
                let encoding = oip_rest::Encoding::of(&parts.headers)?;
                off_the_event_loop(bytes, move || {
                    let body = oip_rest::decompress(body, encoding, limits.body)?;
                    oip_rest::decode_request(body, length, &limits)
                })
                .await
            }
            Protocol::Grpc => {
                let encoding = parts.headers.get("grpc-encoding").cloned();
                off_the_event_loop(bytes, move || {
                    let encoding = encoding.as_ref().map(HeaderValue::as_bytes);
                    let message = pb::ModelInferRequest::decode(decode_frame(&body, encoding, limits.body)?);
                    let message = message
                        .map_err(|e| Error::invalid(format!("the message is not valid protobuf: {e}")))?;
                    decode_request(message, &limits)
                })
                .await
            }
        }
    }
}

fn not_ready(pipeline: &Pipeline) -> Error {
    let reason = match &pipeline.graph {
        Err(reason) => reason,
        Ok(_) => &pipeline.reason,
    };
    Error::new(Code::NotReady, format!("pipeline {} is not ready: {reason}", pipeline.name))
}

/// The client's `x-…` headers, as in Seldon, without those that route this request.
fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let is_routing = |name: &HeaderName| *name == headers::ROUTE || *name == TRACE;
    let kept = headers.iter().filter(|(name, _)| name.as_str().starts_with("x-") && !is_routing(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Encodes the outputs in the form that the request wants; those that it names, if it names some.
async fn respond(
    protocol: Protocol,
    mut request: InferRequest,
    outputs: Vec<InferTensor>,
) -> Result<Response<ResponseBody>, Error> {
    let bytes = outputs.iter().map(|output| output.tensor.elements().raw_len()).sum();
    off_the_event_loop(bytes, move || {
        // A step that did not run has no outputs.
        request.outputs.retain(|o| outputs.iter().any(|output| output.tensor.name() == o.name));
        let outputs = if request.outputs.is_empty() {
            outputs
        } else {
            select(outputs.into_iter().map(|output| output.tensor).collect(), &request)?
        };
        let id = std::mem::take(&mut request.id);
        let response = InferResponse { id, outputs, ..InferResponse::default() };
        Ok(local_response::from_reply(match protocol {
            Protocol::Rest => server::inferred(oip_rest::encode_response(&response, &request)?),
            Protocol::Grpc => server::grpc_frame(encode_frame(&encode_response(response, &request))),
        }))
    })
    .await
}
