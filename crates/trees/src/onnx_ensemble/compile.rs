//! From flat lists to trees: grouping, finding roots, and the core's two kinds of splits.

use std::collections::HashMap;

use super::scores::{Float, Leaves, SparseLeaves, Trees};
use super::{Aggregate, Builder, Mode, NodeSpec, WeightSpec};
use crate::error::ParseError;
use crate::forest::{
    Column, Forest, ForestBuilder, ScalarLeaves, SourceNode, SourceTree, Test, VectorLeaves,
};

impl Builder {
    pub(super) fn compile<T: Float>(&self) -> Result<Trees<T>, ParseError> {
        let grouped = self.group()?;
        let mut features = 0;
        for node in self.nodes.iter().filter(|node| node.mode != Mode::Leaf) {
            let feature = u32::try_from(node.feature).map_err(|_| {
                ParseError::field("nodes_featureids", format!("{} is not a feature", node.feature))
            })?;
            features = features.max(feature as usize + 1);
        }
        let mut forest: ForestBuilder<T> = Forest::builder(features);
        let mut leaves: Vec<&[WeightSpec]> = Vec::new();
        let mut leaf_trees = Vec::new();
        for (number, (nodes, weights)) in grouped.iter().enumerate() {
            let tree = source_tree::<T>(number, nodes)?;
            let order =
                forest.push(&tree).map_err(|error| ParseError::tree(number, error.node, error.message))?;
            for leaf in order {
                leaves.push(weights.get(leaf as usize).map_or(&[], Vec::as_slice));
                leaf_trees.push(number);
            }
        }
        let base = self.base_values.iter().map(|value| T::from_f64(*value)).collect();
        let leaves = layout(&leaves, &leaf_trees, grouped.len(), self.targets, self.aggregate)?;
        Ok(Trees { forest: forest.finish(), leaves, aggregate: self.aggregate, base })
    }

    /// Nodes by tree in order of first appearance, with the root first, and the weights of each node.
    #[allow(clippy::type_complexity, reason = "a private intermediate step")]
    fn group(&self) -> Result<Vec<(Vec<NodeSpec>, Vec<Vec<WeightSpec>>)>, ParseError> {
        let mut numbers: HashMap<i64, usize> = HashMap::new();
        let mut trees: Vec<(Vec<NodeSpec>, Vec<Vec<WeightSpec>>)> = Vec::new();
        for node in &self.nodes {
            let number = *numbers.entry(node.tree).or_insert(trees.len());
            if number == trees.len() {
                trees.push((Vec::new(), Vec::new()));
            }
            if let Some((nodes, _)) = trees.get_mut(number) {
                nodes.push(*node);
            }
        }
        let mut places = HashMap::new();
        for (number, (nodes, weights)) in trees.iter_mut().enumerate() {
            root_first(number, nodes)?;
            weights.resize(nodes.len(), Vec::new());
            places.extend(nodes.iter().enumerate().map(|(at, node)| ((node.tree, node.node), (number, at))));
        }
        for (index, weight) in self.weights.iter().enumerate() {
            let at = |message: String| ParseError::field(format!("weights[{index}]"), message);
            let place = places.get(&(weight.tree, weight.node)).copied();
            let Some((tree, node)) = place else {
                return Err(at(format!("node {} of tree {} does not exist", weight.node, weight.tree)));
            };
            if usize::try_from(weight.target).is_ok_and(|target| target < self.targets) {
                if let Some(weights) = trees.get_mut(tree).and_then(|(_, weights)| weights.get_mut(node)) {
                    weights.push(*weight);
                }
            } else {
                return Err(at(format!("target {} is not below {}", weight.target, self.targets)));
            }
        }
        Ok(trees)
    }
}

/// Moves the root, the one node without a parent, to the front.
fn root_first(tree: usize, nodes: &mut [NodeSpec]) -> Result<(), ParseError> {
    let children: std::collections::HashSet<i64> = nodes
        .iter()
        .filter(|node| node.mode != Mode::Leaf)
        .flat_map(|node| [node.true_node, node.false_node])
        .collect();
    let mut roots = nodes.iter().enumerate().filter(|(_, node)| !children.contains(&node.node));
    let root = match (roots.next(), roots.next()) {
        (Some((root, _)), None) => root,
        (None, _) => {
            return Err(ParseError::tree(tree, 0, "the tree has no root: every node is a child"));
        }
        (Some(_), Some((second, _))) => {
            return Err(ParseError::tree(
                tree,
                second,
                "the tree has two roots: a second node has no parent",
            ));
        }
    };
    nodes.swap(0, root);
    Ok(())
}

