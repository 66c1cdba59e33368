//! The evaluation core: trees compiled into flat arrays, and the loops that run rows through them.
//!
//! Every reader brings its trees into one form ([`SourceTree`]): a split tests `value <= threshold`, or a
//! [`Test`] for the rare splits that are no order comparison, and states which way a missing value (NaN) goes.
//! [`Forest::builder`] proves that each source tree is a tree, that every column exists, and lays it out in two
//! parts:
//!
//! * All nodes are linked, with adjacent children, so that one step is `next + (value > threshold)`. A leaf points
//!   at itself, so all rows of a block take as many steps as the tree is deep, without branches.
//! * The top of a tree, which for small trees is all of it, is a bit set as well: each split that answers "no" clears
//!   the exits on its "yes" side, and the lowest bit left is the exit that the row takes. That is a plain loop over
//!   the rows of a block that vectorises well; from the exit on, the row takes steps.
//!
//! Rows are evaluated in blocks of [`LANES`], column by column, so that the loads of a block overlap. A single row
//! walks down several trees at once for the same reason.

use std::cmp::Ordering;

mod build;
mod eval;
mod leaves;

pub(crate) use build::{ForestBuilder, SourceNode, SourceTree, TreeError};
pub(crate) use eval::{Execution, Sink, check_output, run};
pub(crate) use leaves::{LeafIds, ScalarLeaves, VectorLeaves};

/// Rows that are evaluated together.
const LANES: usize = 16;
/// Rows that are evaluated together in single precision when there are enough.
const WIDE_LANES: usize = 2 * LANES;

/// A number type that thresholds and features are compared in.
pub(crate) trait Real: Copy + PartialOrd + Default + Send + Sync + 'static {
    /// Always below this or equal to it, unless NaN.
    const INFINITY: Self;
    const NAN: Self;

    /// The largest number of this type that is not above `threshold`, so that comparisons stay exact.
    fn threshold(threshold: f64) -> Self;
    fn from_f32(value: f32) -> Self;
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    /// Whether LightGBM takes the value for zero.
    fn is_zero(self) -> bool;
    fn is_nan(self) -> bool;
}

/// LightGBM takes values up to this distance from zero for zero (a single-precision constant there).
pub(crate) const ZERO_THRESHOLD: f32 = 1e-35;

impl Real for f32 {
    const INFINITY: Self = f32::INFINITY;
    const NAN: Self = f32::NAN;

    fn threshold(threshold: f64) -> Self {
        let nearest = threshold as f32;
        if f64::from(nearest) > threshold { nearest.next_down() } else { nearest }
    }
    fn from_f32(value: f32) -> Self {
        value
    }
    fn from_f64(value: f64) -> Self {
        value as f32
    }
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    fn is_zero(self) -> bool {
        self.abs() <= ZERO_THRESHOLD
    }
    fn is_nan(self) -> bool {
        f32::is_nan(self)
    }
}

impl Real for f64 {
    const INFINITY: Self = f64::INFINITY;
    const NAN: Self = f64::NAN;

    fn threshold(threshold: f64) -> Self {
        threshold
    }
    fn from_f32(value: f32) -> Self {
        f64::from(value)
    }
    fn from_f64(value: f64) -> Self {
        value
    }
    fn to_f64(self) -> f64 {
        self
    }
    fn is_zero(self) -> bool {
        self.abs() <= f64::from(ZERO_THRESHOLD)
    }
    fn is_nan(self) -> bool {
        f64::is_nan(self)
    }
}

/// Where a column of a block comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Column {
    /// The feature of the input row.
    pub(crate) feature: u32,
    /// Whether values that LightGBM takes for zero count as missing.
    pub(crate) zero_is_missing: bool,
}

/// A split that is not an order comparison; it answers "yes" or "no" for a value that is present.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Test {
    /// The whole part of the value is a member of the set, given as bits.
    InSet {
        /// Bit `i` of word `w` stands for member `32 * w + i`.
        words: Box<[u32]>,
        /// Whether values between -1 and 0 count as member 0 (LightGBM truncates, XGBoost refuses them).
        truncate_negative: bool,
    },
    /// The whole part of the value, which is not negative, is one of these, in ascending order.
    OneOf(Box<[u32]>),
    /// The value is equal to this one.
    Equal(f64),
    /// Nothing answers "yes".
    Never,
}

