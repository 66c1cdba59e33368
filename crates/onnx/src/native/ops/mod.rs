//! The operators of the standard domain that surround `ai.onnx.ml` ones, and dense networks.

pub(crate) mod cast;
mod conv;
mod elementwise;
mod index;
pub(crate) mod matmul;
mod reduce;
mod rnn;
mod shape;
mod simd;
mod unary;

use super::node::{Kernel, Node};
use super::value::OpError;

/// Prepares an operator of the standard domain; `None` when it is not known here.
pub(crate) fn build(node: &Node<'_>) -> Result<Option<Kernel>, OpError> {
    if let Some(kernel) =
        elementwise::binary(node).or_else(|| elementwise::variadic(node)).or_else(|| unary::unary(node))
    {
        return Ok(Some(kernel));
    }
    if node.proto.op_type == "Cast" {
        return cast::build(node).map(Some);
    }
    let builders = [
        unary::parametric,
        shape::build,
        reduce::build,
        index::build,
        matmul::build,
        conv::build,
        rnn::build,
    ];
    for build in builders {
        if let Some(kernel) = build(node)? {
            return Ok(Some(kernel));
        }
    }
    Ok(None)
}