/// Brings the modes into the core's two kinds of splits.
fn source_tree<T: Float>(tree: usize, nodes: &[NodeSpec]) -> Result<SourceTree, ParseError> {
    let mut places = HashMap::with_capacity(nodes.len());
    for (at, node) in nodes.iter().enumerate() {
        if places.insert(node.node, at as u32).is_some() {
            return Err(ParseError::tree(tree, at, format!("node id {} is used twice", node.node)));
        }
    }
    nodes.iter().enumerate().map(|(at, node)| source_node::<T>(tree, at, node, &places)).collect()
}

fn source_node<T: Float>(
    tree: usize,
    at: usize,
    node: &NodeSpec,
    places: &HashMap<i64, u32>,
) -> Result<SourceNode, ParseError> {
    if node.mode == Mode::Leaf {
        return Ok(SourceNode::Leaf { payload: at as u32 });
    }
    if node.threshold.is_nan() {
        return Err(ParseError::tree(tree, at, "the threshold is not a number"));
    }
    let child = |id: i64| {
        let place = places.get(&id).copied();
        place.ok_or_else(|| ParseError::tree(tree, at, format!("child {id} does not exist")))
    };
    let (on_true, on_false) = (child(node.true_node)?, child(node.false_node)?);
    let column = Column { feature: node.feature as u32, zero_is_missing: false };
    let missing = node.missing_tracks_true;
    let exact = T::from_f64(node.threshold);
    // A "greater" is a "not at most": the branches swap, and with them where a missing value goes.
    let (test, missing_yes, yes, no) = match node.mode {
        Mode::Leq | Mode::Leaf => (Ok(exact), missing, on_true, on_false),
        Mode::Lt => (exact.below().ok_or(Test::Never), missing, on_true, on_false),
        Mode::Gt => (Ok(exact), !missing, on_false, on_true),
        Mode::Gte => (exact.below().ok_or(Test::Never), !missing, on_false, on_true),
        Mode::Eq => (Err(Test::Equal(exact.to_f64())), missing, on_true, on_false),
        Mode::Neq => (Err(Test::Equal(exact.to_f64())), false, on_false, on_true),
    };
    Ok(match test {
        Ok(threshold) => SourceNode::Split { column, threshold: threshold.to_f64(), missing_yes, yes, no },
        Err(test) => SourceNode::Special { column, test, missing_yes, yes, no },
    })
}

/// Chooses how leaf weights are stored.
fn layout<T: Float>(
    leaves: &[&[WeightSpec]],
    leaf_trees: &[usize],
    trees: usize,
    targets: usize,
    aggregate: Aggregate,
) -> Result<Leaves<T>, ParseError> {
    let start = vec![T::default(); targets];
    let sums = matches!(aggregate, Aggregate::Sum | Aggregate::Average);
    if sums && leaves.iter().all(|leaf| leaf.len() == 1) {
        let mut groups: Vec<Option<u32>> = vec![None; trees];
        let mut one_target_per_tree = true;
        for (weight, tree) in leaves.iter().flat_map(|leaf| leaf.iter()).zip(leaf_trees) {
            let target = weight.target as u32;
            one_target_per_tree &=
                groups.get_mut(*tree).is_some_and(|group| *group.get_or_insert(target) == target);
        }
        if one_target_per_tree {
            let values = leaves.iter().flat_map(|leaf| leaf.iter()).map(|weight| T::from_f64(weight.weight));
            let groups = groups.into_iter().map(|group| group.unwrap_or(0)).collect();
            return Ok(Leaves::Scalar(ScalarLeaves { values: values.collect(), groups, start }));
        }
    }
    let dense = |leaf: &&[WeightSpec]| {
        leaf.len() == targets
            && leaf.iter().enumerate().all(|(target, weight)| weight.target == target as i64)
    };
    if sums && leaves.iter().all(dense) {
        let values = leaves.iter().flat_map(|leaf| leaf.iter()).map(|weight| T::from_f64(weight.weight));
        return Ok(Leaves::Vector(VectorLeaves { values: values.collect(), start }));
    }
    let mut starts = Vec::with_capacity(leaves.len() + 1);
    let mut entries = Vec::new();
    for leaf in leaves {
        starts.push(entries.len() as u32);
        entries.extend(leaf.iter().map(|weight| (weight.target as u32, T::from_f64(weight.weight))));
    }
    let total = u32::try_from(entries.len()).map_err(|_| ParseError::field("weights", "too many weights"))?;
    starts.push(total);
    Ok(Leaves::Sparse(SparseLeaves { starts, entries, targets, aggregate }))
}
