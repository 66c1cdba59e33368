//! Per-model statistics, lock-free.

use gantry_oip::{Duration as Spent, ModelStatistics};
use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

#[derive(Debug, Default)]
struct Counter {
    count: AtomicU64,
    ns: AtomicU64,
}

impl Counter {
    fn add(&self, spent: Duration) {
        self.count.fetch_add(1, Relaxed);
        self.ns.fetch_add(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    fn get(&self) -> Spent {
        Spent { count: self.count.load(Relaxed), ns: self.ns.load(Relaxed) }
    }
}

/// Latency histogram: two buckets per doubling, from a microsecond to days.
#[derive(Debug)]
struct Histogram([AtomicU32; Self::BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(0)))
    }
}

impl Histogram {
    const BUCKETS: usize = 76;
    const FIRST: f64 = 1e-6;

    fn add(&self, took: Duration) {
        let doublings = (took.as_secs_f64() / Self::FIRST).max(1.0).log2();
        let bucket = ((doublings * 2.0) as usize).min(Self::BUCKETS - 1);
        if let Some(count) = self.0.get(bucket) {
            count.fetch_add(1, Relaxed);
        }
    }

    fn quantile(&self, share: f64) -> Option<Duration> {
        let counts: Vec<u64> = self.0.iter().map(|c| u64::from(c.load(Relaxed))).collect();
        let rank = (counts.iter().sum::<u64>() as f64 * share).ceil();
        let mut seen = 0;
        let bucket = counts.iter().position(|c| {
            seen += c;
            seen > 0 && seen as f64 >= rank
        })?;
        // The middle of the bucket.
        Some(Duration::from_secs_f64(Self::FIRST * 2f64.powf(bucket as f64 / 2.0 + 0.25)))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Statistics {
    last: AtomicU64,
    inferences: AtomicU64,
    executions: AtomicU64,
    success: Counter,
    fail: Counter,
    infer: Counter,
    times: Histogram,
    /// Recent picoseconds per input element.
    element_ps: AtomicU64,
}

impl Statistics {
    pub(crate) fn record_run(&self, rows: usize, took: Duration) {
        self.executions.fetch_add(1, Relaxed);
        self.inferences.fetch_add((rows as u64).max(1), Relaxed);
        self.infer.add(took);
    }

    /// Updates the estimate.
    pub(crate) fn learn(&self, elements: usize, took: Duration) {
        let ps = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000);
        let sample = (ps / (elements as u64).max(1)).max(1);
        let known = self.element_ps.load(Relaxed);
        // Adapts fast to slow runs, slowly to fast ones.
        let next = match known {
            0 => sample,
            known if sample > known => known.midpoint(sample),
            known => known - (known - sample) / 16,
        };
        self.element_ps.store(next, Relaxed);
    }

    pub(crate) fn record_request(&self, ok: bool, took: Duration) {
        self.times.add(took);
        if ok {
            self.success.add(took);
        } else {
            self.fail.add(took);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Expected duration of a run; `None` before the first.
    pub(crate) fn estimate(&self, elements: usize) -> Option<Duration> {
        let element = self.element_ps.load(Relaxed);
        (element > 0).then(|| Duration::from_nanos(element.saturating_mul((elements as u64).max(1)) / 1000))
    }

    /// `None` before the first request.
    pub(crate) fn quantile(&self, share: f64) -> Option<Duration> {
        self.times.quantile(share)
    }

    pub(crate) fn report(&self, name: &str, version: &str) -> ModelStatistics {
        ModelStatistics {
            name: name.to_owned(),
            version: version.to_owned(),
            last_inference: self.last.load(Relaxed),
            inference_count: self.inferences.load(Relaxed),
            execution_count: self.executions.load(Relaxed),
            success: self.success.get(),
            fail: self.fail.get(),
            compute_infer: self.infer.get(),
            ..ModelStatistics::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_close() {
        let statistics = Statistics::default();
        assert_eq!(statistics.quantile(0.5), None);
        for ms in 1..=1000 {
            statistics.record_request(true, Duration::from_millis(ms));
        }
        for (share, truth) in [(0.5, 0.5), (0.99, 0.99)] {
            let found = statistics.quantile(share).unwrap().as_secs_f64();
            assert!((found / truth).abs().log2().abs() < 0.5, "{share}: {found}");
        }
        statistics.record_request(true, Duration::ZERO);
        statistics.record_request(true, Duration::MAX);
    }

    #[test]
    fn estimate_adapts_to_slow_runs_at_once() {
        let statistics = Statistics::default();
        for _ in 0..100 {
            statistics.learn(4, Duration::from_micros(2));
        }
        assert!(statistics.estimate(4).unwrap() < Duration::from_micros(5));
        statistics.learn(4, Duration::from_millis(10));
        assert!(statistics.estimate(4).unwrap() > Duration::from_millis(4));
    }

    #[test]
    fn estimate_counts_elements_of_all_dimensions() {
        let statistics = Statistics::default();
        statistics.learn(4, Duration::from_micros(2));
        assert_eq!(statistics.estimate(4), Some(Duration::from_micros(2)));
        assert_eq!(statistics.estimate(10_000_000), Some(Duration::from_secs(5)));
        let report = statistics.report("m", "1");
        assert_eq!((report.execution_count, report.inference_count), (0, 0));
    }
}
