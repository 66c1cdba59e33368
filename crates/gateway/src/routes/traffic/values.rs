//! Values of a tensor in a sample of a version's requests, from which the scheduler detects drift.

use super::AnswerComparison;
use crate::pipeline::off_the_event_loop;
use bytes::Bytes;
use gantry_core::rollout::{Distribution, bin_of, bin_of_text};
use gantry_oip::{Error, InferRequest, InferResponse, InferTensor, Limits, grpc, rest};
use gantry_proto::{gantry as pb, inference};
use gantry_tensor::{Elements, Tensor, bf16_to_f32, f16_to_f32};
use gantry_transport::Protocol;
use http::{HeaderMap, header};
use prost::Message as _;
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

/// Sampled requests of a version between two reports.
const MAX_SAMPLES: u32 = 50;
/// Values of a sampled request.
const MAX_VALUES: usize = 64;
/// A larger body is not sampled.
const MAX_BODY: usize = 64 << 10;
/// Samples of all models that are decoded at a time; further ones are left out.
const MAX_DECODING: usize = 256;

static DECODING: AtomicUsize = AtomicUsize::new(0);

/// The values of a tensor since the last report.
#[derive(Debug)]
pub(crate) struct ObservedValues {
    pub(super) tensor: pb::ObservedTensor,
    samples: AtomicU32,
    values: Mutex<Distribution>,
}

impl ObservedValues {
    pub(super) fn new(tensor: pb::ObservedTensor) -> Self {
        Self { tensor, samples: AtomicU32::new(0), values: Mutex::default() }
    }

    /// Whether a request belongs to the sample.
    pub(super) fn is_sampled(&self) -> bool {
        // Without a write once the sample is complete.
        self.samples.load(Ordering::Relaxed) < MAX_SAMPLES
            && self.samples.fetch_add(1, Ordering::Relaxed) < MAX_SAMPLES
    }

    pub(crate) const fn is_input(&self) -> bool {
        self.tensor.input
    }

    /// Counts the values of the tensor, if it is one of these.
    pub(crate) fn record(&self, tensors: &[InferTensor]) {
        let Some(found) = tensors.iter().find(|t| t.tensor.name() == self.tensor.name) else { return };
        let bins = bins(&found.tensor);
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        for bin in bins {
            values.add(bin, 1);
        }
    }

