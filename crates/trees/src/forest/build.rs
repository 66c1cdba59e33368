//! Proves that source trees are trees and lays them out for evaluation.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::{
    COLUMN_MASK, Column, Forest, MISSING_YES, Node, Real, SPECIAL, Test, TopSplit, TopTest, TreeSpan,
};

/// A node as produced by a reader; children are indices into the nodes of the same tree.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SourceNode {
    /// `value <= threshold`.
    Split { column: Column, threshold: f64, missing_yes: bool, yes: u32, no: u32 },
    /// Any other test.
    Special { column: Column, test: Test, missing_yes: bool, yes: u32, no: u32 },
    /// Ends the walk; the payload is the reader's name for the leaf.
    Leaf { payload: u32 },
}

impl SourceNode {
    fn children(&self) -> Option<(u32, u32)> {
        match self {
            Self::Split { yes, no, .. } | Self::Special { yes, no, .. } => Some((*yes, *no)),
            Self::Leaf { .. } => None,
        }
    }
}

/// A tree as produced by a reader; the root is node zero, nodes that cannot be reached are allowed.
pub(crate) type SourceTree = Vec<SourceNode>;

/// An invalid source tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TreeError {
    pub(crate) node: usize,
    pub(crate) message: String,
}

/// Exits of a top are the bits of one word.
const MAX_TOP_SPLITS: u32 = 31;
/// Fixed cost of a walk from the exits, in splits of the top.
const WALK_START: u32 = 12;
/// Cost of one step of a walk, in splits of the top.
const WALK_STEP: u32 = 10;

/// A forest under construction.
#[derive(Debug)]
pub(crate) struct ForestBuilder<T> {
    forest: Forest<T>,
    columns: HashMap<Column, u32>,
    leaves: u32,
}

impl<T: Real> Forest<T> {
    /// Starts a forest over rows of `features` features.
    pub(crate) fn builder(features: usize) -> ForestBuilder<T> {
        ForestBuilder {
            forest: Forest {
                columns: Vec::new(),
                features,
                trees: Vec::new(),
                nodes: Vec::new(),
                payload: Vec::new(),
                tests: Vec::new(),
                top_splits: Vec::new(),
                top_tests: Vec::new(),
                exits: Vec::new(),
                by_depth: Vec::new(),
            },
            columns: HashMap::new(),
            leaves: 0,
        }
    }
}

/// A node in breadth-first order, with its layout data.
struct Placed<'a> {
    node: &'a SourceNode,
    /// Position of the "yes" child in the order; the "no" child follows.
    next: u32,
    /// Steps to the deepest leaf below.
    height: u32,
    /// Leaves below, and the number of the first one, from "yes" to "no".
    leaves: Span,
    /// The same for exits of the top.
    exits: Span,
    /// Whether the split belongs to the top.
    in_top: bool,
}

/// Consecutive numbers.
#[derive(Debug, Clone, Copy)]
struct Span {
    first: u32,
    count: u32,
}

impl<T: Real> ForestBuilder<T> {
    /// The column number of a feature, for sinks that read values of the block themselves.
    pub(crate) fn column(&mut self, column: Column) -> Result<u32, TreeError> {
        if column.feature as usize >= self.forest.features {
            let message =
                format!("splits on feature {}, but the model has {}", column.feature, self.forest.features);
            return Err(TreeError { node: 0, message });
        }
        let next = self.columns.len() as u32;
        if next > COLUMN_MASK {
            return Err(TreeError { node: 0, message: "the model uses too many features".into() });
        }
        let forest = &mut self.forest;
        Ok(*self.columns.entry(column).or_insert_with(|| {
            forest.columns.push(column);
            next
        }))
    }

