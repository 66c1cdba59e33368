//! V1 requests: converted to the Open Inference Protocol by the model's metadata, and their responses back. In between
//! they are like all others, for every kind of server.

use super::{
    Worker,
    destination::Wanted,
    forward::{Call, Head, Target},
    headers,
    mirror::Original,
    request_body,
};
use crate::{
    body::ResponseBody,
    pipeline::{decode_response, off_the_event_loop},
    routes::InFlightRequest,
};
use bytes::Bytes;
use gantry_oip::{Code, Error, InferRequest, Limits, rest, server, v1};
use gantry_tensor::{DataType, TensorSpec};
use gantry_transport::{
    Protocol,
    body::Payload,
    memory::{ConnectionMemory, Held},
};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use std::sync::Arc;
use tokio::time::Instant;

/// Size of a model's metadata.
const MAX_METADATA: usize = 1 << 20;
/// Memory of a decoded request, in bytes of its body; while it is converted.
const DECODED_FACTOR: usize = 4;
/// The best that deflate can do.
const MAX_COMPRESSION: usize = 1032;
/// Selections of a replica until one has a version with known metadata. Each makes those of one version known.
const MAX_SELECTIONS: usize = 4;

/// A V1 request between its arrival and its response.
pub(super) struct V1Request {
    pub(super) sticky: Option<HeaderValue>,
    pub(super) request_id: HeaderValue,
    pub(super) memory: Arc<ConnectionMemory>,
    pub(super) started: Instant,
    pub(super) deadline: Instant,
    /// A client's request, and not the step of a graph.
    pub(super) is_admitted: bool,
}

/// The prediction of a model.
pub(super) struct Prediction<'a> {
    pub(super) wanted: Wanted<'a>,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) query: Option<&'a str>,
    pub(super) trace: Option<gantry_trace::SpanContext>,
    /// The step of a graph that makes the call.
    pub(super) step: Option<Arc<str>>,
}

impl Worker {
    /// Converts the request for a replica, and its response back.
    pub(super) async fn predict(
        self: &Arc<Self>,
        prediction: Prediction<'_>,
        request: &V1Request,
    ) -> Result<Response<ResponseBody>, Error> {
        let Prediction { wanted, mut headers, body, query, trace, step } = prediction;
        let (sticky, deadline) = (request.sticky.as_ref(), request.deadline);
        let in_flight = self.acquire_or_wake(wanted, sticky, Protocol::Rest, deadline).await?;
        let (mut in_flight, inputs) = self.with_inputs(in_flight, request).await?;
        let is_local = in_flight.endpoint.local().is_some();
        let body = self.v1_request(request, inputs, &mut headers, body, is_local).await?;
        let request_id = request.request_id.clone();
        let original =
            Original { protocol: Protocol::Rest, headers: &headers, request_id: &request_id, body: &body };
        self.mirror_all(&mut in_flight, &original);
        let call = Call {
            model: Arc::clone(&in_flight.version.model),
            sticky: request.sticky.clone(),
            version: None,
            sequence: None,
            protocol: Protocol::Rest,
            infer: true,
            started: request.started,
            deadline,
            trace,
            step,
            is_component: false,
        };
        let target = Target::Rest { tail: "/infer", query, infer: true };
        let head = Head { method: Method::POST, headers, request_id };
        let answer = self.forward(&call, in_flight, &target, head, Payload::Whole(body)).await?;
        self.v1_response(request, answer).await
    }

    /// The inputs of the selected version. They are read once per version, by a request of their own to its replica.
    async fn with_inputs(
        self: &Arc<Self>,
        mut in_flight: InFlightRequest,
        request: &V1Request,
    ) -> Result<(InFlightRequest, Arc<[TensorSpec]>), Error> {
        for _ in 0..MAX_SELECTIONS {
            let version = Arc::clone(&in_flight.version);
            if let Some(inputs) = version.inputs.get() {
                return Ok((in_flight, Arc::clone(inputs)));
            }
            let experiment = in_flight.experiment.clone();
            let inputs = self.inputs(in_flight, request).await?;
            version.inputs.get_or_init(|| inputs);
            let wanted = Wanted { is_admitted: request.is_admitted, ..Wanted::new(&version.model) };
            let wanted = wanted.with_version(true);
            in_flight = self
                .acquire_or_wake(wanted, request.sticky.as_ref(), Protocol::Rest, request.deadline)
                .await?;
            in_flight.experiment = experiment;
        }
        Err(Error::unavailable("the model changes too often: retry in 1 s", 1))
    }

