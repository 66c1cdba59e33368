//! The trees of an XGBoost model, brought into the form of the evaluation core.

use super::document::At;
use crate::error::ParseError;
use crate::forest::{Column, SourceNode, SourceTree, Test};

/// Categories at or above this are never valid.
const MAX_CATEGORY: f64 = 16_777_216.0;

/// One tree: its nodes, and one value per node and output (only those of leaves mean something).
pub(super) struct ReadTree<'a> {
    pub(super) nodes: SourceTree,
    values: &'a [f64],
    /// For vector leaves: which row of the values belongs to a leaf, by node.
    rows: Option<&'a [f64]>,
    pub(super) outputs: usize,
}

impl<'a> ReadTree<'a> {
    /// The values of a leaf, one per output.
    pub(super) fn leaf(&self, node: u32) -> Option<&'a [f64]> {
        let row = match self.rows {
            None => node as usize,
            Some(rows) => rows.get(node as usize).and_then(|row| whole(*row))? as usize,
        };
        let start = row.checked_mul(self.outputs)?;
        self.values.get(start..start.checked_add(self.outputs)?)
    }
}

fn whole(number: f64) -> Option<u32> {
    (number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number)).then_some(number as u32)
}

/// Reads tree number `number`.
pub(super) fn read<'a>(tree: &At<'a>, number: usize) -> Result<ReadTree<'a>, ParseError> {
    let left = tree.key("left_children")?.numbers()?;
    let column = |name: &str| -> Result<&'a [f64], ParseError> {
        let at = tree.key(name)?;
        let numbers = at.numbers()?;
        if numbers.len() == left.len() {
            return Ok(numbers);
        }
        Err(at.error(format!("has {} entries, but `left_children` has {}", numbers.len(), left.len())))
    };
    let right = column("right_children")?;
    let features = column("split_indices")?;
    let thresholds = column("split_conditions")?;
    let default_left = column("default_left")?;
    // Models older than categorical splits have no type.
    let types = if tree.find("split_type").is_some() { column("split_type")? } else { &[] };
    let (mut outputs, mut count) = (1, left.len());
    if let Some(parameters) = tree.find("tree_param") {
        if let Some(width) = parameters.find("size_leaf_vector") {
            outputs = width.count()?.max(1);
        }
        if let Some(nodes) = parameters.find("num_nodes") {
            count = nodes.count()?;
        }
    }
    if count != left.len() {
        return Err(tree.error(format!("`num_nodes` is {count}, but there are {} nodes", left.len())));
    }
    let mut sets = category_sets(tree, number, left.len())?;

    let mut nodes = Vec::with_capacity(left.len());
    let splits = left.iter().zip(right).zip(features).zip(thresholds).zip(default_left);
    for (index, ((((left, right), feature), threshold), default_left)) in splits.enumerate() {
        #[allow(clippy::float_cmp, reason = "the library's mark of a missing child")]
        if *left == -1.0 {
            nodes.push(SourceNode::Leaf { payload: index as u32 });
            continue;
        }
        let child = |child: f64| {
            whole(child)
                .ok_or_else(|| ParseError::tree(number, index, format!("{child} is not a child index")))
        };
        let (left, right) = (child(*left)?, child(*right)?);
        let feature = whole(*feature)
            .ok_or_else(|| ParseError::tree(number, index, format!("{feature} is not a feature index")))?;
        let column = Column { feature, zero_is_missing: false };
        let default_left = *default_left != 0.0;
        nodes.push(if types.get(index).is_some_and(|kind| *kind != 0.0) {
            // Members of the set go right, so the answers swap sides.
            let test = sets.get_mut(index).and_then(Option::take).ok_or_else(|| {
                ParseError::tree(number, index, "is a categorical split, but no categories are listed for it")
            })?;
            SourceNode::Special { column, test, missing_yes: !default_left, yes: right, no: left }
        } else {
            let threshold = *threshold as f32;
            if threshold.is_nan() {
                return Err(ParseError::tree(number, index, "the threshold is not a number"));
            }
            if threshold == f32::NEG_INFINITY {
                let (test, missing_yes) = (Test::Never, default_left);
                SourceNode::Special { column, test, missing_yes, yes: left, no: right }
            } else {
                // "Less than" is "at most the next number below".
                let threshold = f64::from(threshold.next_down());
                SourceNode::Split { column, threshold, missing_yes: default_left, yes: left, no: right }
            }
        });
    }
    let (values, rows) = if outputs == 1 {
        (thresholds, None)
    } else if let Some(weights) = tree.find("leaf_weights") {
        (weights.numbers()?, Some(right))
    } else {
        (tree.key("base_weights")?.numbers()?, None)
    };
    Ok(ReadTree { nodes, values, rows, outputs })
}

/// The set of each categorical node, by node.
fn category_sets(tree: &At<'_>, number: usize, nodes: usize) -> Result<Vec<Option<Test>>, ParseError> {
    let Some(members) = tree.find("categories_nodes") else { return Ok(Vec::new()) };
    let owners = members.numbers()?;
    if owners.is_empty() {
        return Ok(Vec::new());
    }
    let categories = tree.key("categories")?.numbers()?;
    let starts = tree.key("categories_segments")?.numbers()?;
    let sizes = tree.key("categories_sizes")?.numbers()?;
    if starts.len() != owners.len() || sizes.len() != owners.len() {
        return Err(tree.error("`categories_nodes`, `_segments` and `_sizes` differ in length"));
    }
    let mut sets: Vec<Option<Test>> = vec![None; nodes];
    // Segments do not overlap in real models; allowing it would let a small file grow without bound.
    let mut left = categories.len();
    for ((owner, start), size) in owners.iter().zip(starts).zip(sizes) {
        let node = whole(*owner).unwrap_or(u32::MAX) as usize;
        let error = |message: &str| ParseError::tree(number, node, message);
        let segment = whole(*start).zip(whole(*size)).and_then(|(start, size)| {
            let (start, size) = (start as usize, size as usize);
            left = left.checked_sub(size)?;
            categories.get(start..start.checked_add(size)?)
        });
        let segment =
            segment.ok_or_else(|| error("its categories are outside of the list or overlap others"))?;
        let slot = sets.get_mut(node).ok_or_else(|| error("has categories, but is outside of the tree"))?;
        if slot.is_some() {
            return Err(error("has two lists of categories"));
        }
        *slot = Some(set(segment).ok_or_else(|| error("a category is not a whole number in range"))?);
    }
    Ok(sets)
}

/// A set as bits where that is compact, else as a sorted list, so that memory follows the file's size.
fn set(members: &[f64]) -> Option<Test> {
    let in_range = |member: &f64| if *member < MAX_CATEGORY { whole(*member) } else { None };
    let mut members: Vec<u32> = members.iter().map(in_range).collect::<Option<_>>()?;
    members.sort_unstable();
    members.dedup();
    let word_count = members.last().map_or(0, |last| *last as usize / 32 + 1);
    if word_count > 16 + members.len() {
        return Some(Test::OneOf(members.into()));
    }
    let mut words = vec![0_u32; word_count];
    for member in members {
        if let Some(word) = words.get_mut(member as usize / 32) {
            *word |= 1 << (member % 32);
        }
    }
    Some(Test::InSet { words: words.into(), truncate_negative: false })
}
