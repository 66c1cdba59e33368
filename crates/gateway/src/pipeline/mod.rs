//! Execution of pipelines in the gateway.
//!
//! `core` decides which step starts with which tensors; this module calls the models: steps run as soon as their inputs
//! are there, side by side on the worker. Dropping a run cancels its steps.

mod background;
mod batch;
mod codec;
mod execute;
mod external;
mod mirror;
mod recent;
mod record;
mod step;
mod tensor;

pub(crate) use batch::Batches;
pub(crate) use codec::{decode as decode_response, off_the_event_loop, read_response};
pub(crate) use execute::execute;
pub(crate) use external::PendingJoins;
pub(crate) use recent::{KeptMemory, RecentRuns};
pub(crate) use record::Record;
#[cfg(feature = "kafka")]
pub(crate) use record::StepRecord;
pub(crate) use tensor::StepTensor;

use crate::{routes::Pipeline, serve::Worker};
use gantry_core::pipeline::Graph;
use gantry_oip::Parameters;
use gantry_transport::memory::ConnectionMemory;
use http::{HeaderMap, HeaderValue};
use std::sync::Arc;
use tokio::time::Instant;

/// A request of a pipeline. It keeps its version to the end.
#[derive(Clone)]
pub(crate) struct RunContext {
    pub(crate) worker: Arc<Worker>,
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) graph: Arc<Graph>,
    pub(crate) request_id: HeaderValue,
    pub(crate) sticky: Option<HeaderValue>,
    /// Headers that each step receives.
    pub(crate) forwarded: HeaderMap,
    pub(crate) trace: Option<gantry_trace::SpanContext>,
    pub(crate) parameters: Parameters,
    /// Charged for the tensors that the run holds.
    pub(crate) memory: Arc<ConnectionMemory>,
    pub(crate) started: Instant,
    pub(crate) deadline: Instant,
    /// How many other pipelines led to this run.
    pub(crate) hops: u8,
    /// The run ends with all its steps and keeps their data, which is written to topics; it starts no other pipelines.
    pub(crate) durable: bool,
}

impl RunContext {
    fn keeps_tensors(&self) -> bool {
        self.durable || self.keeps_payloads()
    }

    /// Whether `gantry pipeline inspect` shows the tensors of the run.
    pub(crate) fn keeps_payloads(&self) -> bool {
        self.pipeline.keep_payloads || self.worker.shared.config.keep_pipeline_payloads
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
