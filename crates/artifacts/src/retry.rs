//! Retry with exponential backoff.

use std::time::Duration;

use crate::error::FetchError;
use crate::progress::Meter;

/// Retry policy for transient failures.
#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// Retries after the first attempt, without progress in between.
    pub retries: u32,
    /// Wait before the first retry; doubles each time.
    pub base: Duration,
    /// Longest wait, also for a larger `Retry-After`.
    pub max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { retries: 5, base: Duration::from_millis(500), max: Duration::from_secs(30) }
    }
}

impl RetryPolicy {
    /// The wait before retry number `attempt` (from 0): half of the exponential step plus a random part of the
    /// other half, or the server's `Retry-After`.
    pub(crate) fn wait(&self, attempt: u32, asked: Option<Duration>) -> Duration {
        if let Some(asked) = asked {
            return asked.min(self.max);
        }
        let step = self.base.saturating_mul(2_u32.saturating_pow(attempt.min(20))).min(self.max);
        step.mul_f64(0.5 + 0.5 * random_fraction())
    }

    /// Whether to try again after this failure; waits if so.
    pub(crate) async fn pause(&self, attempt: u32, error: &FetchError, meter: &Meter<'_>) -> bool {
        if !error.is_transient() || attempt >= self.retries {
            return false;
        }
        let wait = self.wait(attempt, error.retry_after());
        tracing::warn!(target: "gantry::artifacts", "{error}; retry {} of {} in {wait:.1?}", attempt + 1, self.retries);
        // The same text for each retry of one cause: a console shows it once.
        meter.note(&format!("{error}; retrying"));
        tokio::time::sleep(wait).await;
        true
    }
}

/// A number in 0..1 that differs between processes and calls; jitter needs no more than that.
fn random_fraction() -> f64 {
    use std::hash::{BuildHasher as _, RandomState};
    let bits = RandomState::new().hash_one(std::time::Instant::now()) >> 11;
    bits as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_within_their_bounds() {
        let policy = RetryPolicy { retries: 5, base: Duration::from_secs(1), max: Duration::from_secs(10) };
        for (attempt, step) in [(0, 1.0), (1, 2.0), (2, 4.0), (3, 8.0), (4, 10.0), (1000, 10.0)] {
            for _ in 0..100 {
                let wait = policy.wait(attempt, None).as_secs_f64();
                assert!((step * 0.5..=step).contains(&wait), "attempt {attempt}: {wait}");
            }
        }
        assert_eq!(policy.wait(0, Some(Duration::from_secs(7))), Duration::from_secs(7));
        assert_eq!(policy.wait(0, Some(Duration::from_hours(1))), Duration::from_secs(10));
    }
}
