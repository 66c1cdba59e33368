//! Latency histograms with a fixed number of buckets, which can be merged.

use serde::{Deserialize, Serialize};

/// Four buckets per doubling, from 0.1 ms to 28 minutes.
pub const BUCKETS: usize = 96;
const PER_DOUBLING: f64 = 4.0;
const SMALLEST_MS: f64 = 0.1;

/// A bucket of a [`LatencyHistogram`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Bucket(u8);

impl Bucket {
    /// The bucket that contains a latency; the last one contains all longer latencies.
    pub fn of(milliseconds: f64) -> Self {
        let position = (milliseconds.max(SMALLEST_MS) / SMALLEST_MS).log2() * PER_DOUBLING;
        Self((position as usize).min(BUCKETS - 1) as u8)
    }

    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The longest latency of the bucket, in milliseconds.
    pub fn upper_ms(self) -> f64 {
        SMALLEST_MS * ((f64::from(self.0) + 1.0) / PER_DOUBLING).exp2()
    }

    fn lower_ms(self) -> f64 {
        if self.0 == 0 { 0.0 } else { Self(self.0 - 1).upper_ms() }
    }
}

/// Stored as the counts up to the last bucket with requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<u64>", from = "Vec<u64>")]
pub struct LatencyHistogram {
    counts: [u64; BUCKETS],
}

impl From<LatencyHistogram> for Vec<u64> {
    fn from(histogram: LatencyHistogram) -> Self {
        let used = histogram.counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        histogram.counts.iter().take(used).copied().collect()
    }
}

impl From<Vec<u64>> for LatencyHistogram {
    fn from(counts: Vec<u64>) -> Self {
        Self::from_counts(counts)
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS] }
    }
}

impl LatencyHistogram {
    /// From counts per bucket; those beyond the last bucket are added to it.
    pub fn from_counts(counts: impl IntoIterator<Item = u64>) -> Self {
        let mut histogram = Self::default();
        for (index, count) in counts.into_iter().enumerate() {
            histogram.add(Bucket(index.min(BUCKETS - 1) as u8), count);
        }
        histogram
    }

    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    pub fn record(&mut self, milliseconds: f64) {
        self.add(Bucket::of(milliseconds), 1);
    }

    fn add(&mut self, bucket: Bucket, count: u64) {
        if let Some(slot) = self.counts.get_mut(bucket.index()) {
            *slot = slot.saturating_add(count);
        }
    }

    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*theirs);
        }
    }

    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Requests slower than the upper bound of a bucket.
    pub fn slower_than(&self, bucket: Bucket) -> u64 {
        self.counts.iter().skip(bucket.index() + 1).fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The bucket that contains a quantile, `None` without requests.
    pub fn quantile_bucket(&self, quantile: f64) -> Option<Bucket> {
        self.locate(quantile).map(|(bucket, _)| bucket)
    }

    /// A quantile in milliseconds, interpolated within its bucket.
    pub fn quantile_ms(&self, quantile: f64) -> Option<f64> {
        let (bucket, share) = self.locate(quantile)?;
        Some(bucket.lower_ms() + (bucket.upper_ms() - bucket.lower_ms()) * share)
    }

    /// The bucket of a quantile, and the share of the bucket's requests up to it.
    fn locate(&self, quantile: f64) -> Option<(Bucket, f64)> {
        let rank = self.total() as f64 * quantile.clamp(0.0, 1.0);
        let mut below = 0.0;
        let mut last = None;
        for (index, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let share = ((rank - below) / *count as f64).clamp(0.0, 1.0);
            last = Some((Bucket(index as u8), share));
            below += *count as f64;
            if below >= rank {
                break;
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_are_within_a_bucket_of_the_samples() {
        let mut histogram = LatencyHistogram::default();
        assert_eq!(histogram.quantile_ms(0.5), None);
        (1..=1000).for_each(|latency| histogram.record(f64::from(latency)));
        for (quantile, exact) in [(0.0, 1.0), (0.5, 500.0), (0.95, 950.0), (0.99, 990.0), (1.0, 1000.0)] {
            let estimate = histogram.quantile_ms(quantile).unwrap();
            assert!((0.8..1.2).contains(&(estimate / exact)), "{quantile}: {estimate} for {exact}");
        }
        assert_eq!(histogram.slower_than(Bucket::of(f64::MAX)), 0);
        assert_eq!(Bucket::of(f64::NAN), Bucket::of(0.0));
    }

    proptest! {
        #[test]
        fn merge_is_the_histogram_of_both(
            left in prop::collection::vec(0.0..1e7_f64, 0..50),
            right in prop::collection::vec(0.0..1e7_f64, 0..50),
        ) {
            let of = |samples: &[f64]| {
                let mut histogram = LatencyHistogram::default();
                for latency in samples {
                    histogram.record(*latency);
                }
                histogram
            };
            let mut merged = of(&left);
            merged.merge(&of(&right));
            prop_assert_eq!(&merged, &of(&[left, right].concat()));
            prop_assert_eq!(merged.clone(), LatencyHistogram::from_counts(merged.counts().iter().copied()));
        }
    }
}