    /// Adds a tree and returns the payloads of its leaves in the order in which they are numbered.
    pub(crate) fn push(&mut self, tree: &[SourceNode]) -> Result<Vec<u32>, TreeError> {
        let placed = place(tree)?;
        let too_large = || TreeError { node: 0, message: "the model has too many nodes".into() };
        let root = u32::try_from(self.forest.nodes.len()).map_err(|_| too_large())?;
        if u32::try_from(self.forest.nodes.len() + placed.len()).is_err() {
            return Err(too_large());
        }
        let first_leaf = self.leaves;
        let (leaf_count, depth) = placed.first().map_or((0, 0), |root| (root.leaves.count, root.height));
        // There are fewer leaves than nodes, so the sum cannot overflow either.
        self.leaves += leaf_count;

        let mut order = vec![0; leaf_count as usize];
        let first_test = self.forest.tests.len();
        for (position, at) in placed.iter().enumerate() {
            let (node, payload) = match at.node {
                SourceNode::Leaf { payload } => {
                    if let Some(slot) = order.get_mut(at.leaves.first as usize) {
                        *slot = *payload;
                    }
                    let itself = root + position as u32;
                    let node = Node { threshold: T::INFINITY, column: MISSING_YES, next: itself };
                    (node, first_leaf + at.leaves.first)
                }
                SourceNode::Split { column, threshold, missing_yes, .. } => {
                    let flags = if *missing_yes { MISSING_YES } else { 0 };
                    let (column, threshold) = (self.column(*column)? | flags, T::threshold(*threshold));
                    (Node { threshold, column, next: root + at.next }, 0)
                }
                SourceNode::Special { column, test, missing_yes, .. } => {
                    let number = u32::try_from(self.forest.tests.len()).map_err(|_| too_large())?;
                    self.forest.tests.push(test.clone());
                    let flags = SPECIAL | if *missing_yes { MISSING_YES } else { 0 };
                    let column = self.column(*column)? | flags;
                    (Node { threshold: T::INFINITY, column, next: root + at.next }, number)
                }
            };
            self.forest.nodes.push(node);
            self.forest.payload.push(payload);
        }
        let has_tests = self.forest.tests.len() > first_test;
        let span = self.push_top(&placed, TreeSpan { root, depth, has_tests, ..TreeSpan::default() });
        self.forest.trees.push(span);
        Ok(order)
    }

    /// Adds the top of the tree that was placed last.
    fn push_top(&mut self, placed: &[Placed<'_>], span: TreeSpan) -> TreeSpan {
        let forest = &mut self.forest;
        let top_start = forest.top_splits.len() as u32;
        let tests_start = forest.top_tests.len() as u32;
        let first_exit = forest.exits.len() as u32;
        let (nodes, payload) = (&forest.nodes, &forest.payload);
        let at = |position: usize| {
            let number = span.root as usize + position;
            nodes.get(number).copied().zip(payload.get(number).copied())
        };
        let mut splits = Vec::new();
        let mut exits = Vec::new();
        let mut steps_left = 0;
        for (position, place) in placed.iter().enumerate() {
            let Some((node, payload)) = at(position) else { continue };
            if !place.in_top {
                if place.exits.count == 1 {
                    exits.push((place.exits.first, position, payload));
                    steps_left = steps_left.max(place.height);
                }
                continue;
            }
            let Some(yes) = placed.get(place.next as usize) else { continue };
            let cleared = u32::MAX >> (32 - yes.exits.count) << yes.exits.first;
            let column = node.column & COLUMN_MASK;
            let missing_yes = node.column & MISSING_YES != 0;
            if node.column & SPECIAL == 0 {
                splits.push((missing_yes, TopSplit { threshold: node.threshold, column, keep: !cleared }));
            } else {
                forest.top_tests.push(TopTest { column, keep: !cleared, test: payload, missing_yes });
            }
        }
        exits.sort_unstable();
        for (_, position, leaf) in exits {
            forest.exits.push(if steps_left == 0 { leaf } else { span.root + position as u32 });
        }
        let missing_no = splits.iter().filter(|(missing_yes, _)| !missing_yes).count() as u32;
        splits.sort_by_key(|(missing_yes, split)| (*missing_yes, split.column));
        forest.top_splits.extend(splits.into_iter().map(|(_, split)| split));
        TreeSpan {
            top_start,
            top_missing_yes: top_start + missing_no,
            top_end: forest.top_splits.len() as u32,
            tests_start,
            tests_end: forest.top_tests.len() as u32,
            first_exit,
            steps_left,
            ..span
        }
    }

    /// Ends the construction.
    pub(crate) fn finish(mut self) -> Forest<T> {
        let forest = &mut self.forest;
        forest.by_depth = (0..forest.trees.len() as u32).collect();
        let trees = &forest.trees;
        forest.by_depth.sort_by_key(|number| trees.get(*number as usize).map(|tree| tree.depth));
        forest.columns.shrink_to_fit();
        forest.trees.shrink_to_fit();
        forest.nodes.shrink_to_fit();
        forest.payload.shrink_to_fit();
        forest.tests.shrink_to_fit();
        forest.top_splits.shrink_to_fit();
        forest.top_tests.shrink_to_fit();
        forest.exits.shrink_to_fit();
        self.forest
    }
}

/// Orders the reachable nodes breadth first, with adjacent children, and numbers the leaves from "yes" to "no".
fn place(tree: &[SourceNode]) -> Result<Vec<Placed<'_>>, TreeError> {
    if u32::try_from(tree.len()).is_err() {
        return Err(TreeError { node: 0, message: "the tree has too many nodes".into() });
    }
    let mut seen = vec![false; tree.len()];
    let mut placed: Vec<Placed<'_>> = Vec::with_capacity(tree.len());
    let mut visit = |parent: usize, index: u32| {
        let index = index as usize;
        let (Some(node), Some(seen)) = (tree.get(index), seen.get_mut(index)) else {
            let message = format!("child {index} is outside of the tree, which has {} nodes", tree.len());
            return Err(TreeError { node: parent, message });
        };
        if std::mem::replace(seen, true) {
            let message = format!("child {index} is reached twice: the nodes form a cycle or share a child");
            return Err(TreeError { node: parent, message });
        }
        // Until its children are placed, `next` remembers where the node was found.
        let one = Span { first: 0, count: 1 };
        let next = index as u32;
        Ok(Placed { node, next, height: 0, leaves: one, exits: one, in_top: false })
    };
    placed.push(visit(0, 0)?);
    let mut position = 0;
    while let Some(at) = placed.get(position) {
        let source = at.next as usize;
        if let Some((yes, no)) = at.node.children() {
            let next = placed.len() as u32;
            placed.push(visit(source, yes)?);
            placed.push(visit(source, no)?);
            if let Some(at) = placed.get_mut(position) {
                at.next = next;
            }
        }
        position += 1;
    }
    measure(&mut placed);
    choose_top(&mut placed);
    number(&mut placed, |at| at.node.children().is_some(), |at| &mut at.leaves);
    number(&mut placed, |at| at.in_top, |at| &mut at.exits);
    Ok(placed)
}