impl Test {
    fn accepts(&self, value: f64) -> bool {
        match self {
            Self::InSet { words, truncate_negative } => {
                let lowest = if *truncate_negative { -1.0 < value } else { 0.0 <= value };
                // The cast saturates: above the range and NaN both end outside of the set or are caught here.
                lowest && value < 4_294_967_296.0 && {
                    let member = value as u32;
                    words.get((member / 32) as usize).is_some_and(|word| word >> (member % 32) & 1 == 1)
                }
            }
            Self::OneOf(members) => {
                (0.0..4_294_967_296.0).contains(&value) && members.binary_search(&(value as u32)).is_ok()
            }
            Self::Equal(expected) => value.partial_cmp(expected).is_some_and(Ordering::is_eq),
            Self::Never => false,
        }
    }
}

/// One linked node; see the module's documentation for how leaves are spelled.
#[derive(Debug, Clone, Copy)]
struct Node<T> {
    threshold: T,
    /// The column in the low bits, [`MISSING_YES`] and [`SPECIAL`] in the high ones.
    column: u32,
    /// The "yes" child; the "no" child follows it.
    next: u32,
}

const MISSING_YES: u32 = 1 << 31;
const SPECIAL: u32 = 1 << 30;
const COLUMN_MASK: u32 = SPECIAL - 1;

/// One split of the top of a tree.
#[derive(Debug, Clone, Copy)]
struct TopSplit<T> {
    threshold: T,
    column: u32,
    /// The exits that stay when the answer is "no".
    keep: u32,
}

/// A special split of the top of a tree.
#[derive(Debug, Clone, Copy)]
struct TopTest {
    column: u32,
    keep: u32,
    test: u32,
    missing_yes: bool,
}

/// Where the parts of one tree are.
#[derive(Debug, Clone, Copy, Default)]
struct TreeSpan {
    root: u32,
    depth: u32,
    has_tests: bool,
    /// The splits of the top, first those where missing means "no"; none when the tree is only walked.
    top_start: u32,
    top_missing_yes: u32,
    top_end: u32,
    tests_start: u32,
    tests_end: u32,
    /// The first exit; each is a node, or the number of a leaf when no step is left.
    first_exit: u32,
    /// Steps from the deepest exit to the deepest leaf.
    steps_left: u32,
}

/// Trees compiled for evaluation in `T`.
#[derive(Debug, Clone)]
pub(crate) struct Forest<T> {
    columns: Vec<Column>,
    features: usize,
    trees: Vec<TreeSpan>,
    nodes: Vec<Node<T>>,
    /// For a leaf its number, for a special node its test; parallel to `nodes`.
    payload: Vec<u32>,
    tests: Vec<Test>,
    top_splits: Vec<TopSplit<T>>,
    top_tests: Vec<TopTest>,
    exits: Vec<u32>,
    /// The trees from shallow to deep, so that those walked together are alike.
    by_depth: Vec<u32>,
}

impl<T: Real> Forest<T> {
    pub(crate) fn tree_count(&self) -> usize {
        self.trees.len()
    }

    pub(crate) fn features(&self) -> usize {
        self.features
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let sets: usize = self
            .tests
            .iter()
            .map(|test| match test {
                Test::InSet { words, .. } | Test::OneOf(words) => size_of_val::<[u32]>(words),
                Test::Equal(_) | Test::Never => 0,
            })
            .sum();
        sets + size_of_val::<[Column]>(&self.columns)
            + size_of_val::<[TreeSpan]>(&self.trees)
            + size_of_val::<[Node<T>]>(&self.nodes)
            + size_of_val::<[u32]>(&self.payload)
            + size_of_val::<[Test]>(&self.tests)
            + size_of_val::<[TopSplit<T>]>(&self.top_splits)
            + size_of_val::<[TopTest]>(&self.top_tests)
            + size_of_val::<[u32]>(&self.exits)
            + size_of_val::<[u32]>(&self.by_depth)
    }
}
