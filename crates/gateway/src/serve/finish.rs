//! The end of a request: counted once, however it ends.

use super::{Shared, traced};
use crate::{decide::breaker::Outcome, metrics::Protocol, routes::Entered};
use http::{HeaderMap, StatusCode};
use std::{sync::Arc, time::Instant};

/// A request at its target. When dropped it leaves the target, and is counted if it was an inference.
pub(crate) struct Finish {
    shared: Arc<Shared>,
    pub(super) entered: Entered,
    protocol: Protocol,
    infer: bool,
    started: Instant,
    code: u16,
    outcome: Outcome,
    span: gantry_trace::Span,
}

impl Finish {
    pub(super) fn new(
        shared: &Arc<Shared>,
        entered: Entered,
        protocol: Protocol,
        infer: bool,
        started: Instant,
    ) -> Self {
        // What is counted unless something else happens: the client went away.
        let code = if protocol == Protocol::Grpc { 1 } else { 499 };
        Self {
            shared: Arc::clone(shared),
            entered,
            protocol,
            infer,
            started,
            code,
            outcome: Outcome::Abandoned,
            span: gantry_trace::Span::default(),
        }
    }

    /// Begins the part of the trace that is spent at the target, and has the target go on from there.
    pub(super) fn trace(&mut self, parent: Option<gantry_trace::Context>, headers: &mut HeaderMap) {
        self.span = traced::target(&self.shared.config.tracer, parent, &self.entered);
        self.span.inject(headers);
    }

    /// The replica answered with these headers.
    pub(super) fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.outcome = Outcome::Answered;
        match self.protocol {
            Protocol::Rest => self.code = status.as_u16(),
            Protocol::Grpc => {
                self.code = 2;
                self.trailers(headers);
            }
        }
    }

    /// A gRPC call ends with its status in the trailers.
    pub(crate) fn trailers(&mut self, trailers: &HeaderMap) {
        if self.protocol == Protocol::Grpc
            && let Some(status) = trailers.get("grpc-status").and_then(|s| s.to_str().ok()?.parse().ok())
        {
            self.code = status;
        }
    }

    /// The replica could not be reached, or went away.
    pub(crate) fn failed(&mut self) {
        self.outcome = Outcome::Failed;
        self.code = if self.protocol == Protocol::Grpc { 14 } else { 503 };
    }

    /// The time ran out. The client chose it, perhaps too short: that says nothing about the replica.
    pub(super) fn timed_out(&mut self) {
        self.code = if self.protocol == Protocol::Grpc { 4 } else { 504 };
    }

    /// Ends here.
    pub(crate) fn done(self) {
        drop(self);
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        self.entered.report(self.outcome);
        traced::left(&mut self.span, self.protocol, self.code);
        if self.infer {
            let took = self.started.elapsed();
            self.entered.used(took);
            self.shared.metrics.inferred(&self.entered, self.protocol, self.code, took);
        }
    }
}
