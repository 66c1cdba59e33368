//! Binned distributions of a model's inputs or outputs, and two measures of drift between them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Groups of about equal size in the reference, over which the population stability index is computed.
const GROUPS: u64 = 10;
/// Width of the bins between this magnitude and 1; larger and smaller magnitudes have bins of a constant ratio.
const LINEAR_WIDTH: f64 = 0.01;
const LINEAR_BINS: i32 = 100;
const RATIO: f64 = 1.05;
/// Bins of a constant ratio on either side of the linear ones: magnitudes from 1e-9 to 1e9.
const RATIO_BINS: i32 = 425;
/// Of values that are not numbers.
const NOT_A_NUMBER: i32 = i32::MAX;
/// Texts have a bin by their hash.
const TEXT_BINS: u16 = 1024;

/// Counts per bin, in the order of the values. All distributions have the same bins, fewer than 4,000.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredDistribution")]
pub struct Distribution {
    counts: BTreeMap<i32, u64>,
}

/// Earlier versions stored counts of consecutive bins.
#[derive(Deserialize)]
struct StoredDistribution {
    #[serde(default)]
    bins: Vec<u64>,
    #[serde(default)]
    counts: BTreeMap<i32, u64>,
}

impl From<StoredDistribution> for Distribution {
    fn from(StoredDistribution { bins, counts }: StoredDistribution) -> Self {
        if counts.is_empty() { Self::new(bins) } else { Self { counts } }
    }
}

/// The bin of a number.
pub fn bin_of(value: f64) -> i32 {
    if value.is_nan() {
        return NOT_A_NUMBER;
    }
    let magnitude = value.abs();
    let bin = if magnitude >= 1.0 {
        let above = (magnitude.ln() / RATIO.ln()).floor().min(f64::from(RATIO_BINS)) as i32;
        RATIO_BINS + LINEAR_BINS + above
    } else if magnitude >= LINEAR_WIDTH {
        RATIO_BINS + (magnitude / LINEAR_WIDTH).floor() as i32
    } else if magnitude > 0.0 {
        let below = ((LINEAR_WIDTH / magnitude).ln() / RATIO.ln()).floor().min(f64::from(RATIO_BINS)) as i32;
        (RATIO_BINS - below).max(1)
    } else {
        0
    };
    if value < 0.0 { -bin } else { bin }
}

/// The bin of a text. Their order has no meaning.
pub fn bin_of_text(text: &[u8]) -> i32 {
    // FNV-1a: the same in every process.
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325, step);
    (hash % u64::from(TEXT_BINS)) as i32
}

impl Distribution {
    /// Counts of consecutive bins.
    pub fn new(counts: impl IntoIterator<Item = u64>) -> Self {
        (0..).zip(counts).collect()
    }

    /// Bins with their counts, in order.
    pub fn counts(&self) -> impl Iterator<Item = (i32, u64)> {
        self.counts.iter().map(|(bin, count)| (*bin, *count))
    }