    /// The values since the last call; a new sample begins.
    pub(super) fn take(&self) -> Distribution {
        self.samples.store(0, Ordering::Relaxed);
        std::mem::take(&mut *self.values.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts the values of a request, in the background.
    pub(crate) fn record_request(self: Arc<Self>, protocol: Protocol, headers: &HeaderMap, body: &Bytes) {
        if let Some(mut copy) = BodyCopy::new(Some(self), None, protocol, headers) {
            copy.is_request = true;
            copy.push(body);
            copy.record();
        }
    }
}

/// The bins of the first values.
fn bins(tensor: &Tensor) -> Vec<i32> {
    match tensor.elements() {
        Elements::Bytes(texts) => texts.iter().take(MAX_VALUES).map(|text| bin_of_text(text)).collect(),
        elements => numbers(elements, MAX_VALUES).unwrap_or_default().into_iter().map(bin_of).collect(),
    }
}

/// The first values as numbers; `None` for texts.
pub(super) fn numbers(elements: &Elements, most: usize) -> Option<Vec<f64>> {
    fn first<T: Copy>(values: &[T], most: usize, number: impl Fn(T) -> f64) -> Vec<f64> {
        values.iter().take(most).map(|value| number(*value)).collect()
    }
    Some(match elements {
        Elements::Bool(v) => first(v, most, |x| f64::from(u8::from(x))),
        Elements::Uint8(v) => first(v, most, f64::from),
        Elements::Uint16(v) => first(v, most, f64::from),
        Elements::Uint32(v) => first(v, most, f64::from),
        Elements::Uint64(v) => first(v, most, |x| x as f64),
        Elements::Int8(v) => first(v, most, f64::from),
        Elements::Int16(v) => first(v, most, f64::from),
        Elements::Int32(v) => first(v, most, f64::from),
        Elements::Int64(v) => first(v, most, |x| x as f64),
        Elements::Fp16(v) => first(v, most, |x| f16_to_f32(x).into()),
        Elements::Bf16(v) => first(v, most, |x| bf16_to_f32(x).into()),
        Elements::Fp32(v) => first(v, most, f64::from),
        Elements::Fp64(v) => first(v, most, |x| x),
        Elements::Bytes(_) => return None,
    })
}

/// A copy of a body on its way, whose values are read when it has ended.
pub(crate) struct BodyCopy {
    observed: Option<Arc<ObservedValues>>,
    comparison: Option<Arc<AnswerComparison>>,
    is_request: bool,
    protocol: Protocol,
    header_length: Option<usize>,
    parts: Vec<Bytes>,
    length: usize,
}

impl BodyCopy {
    /// Of a response. `None` for a compressed body, or if nothing reads its values.
    pub(crate) fn new(
        observed: Option<Arc<ObservedValues>>,
        comparison: Option<Arc<AnswerComparison>>,
        protocol: Protocol,
        headers: &HeaderMap,
    ) -> Option<Self> {
        if observed.is_none() && comparison.is_none() {
            return None;
        }
        let encoding = match protocol {
            Protocol::Rest => headers.get(header::CONTENT_ENCODING),
            Protocol::Grpc => headers.get("grpc-encoding"),
        };
        if encoding.is_some_and(|encoding| encoding != "identity") {
            return None;
        }
        let header_length = rest::header_length(headers).ok()?;
        let (parts, length, is_request) = (Vec::new(), 0, false);
        Some(Self { observed, comparison, is_request, protocol, header_length, parts, length })
    }

    /// Bytes that the body shares with its reader.
    pub(crate) fn push(&mut self, data: &Bytes) {
        self.length = self.length.saturating_add(data.len());
        if self.length <= MAX_BODY {
            self.parts.push(data.clone());
        } else {
            self.parts.clear();
        }
    }

    /// Decodes the body and reads the values, in the background.
    pub(crate) fn record(self) {
        let Self { observed, comparison, is_request, protocol, header_length, parts, length } = self;
        if length == 0 || length > MAX_BODY {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let Some(counted) = Decoding::new() else { return };
        let decode = move || {
            let body = if let [single] = parts.as_slice() { single.clone() } else { parts.concat().into() };
            let tensors = if is_request {
                request(protocol, header_length, body)?.inputs
            } else {
                response(protocol, header_length, body)?.outputs
            };
            if let Some(observed) = observed {
                observed.record(&tensors);
            }
            if let Some(comparison) = comparison {
                comparison.answer(tensors);
            }
            Ok(())
        };
        runtime.spawn(async move {
            // A body that is not valid has no values.
            let _ = off_the_event_loop(length, decode).await;
            drop(counted);
        });
    }
}

/// A body that is being decoded, until dropped.
struct Decoding;

impl Decoding {
    fn new() -> Option<Self> {
        let before = DECODING.fetch_add(1, Ordering::Relaxed);
        let counted = Self;
        (before < MAX_DECODING).then_some(counted)
    }
}

impl Drop for Decoding {
    fn drop(&mut self) {
        DECODING.fetch_sub(1, Ordering::Relaxed);
    }
}

fn invalid(error: &prost::DecodeError) -> Error {
    Error::invalid(error.to_string())
}

fn request(protocol: Protocol, header_length: Option<usize>, body: Bytes) -> Result<InferRequest, Error> {
    let limits = Limits { body: MAX_BODY, ..Limits::default() };
    match protocol {
        Protocol::Rest => rest::decode_request(body, header_length, &limits),
        Protocol::Grpc => {
            let message = grpc::decode_frame(&body, None, MAX_BODY)?;
            let message = inference::ModelInferRequest::decode(message).map_err(|e| invalid(&e))?;
            grpc::decode_request(message, &limits)
        }
    }
}

fn response(protocol: Protocol, header_length: Option<usize>, body: Bytes) -> Result<InferResponse, Error> {
    let limits = Limits { body: MAX_BODY, ..Limits::default() };
    match protocol {
        Protocol::Rest => rest::decode_response(body, header_length, &limits),
        Protocol::Grpc => {
            let message = grpc::decode_frame(&body, None, MAX_BODY)?;
            let message = inference::ModelInferResponse::decode(message).map_err(|e| invalid(&e))?;
            grpc::decode_response(message, &limits)
        }
    }
}
