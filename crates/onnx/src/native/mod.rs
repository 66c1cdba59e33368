//! Our own evaluator: what skl2onnx writes, and dense networks, on the calling thread.
//!
//! [`plan`] turns a graph into a list of steps once, at load; a run walks the list. [`ops`] has the operators of
//! the standard domain, [`ml`] those of `ai.onnx.ml`.

#![allow(
    clippy::many_single_char_names,
    reason = "tensors are x, y and their sizes n, k, h, w wherever mathematics is written down"
)]

mod fuse;
mod ml;
mod node;
mod ops;
mod plan;
mod scan;
mod scratch;
mod value;

pub(crate) use ops::cast::cast;
pub(crate) use plan::{Constants, Opsets, Plan, listed};
pub use plan::{PlanError, UnsupportedOp};
pub use value::OpError;
pub(crate) use value::{Value, View};