    pub fn total(&self) -> u64 {
        self.counts.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    pub fn add(&mut self, bin: i32, count: u64) {
        // Numbers, texts and what is not a number; a report of something else does not make it grow.
        let most = 2 * RATIO_BINS + LINEAR_BINS;
        if count > 0 && (bin == NOT_A_NUMBER || (-most..=most.max(i32::from(TEXT_BINS))).contains(&bin)) {
            let known = self.counts.entry(bin).or_default();
            *known = known.saturating_add(count);
        }
    }

    pub fn merge(&mut self, other: &Self) {
        other.counts().for_each(|(bin, count)| self.add(bin, count));
    }

    fn comparable(&self, other: &Self) -> bool {
        self.total() > 0 && other.total() > 0
    }

    /// The last bin of each group of about equal size, and before them that below the first bin.
    fn groups(&self) -> Vec<i32> {
        let total = self.total();
        let mut ends: Vec<i32> =
            self.counts.keys().next().map(|first| first.saturating_sub(1)).into_iter().collect();
        let (mut sum, mut next) = (0_u64, 1);
        for (bin, count) in self.counts() {
            sum = sum.saturating_add(count);
            if u128::from(sum) * u128::from(GROUPS) >= u128::from(total) * u128::from(next) {
                ends.push(bin);
                next = u64::try_from(u128::from(sum) * u128::from(GROUPS) / u128::from(total.max(1)))
                    .unwrap_or(GROUPS)
                    + 1;
            }
        }
        ends
    }

    /// Shares of the groups, and of what is above the last one. Half a sample per group avoids infinite ratios.
    fn shares(&self, ends: &[i32]) -> Vec<f64> {
        let mut counts = vec![0_u64; ends.len() + 1];
        for (bin, count) in self.counts() {
            let group = ends.partition_point(|end| *end < bin);
            if let Some(of_group) = counts.get_mut(group) {
                *of_group = of_group.saturating_add(count);
            }
        }
        let total = self.total() as f64 + 0.5 * counts.len() as f64;
        counts.into_iter().map(|count| (count as f64 + 0.5) / total).collect()
    }
}

impl FromIterator<(i32, u64)> for Distribution {
    fn from_iter<I: IntoIterator<Item = (i32, u64)>>(counts: I) -> Self {
        let mut distribution = Self::default();
        counts.into_iter().for_each(|(bin, count)| distribution.add(bin, count));
        distribution
    }
}

/// The population stability index over ten groups of about equal size in the reference, and what is below and above it: 0 for
/// equal shares; 0.1 is usually read as a small shift, 0.25 as a large one. Without drift its expectation is about
/// `(groups - 1) · (1/n + 1/m)` for n and m samples. `None` when not comparable.
pub fn population_stability_index(reference: &Distribution, current: &Distribution) -> Option<f64> {
    reference.comparable(current).then(|| {
        let groups = reference.groups();
        let pairs = reference.shares(&groups).into_iter().zip(current.shares(&groups));
        pairs.map(|(expected, actual)| (actual - expected) * (actual / expected).ln()).sum()
    })
}

/// The Kolmogorov-Smirnov statistic over ordered bins: the largest difference of the cumulative shares, at most the
/// statistic of the unbinned samples. `None` when not comparable.
pub fn kolmogorov_smirnov(reference: &Distribution, current: &Distribution) -> Option<f64> {
    reference.comparable(current).then(|| {
        let (n, m) = (reference.total() as f64, current.total() as f64);
        let mut differences: BTreeMap<i32, f64> = BTreeMap::new();
        reference.counts().for_each(|(bin, count)| *differences.entry(bin).or_default() += count as f64 / n);
        current.counts().for_each(|(bin, count)| *differences.entry(bin).or_default() -= count as f64 / m);
        let (mut sum, mut largest) = (0.0, 0.0_f64);
        for difference in differences.values() {
            sum += difference;
            largest = largest.max(f64::abs(sum));
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
    fn empty_distributions_are_not_comparable() {
        for (a, b) in [(of(&[]), of(&[])), (of(&[0, 0]), of(&[1, 1])), (of(&[3]), of(&[]))] {
            assert_eq!(population_stability_index(&a, &b), None);
            assert_eq!(kolmogorov_smirnov(&a, &b), None);
        }
    }

    #[test]
    fn bins_are_ordered_and_fine_between_zero_and_one() {
        let values = [
            f64::NEG_INFINITY,
            -1e12,
            -1e3,
            -1.0,
            -0.5,
            -1e-5,
            -1e-12,
            0.0,
            1e-12,
            1e-9,
            1e-5,
            0.0099,
            0.01,
            0.5,
            0.51,
            0.99,
            1.0,
            1.06,
            1e3,
            1e12,
            f64::INFINITY,
        ];
        let bins: Vec<i32> = values.into_iter().map(bin_of).collect();
        assert!(bins.is_sorted(), "{bins:?}");
        assert!(bin_of(0.93) < bin_of(0.945) && bin_of(0.5) < bin_of(0.515));
        assert_eq!((bin_of(0.0), bin_of(-0.0)), (0, 0));
        assert!(bin_of(f64::NAN) > bin_of(f64::INFINITY), "apart from all numbers");
        let mut all: Distribution = values.into_iter().map(|value| (bin_of(value), 1)).collect();
        assert_eq!(all.total(), values.len() as u64, "every bin is accepted");
        all.add(bin_of(f64::NAN), 1);
        all.add(bin_of_text(b"label"), 1);
        all.add(1_000_000, 7);
        assert_eq!(all.total(), values.len() as u64 + 2, "what is no bin is not counted");
    }

    #[test]
    fn values_that_the_reference_never_had_are_drift() {
        let constant: Distribution = [(bin_of(0.0), 1000)].into_iter().collect();
        for moved in [bin_of(1.0), bin_of(-1.0), bin_of(f64::NAN)] {
            let moved: Distribution = [(moved, 1000)].into_iter().collect();
            assert!(population_stability_index(&constant, &moved).unwrap() > 1.0);
            assert!(near(kolmogorov_smirnov(&constant, &moved).unwrap(), 1.0));
        }
        assert!(population_stability_index(&constant, &constant).unwrap() < 0.001);
    }

    #[test]
    fn index_of_many_bins_is_that_of_ten_groups() {
        // Without groups, a thousand bins with one sample each would have an index of about 2.
        let odd: Distribution = (0..500).map(|i| (2 * i + 1, 1)).collect();
        let even: Distribution = (0..500).map(|i| (2 * i, 1)).collect();
        assert!(population_stability_index(&odd, &even).unwrap() < 0.05);
        let shifted: Distribution = (250..750).map(|i| (i, 1)).collect();
        assert!(population_stability_index(&odd, &shifted).unwrap() > 0.25);
    }

    #[test]
    fn stored_forms_are_read() {
        let earlier: Distribution = serde_json::from_str(r#"{"bins":[1,0,5]}"#).unwrap();
        assert_eq!(earlier, of(&[1, 0, 5]));
        let text = serde_json::to_string(&earlier).unwrap();
        assert_eq!(text, r#"{"counts":{"0":1,"2":5}}"#);
        assert_eq!(serde_json::from_str::<Distribution>(&text).unwrap(), earlier);
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
            let same: Distribution = left.counts().map(|(bin, count)| (bin, count * factor)).collect();
            if let Some(ks) = kolmogorov_smirnov(&left, &same) {
                prop_assert!(ks < 1e-9);
            }
        }
    }
}
