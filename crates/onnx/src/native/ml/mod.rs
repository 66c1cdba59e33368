//! The operators of `ai.onnx.ml`, with the arithmetic of ONNX Runtime.

mod encode;
mod linear;
mod post_transform;
mod scale;
mod svm;
mod tree;

use super::node::{Kernel, Node};
use super::value::OpError;

/// Prepares an operator of `ai.onnx.ml`; `None` when it is not known here.
pub(crate) fn build(node: &Node<'_>) -> Result<Option<Kernel>, OpError> {
    for build in [linear::build, tree::build, svm::build, scale::build, encode::build] {
        if let Some(kernel) = build(node)? {
            return Ok(Some(kernel));
        }
    }
    Ok(None)
}
