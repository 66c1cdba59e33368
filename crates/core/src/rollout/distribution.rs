//! Binned distributions of a model's inputs or outputs, and two measures of drift between them.

use serde::{Deserialize, Serialize};

/// The longest distribution that is kept.
pub const MAX_BINS: usize = 64;

/// Counts per bin. The source of the evidence defines the bins; distributions of different lengths are not comparable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    bins: Vec<u64>,
}

impl Distribution {
    /// Counts beyond [`MAX_BINS`] are added to the last bin.
    pub fn new(counts: impl IntoIterator<Item = u64>) -> Self {
        let mut bins: Vec<u64> = Vec::new();
        for count in counts {
            let full = bins.len() >= MAX_BINS;
            match bins.last_mut().filter(|_| full) {
                Some(last) => *last = last.saturating_add(count),
                None => bins.push(count),
            }
        }
        Self { bins }
    }

    pub fn bins(&self) -> &[u64] {
        &self.bins
    }

    pub fn total(&self) -> u64 {
        self.bins.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Adds counts of the same bins. Counts of other bins replace the distribution: the model's output changed its shape.
    pub fn merge(&mut self, other: &Self) {
        if other.bins.is_empty() {
            return;
        }
        if self.bins.len() != other.bins.len() {
            self.bins.clone_from(&other.bins);
            return;
        }
        for (mine, theirs) in self.bins.iter_mut().zip(&other.bins) {
            *mine = mine.saturating_add(*theirs);
        }
    }

    fn comparable(&self, other: &Self) -> bool {
        self.bins.len() == other.bins.len() && self.total() > 0 && other.total() > 0
    }

    /// Shares of the bins. Half a sample per bin avoids infinite ratios.
    fn smoothed(&self) -> impl Iterator<Item = f64> {
        let total = self.total() as f64 + 0.5 * self.bins.len() as f64;
        self.bins.iter().map(move |count| (*count as f64 + 0.5) / total)
    }
}

/// The population stability index: 0 for equal shares; 0.1 is usually read as a small shift, 0.25 as a large one. Without
/// drift its expectation is about `(bins - 1) · (1/n + 1/m)` for n and m samples. `None` when not comparable.
pub fn population_stability_index(reference: &Distribution, current: &Distribution) -> Option<f64> {
    reference.comparable(current).then(|| {
        let pairs = reference.smoothed().zip(current.smoothed());
        pairs.map(|(expected, actual)| (actual - expected) * (actual / expected).ln()).sum()
    })
}

/// The Kolmogorov-Smirnov statistic over ordered bins: the largest difference of the cumulative shares, at most the
/// statistic of the unbinned samples. `None` when not comparable.
pub fn kolmogorov_smirnov(reference: &Distribution, current: &Distribution) -> Option<f64> {
    reference.comparable(current).then(|| {
        let (n, m) = (reference.total() as f64, current.total() as f64);
        let (mut expected, mut actual, mut largest) = (0.0, 0.0, 0.0_f64);
        for (left, right) in reference.bins.iter().zip(&current.bins) {
            expected += *left as f64 / n;
            actual += *right as f64 / m;
            largest = largest.max((expected - actual).abs());
        }
        largest
    })
}

/// The value that the Kolmogorov-Smirnov statistic of two samples of one distribution exceeds with at most this
/// probability.
pub fn kolmogorov_smirnov_critical(probability: f64, reference: u64, current: u64) -> f64 {
    let (n, m) = (reference.max(1) as f64, current.max(1) as f64);
    (-(probability / 2.0).ln() / 2.0 * (n + m) / (n * m)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(counts: &[u64]) -> Distribution {
        Distribution::new(counts.iter().copied())
    }

    fn near(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-3
    }

    #[test]
    fn known_values() {
        let (a, b) = (of(&[1000, 2000, 7000]), of(&[2000, 2000, 6000]));
        // 0.1·ln 2 − 0.1·ln(6/7), as computed by hand.
        assert!(near(population_stability_index(&a, &b).unwrap(), 0.0847));
        assert!(near(kolmogorov_smirnov(&a, &b).unwrap(), 0.1));
        // 1.358 · √(2/n) for 5 %.
        assert!(near(kolmogorov_smirnov_critical(0.05, 1000, 1000), 1.358 * (2.0_f64 / 1000.0).sqrt()));
    }

    #[test]
    fn distributions_of_other_bins_are_not_comparable() {
        for (a, b) in [(of(&[]), of(&[])), (of(&[1]), of(&[1, 2])), (of(&[0, 0]), of(&[1, 1]))] {
            assert_eq!(population_stability_index(&a, &b), None);
            assert_eq!(kolmogorov_smirnov(&a, &b), None);
        }
        let mut changed = of(&[1, 2]);
        changed.merge(&of(&[5, 5, 5]));
        assert_eq!(changed, of(&[5, 5, 5]));
        assert_eq!(Distribution::new(vec![1; 100]).bins().len(), MAX_BINS);
        assert_eq!(Distribution::new(vec![1; 100]).total(), 100);
    }

    proptest! {
        #[test]
        fn measures_are_bounded_and_zero_for_equal_shares(
            counts in prop::collection::vec((0..1000_u64, 0..1000_u64), 1..20), factor in 1..5_u64,
        ) {
            let (left, right): (Vec<_>, Vec<_>) = counts.into_iter().unzip();
            let (left, right) = (of(&left), of(&right));
            if let (Some(psi), Some(ks)) = (population_stability_index(&left, &right), kolmogorov_smirnov(&left, &right)) {
                prop_assert!(psi >= -1e-12 && psi.is_finite());
                prop_assert!((0.0..=1.0 + 1e-9).contains(&ks));
            }
            let same = Distribution::new(left.bins().iter().map(|count| count * factor));
            if let Some(ks) = kolmogorov_smirnov(&left, &same) {
                prop_assert!(ks < 1e-9);
            }
        }
    }
}