    /// Empty if the server has no metadata.
    async fn inputs(
        self: &Arc<Self>,
        in_flight: InFlightRequest,
        request: &V1Request,
    ) -> Result<Arc<[TensorSpec]>, Error> {
        let call = Call {
            model: Arc::clone(&in_flight.version.model),
            sticky: None,
            version: Some(in_flight.version.number),
            sequence: None,
            protocol: Protocol::Rest,
            infer: false,
            started: request.started,
            deadline: request.deadline,
            trace: None,
            step: None,
            is_component: false,
        };
        let head =
            Head { method: Method::GET, headers: HeaderMap::new(), request_id: request.request_id.clone() };
        let target = Target::Rest { tail: "", query: None, infer: false };
        let response = self.forward(&call, in_flight, &target, head, Payload::Whole(Bytes::new())).await?;
        let status = response.status();
        let collecting = Limited::new(response.into_body(), MAX_METADATA).collect();
        let failed = |cause: &str| {
            Error::unavailable(format!("the metadata of model {} cannot be read: {cause}", call.model), 1)
        };
        let collected = tokio::time::timeout_at(request.deadline, collecting)
            .await
            .map_err(|_| failed("its server did not respond in time"))?
            .map_err(|error| failed(&error.to_string()))?;
        match status {
            StatusCode::OK => Ok(parse_inputs(&collected.to_bytes()).into()),
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => {
                Ok(Arc::default())
            }
            other => Err(failed(&format!("its server responded with {other}"))),
        }
    }

    /// The request in the form for this replica: binary in process, JSON for any other server.
    async fn v1_request(
        &self,
        request: &V1Request,
        inputs: Arc<[TensorSpec]>,
        headers: &mut HeaderMap,
        body: Bytes,
        is_local: bool,
    ) -> Result<Bytes, Error> {
        let limits = Limits { body: self.shared.config.max_body, ..Limits::default() };
        let encoding = rest::Encoding::of(headers)?;
        let mut bytes = body.len();
        if encoding != rest::Encoding::Identity {
            bytes = bytes.saturating_mul(MAX_COMPRESSION).min(limits.body);
        }
        let held = hold(&request.memory, bytes.saturating_mul(DECODED_FACTOR))?;
        let convert = move || {
            let body = rest::decompress(body, encoding, limits.body)?;
            let decoded = v1::decode_request(body, &inputs, &limits)?;
            rest::encode_request(&InferRequest { binary_data_output: is_local, ..decoded }, is_local)
        };
        let encoded = off_the_event_loop(bytes, convert).await?;
        drop(held);
        let stale = [header::CONTENT_ENCODING, header::CONTENT_LENGTH, header::ACCEPT_ENCODING];
        for name in stale {
            headers.remove(name);
        }
        headers.remove(rest::HEADER_LENGTH);
        encoded.set_headers(headers);
        Ok(request.memory.charge(encoded.body))
    }

    /// The outputs as predictions; errors are alike in both protocols.
    async fn v1_response(
        &self,
        request: &V1Request,
        response: Response<ResponseBody>,
    ) -> Result<Response<ResponseBody>, Error> {
        if response.status() != StatusCode::OK {
            return Ok(response);
        }
        let route = response.headers().get(headers::ROUTE).cloned();
        let limits = Limits { body: self.shared.config.max_body, ..Limits::default() };
        let decoding = decode_response(Protocol::Rest, response, limits, &request.memory);
        let timed_out = |_| Error::new(Code::DeadlineExceeded, "the model did not respond in time");
        let outputs = tokio::time::timeout_at(request.deadline, decoding).await.map_err(timed_out)??.outputs;
        let bytes = outputs.iter().map(|output| output.tensor.elements().raw_len()).sum();
        let held = hold(&request.memory, bytes)?;
        let body = off_the_event_loop(bytes, move || v1::encode_response(&outputs)).await?;
        drop(held);
        let mut response = super::local_response::from_reply(server::json(StatusCode::OK, body));
        response.headers_mut().extend(route.map(|route| (headers::ROUTE, route)));
        Ok(response)
    }
}

fn hold(memory: &Arc<ConnectionMemory>, bytes: usize) -> Result<Option<Held>, Error> {
    memory.hold(bytes).map_err(|_| request_body::memory_exhausted(Protocol::Rest))
}

/// Metadata with an unknown datatype counts as missing.
fn parse_inputs(metadata: &[u8]) -> Vec<TensorSpec> {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(metadata).ok();
    let inputs = parsed.as_ref().and_then(|fields| fields.get("inputs")?.as_array());
    let spec = |input: &serde_json::Value| {
        Some(TensorSpec {
            name: input.get("name")?.as_str()?.to_owned(),
            datatype: DataType::parse(input.get("datatype")?.as_str()?)?,
            shape: input
                .get("shape")?
                .as_array()?
                .iter()
                .map(serde_json::Value::as_i64)
                .collect::<Option<_>>()?,
        })
    };
    inputs.and_then(|inputs| inputs.iter().map(spec).collect()).unwrap_or_default()
}
