//! Latencies in bounded memory: 128 buckets for each doubling, so a figure is off by less than one percent.

const PER_DOUBLING: u64 = 128;
const BITS: u32 = PER_DOUBLING.trailing_zeros();

/// How often requests took how long, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    min: u64,
    max: u64,
}

impl Histogram {
    /// Adds one.
    pub(super) fn add(&mut self, nanos: u64) {
        let bucket = bucket_of(nanos);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.min = if self.total == 0 { nanos } else { self.min.min(nanos) };
        self.max = self.max.max(nanos);
        self.total += 1;
    }

    /// Adds all of another one.
    pub(super) fn merge(&mut self, other: &Self) {
        if other.total == 0 {
            return;
        }
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.min = if self.total == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.total += other.total;
    }

    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    pub(super) const fn min(&self) -> u64 {
        self.min
    }

    pub(super) const fn max(&self) -> u64 {
        self.max
    }

    /// The time within which the share `q` (0 to 1) of requests was answered.
    pub(super) fn quantile(&self, q: f64) -> u64 {
        let rank = ((self.total as f64 * q).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_bound(bucket).clamp(self.min, self.max);
            }
        }
        self.max
    }
}

fn bucket_of(nanos: u64) -> usize {
    let doublings = (64 - BITS).saturating_sub(nanos.leading_zeros() + 1);
    let within = nanos >> doublings;
    (u64::from(doublings) * PER_DOUBLING + within) as usize
}

/// The largest value that falls into a bucket.
fn upper_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * PER_DOUBLING {
        return bucket;
    }
    let doublings = bucket / PER_DOUBLING - 1;
    let within = bucket - doublings * PER_DOUBLING;
    (u128::from(within + 1) << doublings).saturating_sub(1).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn quantiles_are_within_one_percent(mut values in proptest::collection::vec(0u64..100_000_000_000, 1..300)) {
            let mut whole = Histogram::default();
            let mut halves = [Histogram::default(), Histogram::default()];
            for (i, &v) in values.iter().enumerate() {
                whole.add(v);
                halves[i % 2].add(v);
            }
            let [mut merged, other] = halves;
            merged.merge(&other);
            values.sort_unstable();
            for q in [0.0, 0.5, 0.9, 0.99, 1.0] {
                let rank = ((values.len() as f64 * q).ceil() as usize).max(1);
                let exact = values[rank - 1];
                let got = whole.quantile(q);
                proptest::prop_assert!(got >= exact && got as f64 <= exact as f64 * 1.01 + 1.0, "{} {} {}", q, got, exact);
                proptest::prop_assert_eq!(got, merged.quantile(q));
            }
            proptest::prop_assert_eq!((whole.min(), whole.max()), (values[0], values[values.len() - 1]));
        }

        #[test]
        fn every_value_has_a_bucket(value: u64) {
            let mut h = Histogram::default();
            h.add(value);
            proptest::prop_assert_eq!(h.quantile(0.5), value);
            proptest::prop_assert!(h.counts.len() < 64 * 128 + 128);
        }
    }
}
