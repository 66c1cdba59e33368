//! Rate limits without locks: the generic cell rate algorithm on one atomic.

use serde::Deserialize;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

const SECOND: u64 = 1_000_000_000;

/// `rate` of a key or a grant.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Rate {
    per_second: f64,
    /// Requests that may come at once.
    burst: Option<u32>,
}

impl Rate {
    pub(crate) fn check(self) -> Result<Self, String> {
        if !(0.001..=1e6).contains(&self.per_second) {
            return Err("rate: perSecond must be between 0.001 and 1000000".to_owned());
        }
        if self.burst.is_some_and(|burst| !(1..=1_000_000).contains(&burst)) {
            return Err("rate: burst must be between 1 and 1000000".to_owned());
        }
        Ok(self)
    }

    /// Nanoseconds per request.
    fn interval(self) -> u64 {
        ((SECOND as f64 / self.per_second) as u64).max(1)
    }

    fn burst(self) -> u64 {
        self.burst.map_or_else(|| self.per_second.ceil().max(1.0) as u64, u64::from).max(1)
    }
}

#[derive(Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    interval: u64,
    /// How far the next free slot may be ahead of now.
    tolerance: u64,
    /// When the next request is due if requests came evenly.
    due: AtomicU64,
}

impl Bucket {
    pub(crate) fn new(rate: Rate) -> Self {
        let interval = rate.interval();
        let tolerance = interval.saturating_mul(rate.burst() - 1);
        Self { rate, interval, tolerance, due: AtomicU64::new(0) }
    }

    /// Takes one request at `now` nanoseconds; the error is the time until one is free.
    pub(crate) fn take(&self, now: u64) -> Result<(), u64> {
        let mut due = self.due.load(Ordering::Relaxed);
        loop {
            let ahead = due.saturating_sub(now);
            if ahead > self.tolerance {
                return Err(ahead - self.tolerance);
            }
            let next = due.max(now).saturating_add(self.interval);
            match self.due.compare_exchange_weak(due, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(seen) => due = seen,
            }
        }
    }

    /// Whether it equals a new one.
    fn is_idle(&self, now: u64) -> bool {
        self.due.load(Ordering::Relaxed) <= now
    }
}

/// Subjects with a bucket of their own; the others of a grant share one.
const MAX_SUBJECTS: usize = 16_384;

type Buckets = HashMap<(Arc<str>, Subject), Arc<Bucket>>;

/// All buckets by the name of their key or grant and the subject of a token. They outlive a reload.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    buckets: Mutex<Buckets>,
}

/// A digest, or nothing for keys and tokens that share a bucket.
pub(crate) type Subject = Option<[u8; 32]>;

impl Limits {
    pub(crate) fn bucket(&self, name: &Arc<str>, subject: Subject, rate: Rate, now: u64) -> Arc<Bucket> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = (Arc::clone(name), subject);
        if subject.is_some() && buckets.len() >= MAX_SUBJECTS && !buckets.contains_key(&key) {
            buckets.retain(|_, bucket| Arc::strong_count(bucket) > 1 || !bucket.is_idle(now));
            if buckets.len() >= MAX_SUBJECTS {
                key.1 = None;
            }
        }
        let bucket = buckets.entry(key).or_insert_with(|| Arc::new(Bucket::new(rate)));
        if bucket.rate != rate {
            *bucket = Arc::new(Bucket::new(rate));
        }
        Arc::clone(bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rate(per_second: f64, burst: Option<u32>) -> Rate {
        Rate { per_second, burst }.check().unwrap()
    }

    #[test]
    fn burst_passes_at_once_and_then_one_per_interval() {
        let bucket = Bucket::new(rate(10.0, Some(3)));
        let start = 1_000 * SECOND;
        for _ in 0..3 {
            assert_eq!(bucket.take(start), Ok(()));
        }
        assert_eq!(bucket.take(start), Err(SECOND / 10));
        assert_eq!(bucket.take(start + SECOND / 10 - 1), Err(1));
        assert_eq!(bucket.take(start + SECOND / 10), Ok(()));
        assert!(bucket.take(start + SECOND / 10).is_err());
        // Idle time is saved up to the burst only.
        let later = start + 100 * SECOND;
        assert_eq!((0..10).filter(|_| bucket.take(later).is_ok()).count(), 3);
    }

    #[test]
    fn rates_outside_the_range_are_refused() {
        for (per_second, burst) in
            [(0.0, None), (-1.0, None), (f64::NAN, None), (f64::INFINITY, None), (1.0, Some(0)), (1e7, None)]
        {
            assert!(Rate { per_second, burst }.check().is_err(), "{per_second} {burst:?}");
        }
    }

    #[test]
    fn bucket_survives_a_reload_unless_its_rate_changes() {
        let limits = Limits::default();
        let name: Arc<str> = "a".into();
        let first = limits.bucket(&name, None, rate(1.0, None), 0);
        first.take(0).unwrap();
        assert!(limits.bucket(&name, None, rate(1.0, None), 0).take(0).is_err());
        assert!(limits.bucket(&name, None, rate(2.0, None), 0).take(0).is_ok());
    }

    #[test]
    fn subjects_are_bounded_and_share_a_bucket_beyond_the_limit() {
        let limits = Limits::default();
        let name: Arc<str> = "grant".into();
        let subject = |n: usize| {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&n.to_le_bytes());
            Some(digest)
        };
        for n in 0..MAX_SUBJECTS + 100 {
            limits.bucket(&name, subject(n), rate(1.0, None), 0).take(0).ok();
        }
        assert!(limits.buckets.lock().unwrap().len() <= MAX_SUBJECTS + 1);
        assert!(limits.bucket(&name, subject(usize::MAX), rate(1.0, None), 0).take(0).is_err());
        // Idle ones make room.
        assert!(limits.bucket(&name, subject(usize::MAX), rate(1.0, None), 100 * SECOND).take(0).is_ok());
    }

    proptest! {
        #[test]
        fn requests_never_exceed_rate_and_burst(
            per_second in 1u32..1000,
            burst in 1u32..50,
            gaps in proptest::collection::vec(0u64..SECOND / 10, 1..300),
        ) {
            let bucket = Bucket::new(rate(f64::from(per_second), Some(burst)));
            let (mut now, mut passed) = (SECOND, 0u64);
            for gap in gaps {
                now += gap;
                passed += u64::from(bucket.take(now).is_ok());
                let allowed = u64::from(burst) + (now - SECOND) * u64::from(per_second) / SECOND + 1;
                prop_assert!(passed <= allowed, "{} of {}", passed, allowed);
            }
        }
    }
}
