//! What can go wrong when a model file is read and when rows are evaluated.

use thiserror::Error;

/// Why a model file could not be turned into a [`crate::Model`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The bytes are in a format that is recognised but cannot be run.
    #[error("{found} cannot be run here; {advice}")]
    Unsupported {
        /// What the bytes look like.
        found: String,
        /// How to get a file that can be run.
        advice: String,
    },
    /// The bytes are not well-formed text or binary of the format.
    #[error("malformed {format} at byte {offset}: {message}")]
    Syntax {
        /// The format that was being read.
        format: &'static str,
        /// Where in the file the reader stood.
        offset: usize,
        /// What was wrong there.
        message: String,
    },
    /// A line of a LightGBM text model is wrong.
    #[error("LightGBM model, line {line}: {message}")]
    Line {
        /// The line, counted from one.
        line: usize,
        /// What was wrong with it.
        message: String,
    },
    /// A field is missing or holds a value that is not allowed.
    #[error("model field `{field}`: {message}")]
    Field {
        /// The path of the field, for example `learner.objective.name`.
        field: String,
        /// What was wrong with it.
        message: String,
    },
    /// A tree is not a tree, or points outside of the model.
    #[error("tree {tree}, node {node}: {message}")]
    Tree {
        /// The tree, counted from zero.
        tree: usize,
        /// The node within the tree, counted from zero.
        node: usize,
        /// What was wrong with it.
        message: String,
    },
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

/// Why rows could not be evaluated.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PredictError {
    /// The number of values is not rows times features.
    #[error("{rows} rows of {features} features need {expected} values, but {values} were given")]
    Length {
        /// Rows that were announced.
        rows: usize,
        /// Features per row that were announced.
        features: usize,
        /// The product, saturated.
        expected: usize,
        /// Values that were given.
        values: usize,
    },
    /// The rows have another number of features than the model.
    #[error("the model takes {expected} features per row, but the rows have {actual}")]
    Features {
        /// What the model takes.
        expected: usize,
        /// What the rows have.
        actual: usize,
    },
    /// Classes were asked of a model that does not classify.
    #[error(
        "objective `{objective}` does not classify, so there is no class to return; ask for the prediction"
    )]
    NotClassifier {
        /// The objective of the model.
        objective: String,
    },
    /// Leaf indices were asked of a model without trees.
    #[error("a linear booster has no trees, so there are no leaf indices to return; ask for the prediction")]
    NoTrees,
    /// The answer would not fit into memory.
    #[error("{rows} rows with {outputs} outputs each are more than one call can return; send fewer rows")]
    TooLarge {
        /// Rows that were given.
        rows: usize,
        /// Outputs per row.
        outputs: usize,
    },
}
