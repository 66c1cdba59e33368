//! Leaf contents: one value, a value per output, or the leaf's number.
#![allow(
    clippy::indexing_slicing,
    reason = "leaf and tree numbers come from the forest the values were made for; groups were checked against \
              the width when the sink was made"
)]

use std::ops::AddAssign;

use super::Sink;

/// One value per leaf, added to the output of its tree.
#[derive(Debug, Clone)]
pub(crate) struct ScalarLeaves<A> {
    /// By leaf number.
    pub(crate) values: Vec<A>,
    /// The output of each tree.
    pub(crate) groups: Vec<u32>,
    /// Where the outputs start.
    pub(crate) start: Vec<A>,
}

impl<T, A: Copy + Default + AddAssign + Send + Sync> Sink<T> for ScalarLeaves<A> {
    type Out = A;

    fn width(&self) -> usize {
        self.start.len()
    }
    fn start(&self, output: usize) -> A {
        self.start[output]
    }
    #[inline]
    fn take<const L: usize>(&self, tree: usize, leaves: &[u32; L], _: &[[T; L]], sums: &mut [[A; L]]) {
        let sums = &mut sums[self.groups[tree] as usize];
        for (sum, leaf) in sums.iter_mut().zip(leaves) {
            *sum += self.values[*leaf as usize];
        }
    }
}

/// One value per leaf and output.
#[derive(Debug, Clone)]
pub(crate) struct VectorLeaves<A> {
    /// By leaf number, then output.
    pub(crate) values: Vec<A>,
    /// Where the outputs start.
    pub(crate) start: Vec<A>,
}

impl<T, A: Copy + Default + AddAssign + Send + Sync> Sink<T> for VectorLeaves<A> {
    type Out = A;

    fn width(&self) -> usize {
        self.start.len()
    }
    fn start(&self, output: usize) -> A {
        self.start[output]
    }
    #[inline]
    fn take<const L: usize>(&self, _: usize, leaves: &[u32; L], _: &[[T; L]], sums: &mut [[A; L]]) {
        let width = self.start.len();
        for (lane, leaf) in leaves.iter().enumerate() {
            let values = &self.values[*leaf as usize * width..][..width];
            for (sum, value) in sums.iter_mut().zip(values) {
                sum[lane] += *value;
            }
        }
    }
}

/// The library's own number of the leaf that each tree ends in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeafIds<'a> {
    /// By leaf number.
    pub(crate) ids: &'a [u32],
    pub(crate) trees: usize,
}

impl<T> Sink<T> for LeafIds<'_> {
    type Out = u32;

    fn width(&self) -> usize {
        self.trees
    }
    fn start(&self, _: usize) -> u32 {
        0
    }
    fn take<const L: usize>(&self, tree: usize, leaves: &[u32; L], _: &[[T; L]], sums: &mut [[u32; L]]) {
        sums[tree] = leaves.map(|leaf| self.ids[leaf as usize]);
    }
}
