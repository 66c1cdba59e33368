//! A node during preparation of its operator: attributes, opset, constant inputs.

use super::ops::cast::widen;
use super::plan::Opsets;
use super::value::{Args, OpError, Value};
use super::watch::Watch;
use crate::proto::{AttributeValue, GraphProto, NodeProto};
use std::cell::RefCell;

/// A prepared operator.
pub(crate) type Kernel = Box<dyn Fn(&Args<'_>) -> Result<Vec<Value>, OpError> + Send + Sync>;

/// A node that is being prepared.
pub(crate) struct Node<'a> {
    pub proto: &'a NodeProto<'a>,
    /// The version of the operator set of the node's domain.
    pub opset: i64,
    /// Constant inputs.
    pub constants: Vec<Option<&'a Value>>,
    /// Inputs that the prepared operator has absorbed and does not read in a run.
    pub absorbed: RefCell<Vec<usize>>,
    /// Whether a fused `Relu` is applied: see `fuse`.
    pub then_relu: bool,
    /// All operator sets of the model, for operators with graphs inside.
    pub opsets: &'a Opsets,
    /// Of the plan.
    pub watch: &'a Watch<'a>,
}

impl<'a> Node<'a> {
    fn attribute(&self, name: &str) -> Option<&'a AttributeValue<'a>> {
        self.proto.attributes.iter().find(|a| a.name == name).map(|a| &a.value)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.attribute(name).is_some()
    }

    pub(crate) fn constant(&self, input: usize) -> Option<&'a Value> {
        self.constants.get(input).copied().flatten()
    }

    /// Marks a constant input as absorbed, so that the plan drops it.
    pub(crate) fn absorb(&self, input: usize) {
        self.absorbed.borrow_mut().push(input);
    }

    pub(crate) fn int(&self, name: &str, default: i64) -> Result<i64, OpError> {
        match self.attribute(name) {
            None => Ok(default),
            Some(AttributeValue::Int(v)) => Ok(*v),
            Some(other) => Err(wrong_kind(name, "an integer", other)),
        }
    }

    pub(crate) fn float(&self, name: &str, default: f32) -> Result<f32, OpError> {
        match self.attribute(name) {
            None => Ok(default),
            Some(AttributeValue::Float(v)) => Ok(*v),
            Some(other) => Err(wrong_kind(name, "a float", other)),
        }
    }

    pub(crate) fn text(&self, name: &str, default: &'static str) -> Result<&'a str, OpError> {
        match self.attribute(name) {
            None => Ok(default),
            Some(AttributeValue::Text(v)) => {
                std::str::from_utf8(v).map_err(|_| OpError::attribute(name, "is not UTF-8"))
            }
            Some(other) => Err(wrong_kind(name, "a string", other)),
        }
    }

    pub(crate) fn ints(&self, name: &str) -> Result<&'a [i64], OpError> {
        match self.attribute(name) {
            None => Ok(&[]),
            Some(AttributeValue::Ints(v)) => Ok(v),
            Some(other) => Err(wrong_kind(name, "integers", other)),
        }
    }

    pub(crate) fn floats(&self, name: &str) -> Result<&'a [f32], OpError> {
        match self.attribute(name) {
            None => Ok(&[]),
            Some(AttributeValue::Floats(v)) => Ok(v),
            Some(other) => Err(wrong_kind(name, "floats", other)),
        }
    }

    pub(crate) fn texts(&self, name: &str) -> Result<&'a [&'a [u8]], OpError> {
        match self.attribute(name) {
            None => Ok(&[]),
            Some(AttributeValue::Texts(v)) => Ok(v),
            Some(other) => Err(wrong_kind(name, "strings", other)),
        }
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Option<Value>, OpError> {
        match self.attribute(name) {
            None => Ok(None),
            Some(AttributeValue::Tensor(t)) => {
                let (shape, data) = t.load(None).map_err(|e| OpError::attribute(name, e.to_string()))?;
                Ok(Some(Value::new(shape, widen(data))))
            }
            Some(other) => Err(wrong_kind(name, "a tensor", other)),
        }
    }

    pub(crate) fn graph(&self, name: &str) -> Result<&'a GraphProto<'a>, OpError> {
        match self.attribute(name) {
            Some(AttributeValue::Graph(g)) => Ok(g),
            Some(other) => Err(wrong_kind(name, "a graph", other)),
            None => Err(OpError::attribute(name, "is missing")),
        }
    }
}

fn wrong_kind(name: &str, wanted: &str, got: &AttributeValue<'_>) -> OpError {
    OpError::attribute(name, format!("should be {wanted} and is {}", got.kind()))
}
