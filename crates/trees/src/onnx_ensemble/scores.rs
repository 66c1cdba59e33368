//! Compiled trees with their leaf weights, and how those become scores.

use super::Aggregate;
use crate::forest::{Execution, Forest, Real, ScalarLeaves, Sink, VectorLeaves, run};
use crate::rows::Rows;

#[derive(Debug, Clone)]
pub(super) struct Trees<T> {
    pub(super) forest: Forest<T>,
    pub(super) leaves: Leaves<T>,
    pub(super) aggregate: Aggregate,
    pub(super) base: Vec<T>,
}

/// Leaf weights in the cheapest layout that can express them.
#[derive(Debug, Clone)]
pub(super) enum Leaves<T> {
    Scalar(ScalarLeaves<T>),
    Vector(VectorLeaves<T>),
    Sparse(SparseLeaves<T>),
}

/// Any number of weights per leaf.
#[derive(Debug, Clone)]
pub(super) struct SparseLeaves<T> {
    /// By leaf number; the entries of a leaf end where those of the next one start.
    pub(super) starts: Vec<u32>,
    pub(super) entries: Vec<(u32, T)>,
    pub(super) targets: usize,
    pub(super) aggregate: Aggregate,
}

/// What scores need of a number type beyond comparisons.
pub(super) trait Float: Real + std::ops::AddAssign + std::ops::Div<Output = Self> {
    /// The next number below, unless there is none.
    fn below(self) -> Option<Self>;
    /// The smaller one; NaN gives way.
    fn smaller(self, other: Self) -> Self;
    /// The larger one; NaN gives way.
    fn larger(self, other: Self) -> Self;
}

macro_rules! float {
    ($type:ty) => {
        impl Float for $type {
            fn below(self) -> Option<Self> {
                (self != <$type>::NEG_INFINITY).then(|| self.next_down())
            }
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
        }
    };
}
float!(f32);
float!(f64);

#[allow(clippy::indexing_slicing, reason = "starts and targets were made together with the leaves, in range")]
impl<T: Float> Sink<T> for SparseLeaves<T> {
    type Out = T;

    fn width(&self) -> usize {
        self.targets
    }
    fn start(&self, _: usize) -> T {
        match self.aggregate {
            Aggregate::Sum | Aggregate::Average => T::default(),
            // Gives way to the first weight.
            Aggregate::Min | Aggregate::Max => T::NAN,
        }
    }
    fn take<const L: usize>(&self, _: usize, leaves: &[u32; L], _: &[[T; L]], sums: &mut [[T; L]]) {
        for (lane, leaf) in leaves.iter().enumerate() {
            let (start, end) = (self.starts[*leaf as usize], self.starts[*leaf as usize + 1]);
            for (target, weight) in &self.entries[start as usize..end as usize] {
                let sum = &mut sums[*target as usize][lane];
                match self.aggregate {
                    Aggregate::Sum | Aggregate::Average => *sum += *weight,
                    Aggregate::Min => *sum = sum.smaller(*weight),
                    Aggregate::Max => *sum = sum.larger(*weight),
                }
            }
        }
    }
}

impl<T: Float> Trees<T> {
    pub(super) fn scores(&self, rows: &Rows<'_>, execution: &Execution<'_>) -> Vec<T> {
        let mut scores = match &self.leaves {
            Leaves::Scalar(leaves) => run(&self.forest, leaves, rows, execution),
            Leaves::Vector(leaves) => run(&self.forest, leaves, rows, execution),
            Leaves::Sparse(leaves) => run(&self.forest, leaves, rows, execution),
        };
        match self.aggregate {
            Aggregate::Average if self.forest.tree_count() > 0 => {
                let trees = T::from_f64(self.forest.tree_count() as f64);
                for score in &mut scores {
                    *score = *score / trees;
                }
            }
            Aggregate::Min | Aggregate::Max => {
                scores.iter_mut().filter(|score| score.is_nan()).for_each(|score| *score = T::default());
            }
            Aggregate::Sum | Aggregate::Average => {}
        }
        if !self.base.is_empty() {
            for row in scores.chunks_exact_mut(self.base.len()) {
                row.iter_mut().zip(&self.base).for_each(|(score, base)| *score += *base);
            }
        }
        scores
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let leaves = match &self.leaves {
            Leaves::Scalar(leaves) => {
                size_of_val::<[T]>(&leaves.values) + size_of_val::<[u32]>(&leaves.groups)
            }
            Leaves::Vector(leaves) => size_of_val::<[T]>(&leaves.values),
            Leaves::Sparse(leaves) => {
                size_of_val::<[u32]>(&leaves.starts) + size_of_val::<[(u32, T)]>(&leaves.entries)
            }
        };
        self.forest.memory_bytes() + leaves
    }
}
