//! Completion of a request: metrics, breaker and span are updated exactly once.

use super::{Call, Shared, spans};
use crate::{
    policy::{breaker::Outcome, result_class::ResultClass},
    routes::{Attribution, BodyCopy, InFlightRequest, ObservedValues},
};
use bytes::Bytes;
use gantry_oip::{Error, InferTensor};
use gantry_transport::{Protocol, body::Payload};
use http::{HeaderMap, StatusCode};
use std::sync::Arc;
use tokio::time::Instant;

/// A request on its target. On drop it releases the target and is recorded if it was an inference.
pub(crate) struct RequestGuard {
    shared: Arc<Shared>,
    pub(super) in_flight: InFlightRequest,
    protocol: Protocol,
    infer: bool,
    started: Instant,
    code: u16,
    outcome: Outcome,
    /// The replica was unreachable or the connection was lost.
    is_lost: bool,
    span: gantry_trace::Span,
    /// Set for a request whose values are observed.
    sample: Option<Arc<ObservedValues>>,
    /// The response of a request whose values are read.
    copy: Option<BodyCopy>,
}

impl RequestGuard {
    pub(super) fn new(
        shared: &Arc<Shared>,
        mut in_flight: InFlightRequest,
        protocol: Protocol,
        infer: bool,
        started: Instant,
    ) -> Self {
        let unreachable = in_flight.unreachable.take().filter(|_| infer);
        if let Some(unreachable) = unreachable {
            unreachable.record(ResultClass::NoResponse, Instant::now());
        }
        let sample = in_flight.attribution.as_mut().filter(|_| infer).and_then(|a| a.sample.take());
        // Recorded unless another outcome is set: cancelled by the client.
        let code = if protocol == Protocol::Grpc { 1 } else { 499 };
        Self {
            shared: Arc::clone(shared),
            in_flight,
            protocol,
            infer,
            started,
            code,
            outcome: Outcome::Cancelled,
            is_lost: false,
            span: gantry_trace::Span::default(),
            sample,
            copy: None,
        }
    }

    /// Starts the upstream span and propagates it.
    pub(super) fn trace(&mut self, call: &Call, headers: &mut HeaderMap) {
        self.span = spans::target(&self.shared.config.tracer, call, &self.in_flight);
        self.span.inject(headers);
    }

    /// Counts the values of a request that is sent, if its inputs are observed.
    pub(super) fn observe_request(&mut self, headers: &HeaderMap, payload: &Payload) {
        if let Payload::Whole(body) = payload
            && let Some(sample) = self.sample.take_if(|sample| sample.is_input())
        {
            sample.record_request(self.protocol, headers, body);
        }
    }

    /// Counts the values of tensors that were not encoded.
    pub(super) fn observe_tensors(&mut self, is_input: bool, tensors: &[InferTensor]) {
        if let Some(sample) = self.sample.take_if(|sample| sample.is_input() == is_input) {
            sample.record(tensors);
        }
    }

    /// A part of the response's body.
    pub(crate) fn on_data(&mut self, data: &Bytes) {
        if let Some(copy) = &mut self.copy {
            copy.push(data);
        }
    }

    /// Response headers received from the replica.
    pub(super) fn on_response(&mut self, status: StatusCode, headers: &HeaderMap) {
        // A proxy in front of the server responds 502 when the server is gone.
        let is_gone = status == StatusCode::BAD_GATEWAY;
        self.outcome = if is_gone { Outcome::Failed } else { Outcome::Answered };
        let sample = self.sample.take_if(|sample| !sample.is_input());
        let comparison = self.in_flight.comparison.take();
        self.copy = BodyCopy::new(sample, comparison, self.protocol, headers);
        match self.protocol {
            Protocol::Rest => self.code = status.as_u16(),
            Protocol::Grpc => {
                self.code = 2;
                self.on_trailers(headers);
            }
        }
    }

    /// A gRPC status arrives in the trailers.
    pub(crate) fn on_trailers(&mut self, trailers: &HeaderMap) {
        if self.protocol == Protocol::Grpc
            && let Some(status) = trailers.get("grpc-status").and_then(|s| s.to_str().ok()?.parse().ok())
        {
            self.code = status;
        }
    }

    /// The replica was unreachable or the connection was lost.
    pub(crate) fn on_failure(&mut self) {
        self.outcome = Outcome::Failed;
        self.is_lost = true;
        self.code = if self.protocol == Protocol::Grpc { 14 } else { 503 };
    }

    /// The replica responded that it does not have the model.
    pub(super) fn on_missing_model(&mut self) {
        self.in_flight.on_missing_model();
        self.outcome = Outcome::Answered;
        self.code = if self.protocol == Protocol::Grpc { 14 } else { 503 };
    }

    /// The client chose the deadline: a failure of the replica only if it was `silent`.
    pub(crate) fn on_timeout(&mut self, silent: bool) {
        if silent {
            self.outcome = Outcome::Failed;
        }
        self.code = if self.protocol == Protocol::Grpc { 4 } else { 504 };
    }

    /// An in-process server answered.
    pub(super) fn on_answer(&mut self, error: Option<&Error>) {
        self.outcome = Outcome::Answered;
        match error {
            Some(error) => self.on_error(error),
            None => self.code = self.protocol.ok(),
        }
    }

    /// The request failed in this process.
    pub(super) fn on_error(&mut self, error: &Error) {
        self.code = self.protocol.code(error);
    }

    pub(super) const fn result_class(&self) -> ResultClass {
        if self.is_lost { ResultClass::NoResponse } else { ResultClass::of(self.protocol, self.code) }
    }

    /// Leaves the statistics of the model's rollout to the caller.
    pub(crate) fn take_attribution(&mut self) -> Option<Attribution> {
        self.in_flight.attribution.take().filter(|_| self.infer)
    }

    pub(crate) fn done(self) {
        drop(self);
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.in_flight.report(self.outcome);
        spans::finish(&mut self.span, self.protocol, self.code);
        if self.infer {
            let end = Instant::now();
            let took = end.saturating_duration_since(self.started);
            if let Some(attribution) = &self.in_flight.attribution {
                attribution.record(self.result_class(), end);
            }
            if let Some(copy) = self.copy.take().filter(|_| self.result_class() == ResultClass::Success) {
                copy.record();
            }
            self.in_flight.record_inference(took);
            self.shared.metrics.record_inference(&self.in_flight, self.protocol, self.code, took);
            if let Some(experiment) = &self.in_flight.experiment {
                let is_error = self.code != self.protocol.ok();
                experiment.record(&self.in_flight.version.model, is_error, took);
            }
        }
    }
}
