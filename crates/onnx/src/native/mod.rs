//! Our own evaluator, on the calling thread: the operators of skl2onnx and of small networks.
//!
//! [`plan`] compiles a graph into a list of steps at load; a run executes them. [`ops`] has the operators of
//! the standard domain, [`ml`] those of `ai.onnx.ml`.

#![allow(
    clippy::many_single_char_names,
    reason = "tensors are x, y and their sizes n, k, h, w wherever mathematics is written down"
)]

mod buffer_pool;
mod fuse;
mod ml;
mod node;
mod ops;
mod plan;
mod scan;
mod value;
mod watch;

pub(crate) use ops::cast::{cast, widen};
pub(crate) use plan::{Constants, Opsets, Plan, listed};
pub use plan::{PlanError, UnsupportedOp};
pub use value::OpError;
pub(crate) use value::{Value, View};
pub(crate) use watch::Watch;