/// Heights, from the last node to the first.
fn measure(placed: &mut [Placed<'_>]) {
    for position in (0..placed.len()).rev() {
        let Some(at) = placed.get(position) else { continue };
        if at.node.children().is_some() {
            let child = |position: u32| placed.get(position as usize).map_or(0, |at| at.height);
            let height = 1 + child(at.next).max(child(at.next + 1));
            if let Some(at) = placed.get_mut(position) {
                at.height = height;
            }
        }
    }
}

/// Takes splits into the top, always where most steps are left, and stops where the costs are lowest.
fn choose_top(placed: &mut [Placed<'_>]) {
    let mut frontier = BinaryHeap::new();
    frontier.extend(placed.first().map(|root| (root.height, Reverse(0_u32))));
    let mut taken = Vec::new();
    let mut best = (u32::MAX, 0);
    while let Some((height, Reverse(position))) = frontier.pop() {
        let walk = if height == 0 { 0 } else { WALK_START.saturating_add(height.saturating_mul(WALK_STEP)) };
        let cost = walk.saturating_add(taken.len() as u32);
        best = best.min((cost, taken.len()));
        if height == 0 || taken.len() as u32 == MAX_TOP_SPLITS {
            break;
        }
        taken.push(position);
        let next = placed.get(position as usize).map_or(0, |at| at.next);
        for child in [next, next + 1] {
            frontier.extend(placed.get(child as usize).map(|at| (at.height, Reverse(child))));
        }
    }
    for position in taken.iter().take(best.1) {
        if let Some(at) = placed.get_mut(*position as usize) {
            at.in_top = true;
        }
    }
}

/// Counts what is below each node from the last one to the first, then hands out numbers from the root down.
fn number<'a>(
    placed: &mut [Placed<'a>],
    is_inner: impl Fn(&Placed<'a>) -> bool,
    span: impl for<'p> Fn(&'p mut Placed<'a>) -> &'p mut Span,
) {
    for position in (0..placed.len()).rev() {
        let Some((head, below)) = split_at_children(placed, position) else { continue };
        if is_inner(head) {
            span(head).count = below.iter_mut().map(|child| span(child).count).sum();
        }
    }
    for position in 0..placed.len() {
        let Some((head, below)) = split_at_children(placed, position) else { continue };
        let inner = is_inner(head);
        let mut first = span(head).first;
        for child in below {
            let child = span(child);
            if inner {
                child.first = first;
                first += child.count;
            } else {
                // Below the exits there is nothing to number.
                child.count = 0;
            }
        }
    }
}

/// A node and its two children, which come later in the order; nothing for leaves.
fn split_at_children<'p, 'a>(
    placed: &'p mut [Placed<'a>],
    position: usize,
) -> Option<(&'p mut Placed<'a>, &'p mut [Placed<'a>])> {
    let at = placed.get(position)?;
    at.node.children()?;
    let next = at.next as usize;
    let (head, below) = placed.split_at_mut_checked(next)?;
    Some((head.get_mut(position)?, below.get_mut(..2)?))
}
