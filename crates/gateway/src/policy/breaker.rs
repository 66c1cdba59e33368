//! Circuit breaker of a replica.
//!
//! Only transport failures count: any response, even an error, proves that the server is alive.

/// Consecutive failures that open the breaker.
pub const FAILURE_THRESHOLD: u32 = 5;
/// First open interval; doubles each time.
pub const BACKOFF_MIN_MS: u64 = 250;
pub const BACKOFF_MAX_MS: u64 = 30_000;
/// A probe without result counts as lost after this time.
pub const PROBE_TIMEOUT_MS: u64 = 60_000;

/// Times are milliseconds of a monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    /// Consecutive failures.
    pub failures: u32,
    /// Consecutive open intervals, for backoff.
    pub opened: u32,
    pub state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Closed,
    /// No requests before `until`, then one probe.
    Open { until: u64 },
    /// A probe is in flight.
    Probing { since: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Any response, including errors.
    Answered,
    /// Connection failed or was lost before the response.
    Failed,
    /// Cancelled by the client: no evidence about the replica.
    Cancelled,
}

impl Breaker {
    pub const fn allows(&self, now: u64) -> bool {
        match self.state {
            State::Closed => true,
            State::Open { until } => now >= until,
            State::Probing { since } => now.saturating_sub(since) >= PROBE_TIMEOUT_MS,
        }
    }

    /// When the next probe is allowed, unless closed.
    pub const fn next_probe(&self) -> Option<u64> {
        match self.state {
            State::Closed => None,
            State::Open { until } => Some(until),
            State::Probing { since } => Some(since.saturating_add(PROBE_TIMEOUT_MS)),
        }
    }

    /// Retry-After for clients. While a probe is in flight its result is expected soon, so the probe timeout does not
    /// apply.
    pub const fn retry_after(&self) -> Option<u64> {
        match self.state {
            State::Probing { since } => Some(since.saturating_add(BACKOFF_MIN_MS)),
            _ => self.next_probe(),
        }
    }

    #[must_use]
    pub const fn on_start(mut self, now: u64) -> Self {
        if !matches!(self.state, State::Closed) {
            self.state = State::Probing { since: now };
        }
        self
    }

    #[must_use]
    pub fn on_end(mut self, outcome: Outcome, now: u64) -> Self {
        match outcome {
            Outcome::Answered => Self::default(),
            Outcome::Cancelled => {
                if matches!(self.state, State::Probing { .. }) {
                    self.state = State::Open { until: now };
                }
                self
            }
            Outcome::Failed => {
                self.failures = self.failures.saturating_add(1);
                let probing = matches!(self.state, State::Probing { .. });
                if probing || (self.failures >= FAILURE_THRESHOLD && self.state == State::Closed) {
                    self.state = State::Open { until: now.saturating_add(backoff_ms(self.opened)) };
                    self.opened = self.opened.saturating_add(1);
                }
                self
            }
        }
    }
}

pub fn backoff_ms(opened: u32) -> u64 {
    BACKOFF_MIN_MS.saturating_mul(1u64.checked_shl(opened.min(32)).unwrap_or(u64::MAX)).min(BACKOFF_MAX_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn breaker_opens_probes_and_closes() {
        let mut breaker = Breaker::default();
        for _ in 0..FAILURE_THRESHOLD {
            assert!(breaker.allows(0));
            breaker = breaker.on_start(0).on_end(Outcome::Failed, 0);
        }
        assert!(!breaker.allows(BACKOFF_MIN_MS - 1));
        assert!(breaker.allows(BACKOFF_MIN_MS));
        let probing = breaker.on_start(BACKOFF_MIN_MS);
        assert!(!probing.allows(BACKOFF_MIN_MS), "one probe at a time");
        assert_eq!(probing.retry_after(), Some(2 * BACKOFF_MIN_MS), "clients are not sent away for a minute");
        assert!(probing.allows(BACKOFF_MIN_MS + PROBE_TIMEOUT_MS), "a lost probe expires");
        assert_eq!(probing.on_end(Outcome::Answered, 300), Breaker::default());
        let again = probing.on_end(Outcome::Failed, 300);
        assert_eq!(again.next_probe(), Some(300 + 2 * BACKOFF_MIN_MS));
        assert!(probing.on_end(Outcome::Cancelled, 300).allows(300), "a cancelled probe is repeated at once");
    }

    proptest! {
        #[test]
        fn any_response_closes_breaker_and_backoff_is_bounded(steps in prop::collection::vec((0u8..3, 0u64..100_000), 0..60)) {
            let mut breaker = Breaker::default();
            let mut now = 0;
            for (step, wait) in steps {
                now += wait;
                if breaker.allows(now) {
                    breaker = breaker.on_start(now);
                }
                let outcome = [Outcome::Answered, Outcome::Failed, Outcome::Cancelled][usize::from(step)];
                breaker = breaker.on_end(outcome, now);
                if outcome == Outcome::Answered {
                    prop_assert_eq!(breaker, Breaker::default());
                }
                if let Some(next) = breaker.next_probe() {
                    prop_assert!(next <= now + BACKOFF_MAX_MS.max(PROBE_TIMEOUT_MS));
                    prop_assert!(breaker.allows(next), "open ends");
                }
            }
        }
    }
}
