//! Ensembles in the form of the `ai.onnx.ml` tree operators: flat lists of nodes and leaf weights.
//!
//! A [`Builder`] takes one [`NodeSpec`] per entry of the operator's `nodes_*` attributes and one [`WeightSpec`]
//! per entry of `target_*` (regressor) or `class_*` (classifier). [`Builder::build`] proves that the nodes form
//! trees and that all indices are in range; [`Ensemble::scores`] returns the raw scores, row-major with one
//! column per target. Post-transforms, labels and the completion of binary scores are up to the operator.
//!
//! ```
//! use gantry_trees::Rows;
//! use gantry_trees::onnx_ensemble::{Builder, Mode, NodeSpec, Scores, WeightSpec};
//!
//! let mut builder = Builder::new(1);
//! builder.node(NodeSpec { true_node: 1, false_node: 2, threshold: 0.5, ..NodeSpec::new(0, 0, Mode::Leq) });
//! builder.node(NodeSpec::new(0, 1, Mode::Leaf));
//! builder.node(NodeSpec::new(0, 2, Mode::Leaf));
//! builder.weight(WeightSpec { tree: 0, node: 1, target: 0, weight: -1.0 });
//! builder.weight(WeightSpec { tree: 0, node: 2, target: 0, weight: 2.0 });
//! let ensemble = builder.build()?;
//!
//! let rows = Rows::f32(&[0.5, 0.6], 2, 1)?;
//! assert_eq!(ensemble.scores(rows, 1)?, Scores::F32(vec![-1.0, 2.0]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod compile;
mod scores;

use crate::error::{ParseError, PredictError};
use crate::forest::{Execution, check_output};
use crate::rows::Rows;
use scores::Trees;

/// How a node decides (`nodes_modes`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// `BRANCH_LEQ`: true when the value is at most the threshold.
    Leq,
    /// `BRANCH_LT`: true when the value is below the threshold.
    Lt,
    /// `BRANCH_GT`: true when the value is above the threshold.
    Gt,
    /// `BRANCH_GTE`: true when the value is at least the threshold.
    Gte,
    /// `BRANCH_EQ`: true when the value equals the threshold.
    Eq,
    /// `BRANCH_NEQ`: true when the value differs from the threshold, so also when it is NaN.
    Neq,
    /// `LEAF`: no decision; the weights of the node are the result.
    Leaf,
}

impl Mode {
    /// The mode that an operator's attribute names, for example `BRANCH_LEQ`.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "BRANCH_LEQ" => Self::Leq,
            "BRANCH_LT" => Self::Lt,
            "BRANCH_GT" => Self::Gt,
            "BRANCH_GTE" => Self::Gte,
            "BRANCH_EQ" => Self::Eq,
            "BRANCH_NEQ" => Self::Neq,
            "LEAF" => Self::Leaf,
            _ => return None,
        })
    }
}

/// One node of one tree; a leaf uses only `tree`, `node` and `mode`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeSpec {
    /// `nodes_treeids`: trees may be numbered freely.
    pub tree: i64,
    /// `nodes_nodeids`: unique within the tree.
    pub node: i64,
    /// `nodes_modes`.
    pub mode: Mode,
    /// `nodes_featureids`.
    pub feature: i64,
    /// `nodes_values`.
    pub threshold: f64,
    /// `nodes_truenodeids`.
    pub true_node: i64,
    /// `nodes_falsenodeids`.
    pub false_node: i64,
    /// `nodes_missing_value_tracks_true`: whether NaN takes the true branch.
    pub missing_tracks_true: bool,
}

impl NodeSpec {
    /// A node with all other fields zero, to be completed by struct update.
    pub fn new(tree: i64, node: i64, mode: Mode) -> Self {
        Self {
            tree,
            node,
            mode,
            feature: 0,
            threshold: 0.0,
            true_node: 0,
            false_node: 0,
            missing_tracks_true: false,
        }
    }
}

/// A weight that a leaf adds to a target; weights of nodes that are no leaves are ignored, as runtimes do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeightSpec {
    /// `target_treeids` or `class_treeids`.
    pub tree: i64,
    /// `target_nodeids` or `class_nodeids`.
    pub node: i64,
    /// `target_ids` or `class_ids`.
    pub target: i64,
    /// `target_weights` or `class_weights`.
    pub weight: f64,
}

/// How the weights of all trees become one score per target (`aggregate_function`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Aggregate {
    /// Their sum.
    #[default]
    Sum,
    /// Their sum divided by the number of trees.
    Average,
    /// The smallest.
    Min,
    /// The largest.
    Max,
}

/// The type in which values are compared and weights are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// `f32`: for operators with `float` thresholds and weights.
    #[default]
    Single,
    /// `f64`: for operators whose `*_as_tensor` attributes are `double`.
    Double,
}

