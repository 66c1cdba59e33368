//! What can go wrong when a model is loaded, and when it is run.

use crate::native::{OpError, PlanError, UnsupportedOp, listed};
use crate::proto::{ParseError, TensorFault};
use std::path::PathBuf;

/// What to do when no engine here can run a model.
const ADVICE: &str = "set ORT_DYLIB_PATH to the ONNX Runtime library (libonnxruntime.so) to use ONNX Runtime";

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file could not be read.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The file is larger than allowed.
    #[error(
        "the model has {bytes} bytes, the limit is {limit}: raise the limit if the model is meant to be that large"
    )]
    TooLarge {
        /// Bytes of the model.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The bytes are not an ONNX model.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// A tensor in the file is broken.
    #[error("tensor `{name}`: {fault}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        fault: TensorFault,
    },
    /// A tensor's values are in another file that cannot be used.
    #[error("tensor `{tensor}` has its values in {location:?}, {problem}")]
    External {
        /// The tensor.
        tensor: String,
        /// The file that the model names.
        location: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An input or output has a type that the protocol does not know.
    #[error("{role} `{name}` is no tensor of a type that can be served")]
    Value {
        /// `input` or `output`.
        role: &'static str,
        /// Its name.
        name: String,
    },
    /// The graph is not sound, or has a node that is not.
    #[error(transparent)]
    Graph(PlanError),
    /// Operators that no engine here has.
    #[error("no built-in engine has {}; {ADVICE}", listed(ops))]
    Unsupported {
        /// The operators, each once.
        ops: Vec<UnsupportedOp>,
    },
    /// The graph uses a feature of ONNX that no engine here has.
    #[error("the model uses {feature}, which no built-in engine has; {ADVICE}")]
    Feature {
        /// The feature.
        feature: &'static str,
    },
    /// The engine refused the model.
    #[error("{engine} cannot load the model: {message}; {ADVICE}")]
    Engine {
        /// The engine.
        engine: &'static str,
        /// What it said.
        message: String,
    },
    /// ONNX Runtime refused the model, or is not there although it was asked for.
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

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A tensor that the model does not take.
    #[error("input {name}: the model has no such input; it takes {known}")]
    UnknownInput {
        /// The tensor's name.
        name: String,
        /// The inputs of the model.
        known: String,
    },
    /// An input that was not given.
    #[error("input {name}: expected {expected}, got nothing")]
    MissingInput {
        /// The input.
        name: String,
        /// Its datatype and shape.
        expected: String,
    },
    /// An input that was given twice.
    #[error("input {name}: given twice")]
    DuplicateInput {
        /// The input.
        name: String,
    },
    /// An input with another datatype or shape than the model takes.
    #[error("input {name}: expected {expected}, got {got}")]
    Input {
        /// The input.
        name: String,
        /// The model's datatype and shape.
        expected: String,
        /// The tensor's datatype and shape.
        got: String,
    },
    /// An output that the model does not have.
    #[error("output {name}: the model has no such output; it has {known}")]
    UnknownOutput {
        /// The name that was asked for.
        name: String,
        /// The outputs of the model.
        known: String,
    },
    /// An operator failed.
    #[error("node `{node}` ({op}): {error}")]
    Node {
        /// The node.
        node: String,
        /// Its operator.
        op: String,
        /// What is wrong.
        error: OpError,
    },
    /// The engine failed.
    #[error("{engine}: {message}")]
    Engine {
        /// The engine.
        engine: &'static str,
        /// What it said.
        message: String,
    },
    /// The process that the network ran in has ended.
    #[error("rten: {reason}")]
    Ended {
        /// Why.
        reason: String,
    },
}

impl RunError {
    pub(crate) fn rten(message: impl Into<String>) -> Self {
        Self::Engine { engine: "rten", message: message.into() }
    }

    /// The words alone, without the engine's name.
    pub(crate) fn into_words(self) -> String {
        match self {
            Self::Engine { message, .. } => message,
            other => other.to_string(),
        }
    }
}
