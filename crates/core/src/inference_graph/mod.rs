//! Inference graphs of KServe: validation, compilation and the decisions of one request, without IO or a clock.
//!
//! [`Graph::compile`] turns a valid [`Definition`] into a graph; [`Run`] is one request through it. The executor calls the
//! services. Nodes are a tree of calls: cycles are refused, depth and number of calls are bounded.
//!
//! # Nodes
//!
//! A node gets a body and has a response: a status and a body. Requests enter at `root`, whose response is the
//! response of the graph. A step calls a service, a URL, or another node, which gets the input of the step.
//!
//! - **Sequence**: the steps one after another. The input of a step is the body of the node, or with `data: $response` the
//!   previous response, whatever its status. If the `condition` of a step does not exist in the previous response, the
//!   node ends with that body and 200. A step with `dependency: Hard` whose status is not 2xx ends the node with
//!   its response. The response is the last one.
//! - **Splitter**: one step, by the weights, which add up to 100.
//! - **Switch**: the first step whose `condition` exists in the body; if there is none, the request fails with 404.
//! - **Ensemble**: all steps in parallel, each with the body of the node. The response is 200 and an object with
//!   the responses by name of the step, or by position without a name. If steps with `dependency: Hard` fail, the
//!   response of the first one in the order of the steps is the response of the node, and calls that are still in flight are
//!   cancelled. The body of a failed step with `dependency: Soft` that is not JSON is `{"error": text}`.
//!
//! With `mapPredictionsToInstances`, the member `predictions` of the input becomes `instances`.
//!
//! A call without a response (no connection, or a timeout) ends the request with 500, whatever the dependency. Conditions
//! are described in [`path`].

mod body;
mod compile;
mod definition;
mod json;
pub mod path;
mod pattern;
mod run;

pub use body::error_body;
pub use compile::{CallTarget, Graph, MAX_CALLS, MAX_DEPTH, MAX_NODES, validate};
pub use definition::{Definition, Invalid, Node, ROOT, Router, Step, Target};
pub use json::is_valid;
pub use path::Path;
pub use run::{Call, CallId, Context, Failure, Response, Run};

#[cfg(test)]
mod tests;
