//! Errors of parsing model files and evaluating rows.

use thiserror::Error;

/// A model file could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum ParseError {
    #[error("{found} cannot be run here; {advice}")]
    Unsupported { found: String, advice: String },
    #[error("malformed {format} at byte {offset}: {message}")]
    Syntax { format: &'static str, offset: usize, message: String },
    #[error("LightGBM model, line {line}: {message}")]
    Line { line: usize, message: String },
    #[error("model field `{field}`: {message}")]
    Field { field: String, message: String },
    #[error("tree {tree}, node {node}: {message}")]
    Tree { tree: usize, node: usize, message: String },
}

impl ParseError {
    pub(crate) fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Field { field: field.into(), message: message.into() }
    }

    pub(crate) fn tree(tree: usize, node: usize, message: impl Into<String>) -> Self {
        Self::Tree { tree, node, message: message.into() }
    }

    pub(crate) fn line(line: usize, message: impl Into<String>) -> Self {
        Self::Line { line, message: message.into() }
    }
}

/// Rows could not be evaluated.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum PredictError {
    #[error("{rows} rows of {features} features need {expected} values, but {values} were given")]
    Length { rows: usize, features: usize, expected: usize, values: usize },
    #[error("the model takes {expected} features per row, but the rows have {actual}")]
    Features { expected: usize, actual: usize },
    #[error("objective `{objective}` does not classify, so it has no classes; request the prediction")]
    NotClassifier { objective: String },
    #[error("a linear booster has no trees, so it has no leaf indices; request the prediction")]
    NoTrees,
    #[error("{rows} rows with {outputs} outputs each are more than one call can return; send fewer rows")]
    TooLarge { rows: usize, outputs: usize },
    #[error("the evaluation was stopped")]
    Stopped,
}
