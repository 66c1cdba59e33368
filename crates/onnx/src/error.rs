//! Errors of loading and running models.

use crate::native::{OpError, PlanError, UnsupportedOp, listed};
use crate::proto::{ParseError, TensorFault};
use std::path::PathBuf;

const ADVICE: &str = "set ORT_DYLIB_PATH to the ONNX Runtime library to use ONNX Runtime: \
                      `pip install onnxruntime` puts it at onnxruntime/capi/libonnxruntime.so.*";

/// A model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum LoadError {
    #[error("cannot read {}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    #[error(
        "the model has {bytes} bytes, the limit is {limit}: raise the limit if the model is meant to be that large"
    )]
    TooLarge { bytes: u64, limit: u64 },
    #[error(transparent)]
    Parse(#[from] ParseError),
    #[error("tensor `{name}`: {fault}")]
    Tensor { name: String, fault: TensorFault },
    #[error("tensor `{tensor}` has its values in {location:?}, {problem}")]
    External { tensor: String, location: String, problem: String },
    #[error("{role} `{name}` is not a tensor of a supported type")]
    Value { role: &'static str, name: String },
    #[error(transparent)]
    Graph(PlanError),
    #[error("no built-in engine has {}; {ADVICE}", listed(ops))]
    Unsupported { ops: Vec<UnsupportedOp> },
    #[error("the model has {what} {version}; the built-in engines have 1 to {newest}; {ADVICE}")]
    Version { what: String, version: i64, newest: i64 },
    #[error("the model uses {feature}, which no built-in engine has; {ADVICE}")]
    Feature { feature: &'static str },
    #[error("{engine} cannot load the model: {message}; {ADVICE}")]
    Engine { engine: &'static str, message: String },
    #[error("ONNX Runtime: {0}")]
    OnnxRuntime(String),
}

impl From<PlanError> for LoadError {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Unsupported(ops) => Self::Unsupported { ops },
            other => Self::Graph(other),
        }
    }
}

/// A run failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum RunError {
    #[error("input {name}: the model has no such input; it takes {known}")]
    UnknownInput { name: String, known: String },
    #[error("input {name}: expected {expected}, got nothing")]
    MissingInput { name: String, expected: String },
    #[error("input {name}: given twice")]
    DuplicateInput { name: String },
    #[error("input {name}: expected {expected}, got {got}")]
    Input { name: String, expected: String, got: String },
    #[error("output {name}: the model has no such output; it has {known}")]
    UnknownOutput { name: String, known: String },
    #[error("node `{node}` ({op}): {error}")]
    Node { node: String, op: String, error: OpError },
    #[error("{engine}: {message}")]
    Engine { engine: &'static str, message: String },
    #[error("rten: {reason}")]
    Ended { reason: String },
    #[error("rten: {reason}")]
    Unavailable { reason: String },
    #[error("the run was cancelled")]
    Cancelled,
}

impl RunError {
    pub(crate) fn rten(message: impl Into<String>) -> Self {
        Self::Engine { engine: "rten", message: message.into() }
    }

    /// The message without the engine's name.
    pub(crate) fn into_message(self) -> String {
        match self {
            Self::Engine { message, .. } => message,
            other => other.to_string(),
        }
    }
}