/// Scores, row-major, one column per target, in the [`Precision`] of the ensemble.
#[derive(Debug, Clone, PartialEq)]
pub enum Scores {
    /// Of a [`Precision::Single`] ensemble.
    F32(Vec<f32>),
    /// Of a [`Precision::Double`] ensemble.
    F64(Vec<f64>),
}

/// Collects nodes and weights.
#[derive(Debug, Clone, Default)]
pub struct Builder {
    targets: usize,
    nodes: Vec<NodeSpec>,
    weights: Vec<WeightSpec>,
    base_values: Vec<f64>,
    aggregate: Aggregate,
    precision: Precision,
}

/// Trees that were proven sound, ready to score rows from any thread.
#[derive(Debug, Clone)]
pub struct Ensemble {
    targets: usize,
    core: Core,
}

#[derive(Debug, Clone)]
enum Core {
    Single(Trees<f32>),
    Double(Trees<f64>),
}

impl Builder {
    /// Starts an ensemble with this many targets (`n_targets`, or the number of class ids in use).
    pub fn new(targets: usize) -> Self {
        Self { targets, ..Self::default() }
    }

    /// Adds a node; the order does not matter.
    pub fn node(&mut self, node: NodeSpec) -> &mut Self {
        self.nodes.push(node);
        self
    }

    /// Adds a weight; weights of one leaf are applied in the order in which they are added.
    pub fn weight(&mut self, weight: WeightSpec) -> &mut Self {
        self.weights.push(weight);
        self
    }

    /// Sets `base_values`, which are added to the aggregated scores: none, or one per target.
    pub fn base_values(&mut self, values: &[f64]) -> &mut Self {
        self.base_values = values.to_vec();
        self
    }

    /// Sets how weights are aggregated; the default is the sum.
    pub fn aggregate(&mut self, aggregate: Aggregate) -> &mut Self {
        self.aggregate = aggregate;
        self
    }

    /// Sets the type of comparisons and sums; the default is single precision.
    pub fn precision(&mut self, precision: Precision) -> &mut Self {
        self.precision = precision;
        self
    }

    /// Checks everything and compiles the trees.
    pub fn build(&self) -> Result<Ensemble, ParseError> {
        if self.targets == 0 || u32::try_from(self.targets).is_err() {
            return Err(ParseError::field(
                "n_targets",
                format!("{} is not a number of targets", self.targets),
            ));
        }
        if !self.base_values.is_empty() && self.base_values.len() != self.targets {
            let message = format!("{} values for {} targets", self.base_values.len(), self.targets);
            return Err(ParseError::field("base_values", message));
        }
        let core = match self.precision {
            Precision::Single => Core::Single(self.compile()?),
            Precision::Double => Core::Double(self.compile()?),
        };
        Ok(Ensemble { targets: self.targets, core })
    }
}

impl Ensemble {
    /// Scores per row.
    pub fn targets(&self) -> usize {
        self.targets
    }

    /// The smallest number of features that rows must have: one more than the largest feature id in use.
    pub fn features(&self) -> usize {
        match &self.core {
            Core::Single(trees) => trees.forest.features(),
            Core::Double(trees) => trees.forest.features(),
        }
    }

    /// How many trees there are.
    pub fn trees(&self) -> usize {
        match &self.core {
            Core::Single(trees) => trees.forest.tree_count(),
            Core::Double(trees) => trees.forest.tree_count(),
        }
    }

    /// About how much memory the compiled trees take.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + match &self.core {
                Core::Single(trees) => trees.memory_bytes(),
                Core::Double(trees) => trees.memory_bytes(),
            }
    }

    /// The raw scores of all rows, with at most this many threads (one is no thread at all, just the caller's).
    ///
    /// Rows of the other precision are converted to the ensemble's. Rows may have more features than are used.
    pub fn scores(&self, rows: Rows<'_>, threads: usize) -> Result<Scores, PredictError> {
        self.scores_until(rows, threads, &|| false)
    }

    /// As [`Self::scores`]; polls `stop` about every millisecond, and returns [`PredictError::Stopped`] when it is
    /// true.
    pub fn scores_until(
        &self,
        rows: Rows<'_>,
        threads: usize,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Scores, PredictError> {
        if rows.features() < self.features() {
            return Err(PredictError::Features { expected: self.features(), actual: rows.features() });
        }
        check_output(rows.rows(), self.targets)?;
        let execution = Execution::new(threads, stop);
        let scores = match &self.core {
            Core::Single(trees) => Scores::F32(trees.scores(&rows, &execution)),
            Core::Double(trees) => Scores::F64(trees.scores(&rows, &execution)),
        };
        execution.check()?;
        Ok(scores)
    }
}
