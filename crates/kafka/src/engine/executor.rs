//! What executes pipelines: the gateway, or a test.

use crate::record::Consumed;
use gantry_core::pipeline::Externals;
use gantry_oip::{InferTensor, Parameters};
use http::{HeaderMap, HeaderValue};
use std::{future::Future, sync::Arc};
use tokio::sync::watch;

/// The pipelines that are consumed from topics.
pub type Pipelines = Arc<[Arc<Pipeline>]>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pipeline {
    pub name: Arc<str>,
    /// Each calls the model of the same name.
    pub steps: Vec<Arc<str>>,
    /// What it reads of other pipelines.
    pub external: Option<Arc<Externals>>,
    pub clean_topics_on_delete: bool,
}

pub trait Executor: Send + Sync + 'static {
    type Span: RecordSpan;

    fn pipelines(&self) -> watch::Receiver<Pipelines>;

    /// Whether a pipeline that is not among [`pipelines`](Self::pipelines) was deleted: then its topics may be, too.
    fn is_deleted(&self, pipeline: &str) -> bool;

    /// Starts the span of a record: a child of the trace context in `headers`, where it becomes the context of the steps and
    /// of the results.
    fn span(
        &self,
        pipeline: &str,
        request_id: &str,
        record: &Consumed,
        headers: &mut HeaderMap,
    ) -> Self::Span;

    /// Runs a request on the current version of its pipeline, to the end of all its steps, within a deadline.
    fn execute(&self, request: RunRequest) -> impl Future<Output = Execution> + Send;
}

/// The span of a record. It ends when it is dropped: when the results are in the log.
pub trait RecordSpan: Send + 'static {
    /// The record has no answer.
    fn fail(&mut self);
}

/// No spans.
impl RecordSpan for () {
    fn fail(&mut self) {}
}

#[derive(Clone, Debug)]
pub struct RunRequest {
    pub pipeline: Arc<str>,
    pub request_id: String,
    /// Headers that each step receives, and the trace context.
    pub headers: HeaderMap,
    pub parameters: Parameters,
    pub inputs: Vec<InferTensor>,
}

/// The end of a run.
#[derive(Debug)]
pub struct Execution {
    /// Of the pipeline.
    pub version: u32,
    /// In the order of their end.
    pub steps: Vec<StepRecord>,
    pub result: RunResult,
}

/// No tensors if the pipeline has no output.
pub type RunResult = Result<Option<Vec<InferTensor>>, ExecuteError>;

/// One run of a step.
#[derive(Debug)]
pub struct StepRecord {
    pub step: Arc<str>,
    pub inputs: Vec<InferTensor>,
    /// The text of the error if it failed.
    pub outputs: Result<Vec<InferTensor>, String>,
    /// `:<model>_<version>:`
    pub route: Option<HeaderValue>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ExecuteError {
    /// Whether the same request may succeed later: no replica, overload, or the deadline.
    pub is_transient: bool,
    /// The step, or the pipeline.
    pub step: Arc<str>,
    pub message: String,
}
