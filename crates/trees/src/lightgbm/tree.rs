//! The trees of a LightGBM model, brought into the form of the evaluation core.

use super::text::Block;
use crate::error::ParseError;
use crate::forest::{Column, SourceNode, SourceTree, Test, ZERO_THRESHOLD};

const CATEGORICAL: u8 = 1;
const DEFAULT_LEFT: u8 = 2;

/// One tree: its nodes, and what its leaves hold by the library's leaf index.
pub(super) struct ReadTree {
    pub(super) nodes: SourceTree,
    pub(super) values: Vec<f64>,
    pub(super) linear: Option<Vec<LinearLeaf>>,
}

/// A leaf that is a linear function of some features.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LinearLeaf {
    pub(super) constant: f64,
    pub(super) terms: Vec<(u32, f64)>,
}

/// Reads tree number `number`.
pub(super) fn read(block: &Block<'_>, number: usize) -> Result<ReadTree, ParseError> {
    let leaves: usize = block.one("num_leaves")?;
    if leaves == 0 || u32::try_from(leaves).is_err() {
        return Err(block.error("num_leaves", format!("is {leaves}, but a tree has at least one leaf")));
    }
    let values: Vec<f64> = block.many("leaf_value", leaves)?;
    let mut nodes = if leaves == 1 { Vec::new() } else { read_splits(block, number, leaves)? };
    nodes.extend((0..leaves as u32).map(|leaf| SourceNode::Leaf { payload: leaf }));
    let linear = if block.one_or("is_linear", 0_u8)? == 0 { None } else { Some(read_linear(block, leaves)?) };
    Ok(ReadTree { nodes, values, linear })
}

fn read_splits(block: &Block<'_>, number: usize, leaves: usize) -> Result<SourceTree, ParseError> {
    let splits = leaves - 1;
    let features: Vec<u32> = block.many("split_feature", splits)?;
    let thresholds: Vec<f64> = block.many("threshold", splits)?;
    let types: Vec<u8> = block.many("decision_type", splits)?;
    let lefts: Vec<i64> = block.many("left_child", splits)?;
    let rights: Vec<i64> = block.many("right_child", splits)?;
    let mut sets = read_sets(block)?;
    let mut nodes = Vec::with_capacity(splits + leaves);
    let zipped = features.iter().zip(&thresholds).zip(&types).zip(&lefts).zip(&rights);
    for (index, ((((feature, threshold), kind), left), right)) in zipped.enumerate() {
        let error = |message: String| ParseError::tree(number, index, message);
        // Splits count up from zero; leaf `k` is spelled `-k - 1` and follows all splits here.
        let child = |child: i64| {
            let (position, limit) = if child < 0 { (-1 - child, leaves) } else { (child, splits) };
            match u32::try_from(position) {
                Ok(position) if (position as usize) < limit => {
                    Ok(if child < 0 { position + splits as u32 } else { position })
                }
                _ => Err(error(format!("child {child} is outside of the tree, which has {leaves} leaves"))),
            }
        };
        let (yes, no) = (child(*left)?, child(*right)?);
        if threshold.is_nan() {
            return Err(error("the threshold is not a number".into()));
        }
        let feature = *feature;
        if kind & CATEGORICAL != 0 {
            let set = (threshold.fract() == 0.0 && *threshold >= 0.0).then_some(*threshold as usize);
            let test = set.and_then(|set| sets.get_mut(set)).and_then(Option::take);
            let test =
                test.ok_or_else(|| error(format!("category set {threshold} does not exist or is shared")))?;
            let column = Column { feature, zero_is_missing: false };
            nodes.push(SourceNode::Special { column, test, missing_yes: false, yes, no });
            continue;
        }
        let default_left = kind & DEFAULT_LEFT != 0;
        let (zero_is_missing, missing_yes) = match kind >> 2 & 3 {
            // Not a number counts as zero where the feature had no missing values in training.
            0 => (false, 0.0 <= *threshold),
            1 => (true, default_left),
            2 => (false, default_left),
            _ => {
                return Err(error(format!(
                    "decision type {kind} has an unknown treatment of missing values"
                )));
            }
        };
        let column = Column { feature, zero_is_missing };
        nodes.push(SourceNode::Split { column, threshold: around_zero(*threshold), missing_yes, yes, no });
    }
    Ok(nodes)
}

/// The library takes tiny inputs for zero; moving tiny thresholds out of their way has the same effect.
fn around_zero(threshold: f64) -> f64 {
    let zero = f64::from(ZERO_THRESHOLD);
    if (0.0..zero).contains(&threshold) {
        zero
    } else if -zero <= threshold && threshold < 0.0 {
        (-zero).next_down()
    } else {
        threshold
    }
}

/// The category sets of a tree; each is handed out once.
fn read_sets(block: &Block<'_>) -> Result<Vec<Option<Test>>, ParseError> {
    let count: usize = block.one_or("num_cat", 0)?;
    if count == 0 {
        return Ok(Vec::new());
    }
    let boundaries: Vec<usize> = block.many("cat_boundaries", count.saturating_add(1))?;
    let total = boundaries.last().copied().unwrap_or(0);
    let words: Vec<u32> = block.many("cat_threshold", total)?;
    let set = |(start, end): (&usize, &usize)| {
        let words = words.get(*start..*end).ok_or_else(|| block.error("cat_boundaries", "do not ascend"))?;
        Ok(Some(Test::InSet { words: words.into(), truncate_negative: true }))
    };
    boundaries.iter().zip(boundaries.iter().skip(1)).map(set).collect()
}

fn read_linear(block: &Block<'_>, leaves: usize) -> Result<Vec<LinearLeaf>, ParseError> {
    let constants: Vec<f64> = block.many("leaf_const", leaves)?;
    let counts: Vec<usize> = block.many("num_features", leaves)?;
    let overflow = || block.error("num_features", "add up to too much");
    let total = counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count)).ok_or_else(overflow)?;
    let features: Vec<u32> = block.many("leaf_features", total)?;
    let slopes: Vec<f64> = block.many("leaf_coeff", total)?;
    let mut terms = features.into_iter().zip(slopes);
    let leaf = |(constant, count): (f64, usize)| LinearLeaf {
        constant,
        terms: terms.by_ref().take(count).collect(),
    };
    Ok(constants.into_iter().zip(counts).map(leaf).collect())
}
