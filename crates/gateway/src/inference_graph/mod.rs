//! Execution of inference graphs.
//!
//! `core` decides which step is called with which body; [`execute`] makes the calls through a [`StepClient`], those of an
//! ensemble in parallel. One deadline holds for the whole request. Dropping the future cancels all calls.
//!
//! Bodies are charged to the memory of the connection: responses of steps, and bodies that the graph writes. The executor
//! refuses the next call while the budget is exceeded.

mod execute;
mod headers;
mod spec;

#[cfg(test)]
mod tests;

pub use execute::execute;
pub use gantry_core::inference_graph::{CallTarget, Graph};
pub use headers::HeaderPatterns;
pub(crate) use spec::compile;

use bytes::Bytes;
use gantry_transport::memory::ConnectionMemory;
use http::{HeaderMap, StatusCode};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// A compiled graph with its settings.
#[derive(Clone, Debug)]
pub struct InferenceGraph {
    /// Namespace and name, for messages.
    pub name: Arc<str>,
    pub graph: Arc<Graph>,
    /// `spec.timeout`: for the whole request.
    pub timeout: Option<Duration>,
    /// `spec.routerTimeouts.serviceClient`: for each call.
    pub step_timeout: Option<Duration>,
    /// Headers of the request that each step receives.
    pub propagated: HeaderPatterns,
}

/// A request of a graph.
pub struct GraphRequest<'a> {
    pub headers: &'a HeaderMap,
    /// Decompressed; charged by the caller.
    pub body: Bytes,
    /// Of the request; the timeout of the graph may end it earlier.
    pub deadline: Instant,
    pub memory: Arc<ConnectionMemory>,
}

/// Calls the services of a graph.
pub trait StepClient: Sync {
    /// Sends a POST and reads the whole response. An error is a call without a response, such as a refused connection;
    /// it ends the request with 500. A service that cannot serve is better answered with 503, which a soft
    /// dependency tolerates. Dropping the future cancels the call.
    fn call(&self, request: StepRequest) -> impl Future<Output = Result<StepResponse, String>> + Send;
}

/// A call of a step.
#[derive(Clone, Debug)]
pub struct StepRequest {
    pub target: CallTarget,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub deadline: Instant,
    /// Node and step, for spans and messages.
    pub node: Arc<str>,
    pub step: Arc<str>,
}

/// The response of a step. Not yet charged.
#[derive(Clone, Debug)]
pub struct StepResponse {
    pub status: StatusCode,
    /// Not passed on, as in KServe.
    pub headers: HeaderMap,
    pub body: Bytes,
}
