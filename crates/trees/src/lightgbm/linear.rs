//! Leaves that are linear functions of some features.
#![allow(
    clippy::indexing_slicing,
    reason = "leaf, tree and column numbers come from the forest that the leaves were made with"
)]

use crate::forest::{Real, ScalarLeaves, Sink};

/// Linear functions by leaf number; where a feature is missing, the constant value of the leaf counts.
#[derive(Debug, Clone)]
pub(super) struct LinearLeaves {
    fallback: ScalarLeaves<f64>,
    /// Not there for leaves of trees that are not linear.
    constants: Vec<Option<f64>>,
    /// The terms of a leaf end where those of the next one start.
    starts: Vec<usize>,
    /// Columns of the block, and slopes.
    terms: Vec<(u32, f64)>,
}

impl LinearLeaves {
    /// Starts after `leaves` leaves that are not linear.
    pub(super) fn over(leaves: usize) -> Self {
        let fallback = ScalarLeaves { values: Vec::new(), groups: Vec::new(), start: Vec::new() };
        Self { fallback, constants: vec![None; leaves], starts: vec![0; leaves], terms: Vec::new() }
    }

    pub(super) fn push(&mut self, constant: Option<f64>, terms: Vec<(u32, f64)>) {
        self.constants.push(constant);
        self.starts.push(self.terms.len());
        self.terms.extend(terms);
    }

    /// Ends the construction with the constant values of all leaves.
    pub(super) fn finish(mut self, fallback: ScalarLeaves<f64>) -> Self {
        self.starts.push(self.terms.len());
        Self { fallback, ..self }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        8 * self.fallback.values.len()
            + 4 * self.fallback.groups.len()
            + size_of_val::<[Option<f64>]>(&self.constants)
            + size_of_val::<[usize]>(&self.starts)
            + size_of_val::<[(u32, f64)]>(&self.terms)
    }

    fn value<T: Real, const L: usize>(&self, leaf: usize, lane: usize, block: &[[T; L]]) -> f64 {
        let Some(mut sum) = self.constants[leaf] else { return self.fallback.values[leaf] };
        for (column, slope) in &self.terms[self.starts[leaf]..self.starts[leaf + 1]] {
            let value = block[*column as usize][lane].to_f64();
            if value.is_nan() {
                return self.fallback.values[leaf];
            }
            sum += slope * value;
        }
        sum
    }
}

impl<T: Real> Sink<T> for LinearLeaves {
    type Out = f64;

    fn width(&self) -> usize {
        self.fallback.start.len()
    }
    fn start(&self, output: usize) -> f64 {
        self.fallback.start[output]
    }
    fn take<const L: usize>(&self, tree: usize, leaves: &[u32; L], block: &[[T; L]], sums: &mut [[f64; L]]) {
        let sums = &mut sums[self.fallback.groups[tree] as usize];
        for (lane, (sum, leaf)) in sums.iter_mut().zip(leaves).enumerate() {
            *sum += self.value(*leaf as usize, lane, block);
        }
    }
}
