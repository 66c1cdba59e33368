//! Comparison of the answers of two versions to one request.

use super::{VersionCounters, values::numbers};
use gantry_oip::InferTensor;
use gantry_tensor::{Elements, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

/// Counts whether the version that got a copy of a request answers as the version that the client got.
pub(crate) struct AnswerComparison {
    /// Of the version that got the copy.
    counters: Arc<VersionCounters>,
    /// Relative difference up to which numbers are equal.
    tolerance: f64,
    /// The answer that arrived first.
    first: Mutex<Option<Vec<InferTensor>>>,
}

impl AnswerComparison {
    pub(super) fn new(counters: Arc<VersionCounters>, tolerance_millionths: u32) -> Self {
        Self { counters, tolerance: f64::from(tolerance_millionths) / 1e6, first: Mutex::default() }
    }

    /// An answer of either version. Without the other one nothing is counted.
    pub(super) fn answer(&self, outputs: Vec<InferTensor>) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(other) = first.take() else {
            *first = Some(outputs);
            return;
        };
        drop(first);
        self.counters.record_comparison(are_equal(&other, &outputs, self.tolerance));
    }
}

fn are_equal(left: &[InferTensor], right: &[InferTensor], tolerance: f64) -> bool {
    let same = |tensor: &Tensor| {
        let other = right.iter().map(|other| &other.tensor).find(|other| other.name() == tensor.name());
        other.is_some_and(|other| other.shape() == tensor.shape() && same_values(tensor, other, tolerance))
    };
    left.len() == right.len() && left.iter().all(|tensor| same(&tensor.tensor))
}

fn same_values(left: &Tensor, right: &Tensor, tolerance: f64) -> bool {
    match (left.elements(), right.elements()) {
        (Elements::Bytes(left), Elements::Bytes(right)) => left == right,
        (left, right) => {
            let (Some(left), Some(right)) = (numbers(left, usize::MAX), numbers(right, usize::MAX)) else {
                return false;
            };
            left.len() == right.len() && left.iter().zip(&right).all(|(l, r)| is_near(*l, *r, tolerance))
        }
    }
}

/// Relative to the larger magnitude. Values that are not numbers are equal.
fn is_near(left: f64, right: f64, tolerance: f64) -> bool {
    let difference = (left - right).abs();
    left.to_bits() == right.to_bits()
        || (difference.is_finite() && difference <= tolerance * left.abs().max(right.abs()))
        || (left.is_nan() && right.is_nan())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, values: &[f32]) -> InferTensor {
        Tensor::new(name, [values.len()], Elements::Fp32(values.to_vec())).unwrap().into()
    }

    #[test]
    fn answers_are_equal_within_the_tolerance() {
        let answer = |values: &[f32]| vec![tensor("y", values), tensor("z", &[1.0])];
        let double = Tensor::new("y", [1], Elements::Fp64(vec![2.0])).unwrap().into();
        let text = |text: &'static str| -> Vec<InferTensor> {
            vec![Tensor::new("y", [1], Elements::Bytes(vec![text.into()])).unwrap().into()]
        };
        for (left, right, expected) in [
            (answer(&[2.0, 0.0]), answer(&[2.0, 0.0]), true),
            (answer(&[2.0]), answer(&[2.001]), true),
            (answer(&[2.0]), answer(&[2.01]), false),
            (answer(&[0.0]), answer(&[0.001]), false),
            (answer(&[f32::NAN]), answer(&[f32::NAN]), true),
            (answer(&[f32::INFINITY]), answer(&[f32::INFINITY]), true),
            (answer(&[f32::INFINITY]), answer(&[1.0]), false),
            (answer(&[2.0, 2.0]), answer(&[2.0]), false),
            (answer(&[2.0]), vec![tensor("y", &[2.0])], false),
            (answer(&[2.0]), vec![tensor("x", &[2.0]), tensor("z", &[1.0])], false),
            (vec![tensor("z", &[1.0]), tensor("y", &[2.0])], answer(&[2.0]), true),
            (vec![tensor("y", &[2.0])], vec![double], true),
            (text("a"), text("a"), true),
            (text("a"), text("b"), false),
            (text("a"), vec![tensor("y", &[2.0])], false),
        ] {
            assert_eq!(are_equal(&left, &right, 0.001), expected, "{left:?} {right:?}");
        }
    }
}
