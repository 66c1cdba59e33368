//! When a replica that fails is left alone, and when it is tried again.
//!
//! Only failures of the transport count: what a model answers, be it an error, proves that its server lives.

/// So many failures in a row open the breaker.
pub const FAILURES: u32 = 5;
/// The first pause, in milliseconds; each further one is twice as long.
pub const FIRST_PAUSE: u64 = 250;
/// The longest pause, in milliseconds.
pub const LONGEST_PAUSE: u64 = 30_000;
/// After so long without an answer a probe counts as lost, in milliseconds.
pub const PROBE_LOST: u64 = 60_000;

/// The state of a replica's breaker. Times are milliseconds on any clock that does not go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    /// Failures in a row.
    pub failures: u32,
    /// Pauses in a row.
    pub pauses: u32,
    /// What requests may do.
    pub phase: Phase,
}

/// What requests may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Go ahead.
    #[default]
    Closed,
    /// Wait until then.
    Open {
        /// When one request may try.
        until: u64,
    },
    /// One request is trying.
    Probing {
        /// Since when.
        since: u64,
    },
}

/// How a request to a replica ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The replica answered.
    Answered,
    /// It could not be reached, or went away before it answered.
    Failed,
    /// The client went away first: this says nothing about the replica.
    Abandoned,
}

impl Breaker {
    /// Whether a request may go to the replica now.
    pub const fn allows(&self, now: u64) -> bool {
        match self.phase {
            Phase::Closed => true,
            Phase::Open { until } => now >= until,
            Phase::Probing { since } => now.saturating_sub(since) >= PROBE_LOST,
        }
    }

    /// When to try next, if not now.
    pub const fn next_try(&self) -> Option<u64> {
        match self.phase {
            Phase::Closed => None,
            Phase::Open { until } => Some(until),
            Phase::Probing { since } => Some(since.saturating_add(PROBE_LOST)),
        }
    }

    /// When a client may come again with a chance, if not now. That a probe is lost is the exception: mostly its answer is
    /// near, and whoever is told to wait for longer waits in vain.
    pub const fn come_again(&self) -> Option<u64> {
        match self.phase {
            Phase::Probing { since } => Some(since.saturating_add(FIRST_PAUSE)),
            _ => self.next_try(),
        }
    }

    /// The state once a request, which was allowed, has started.
    #[must_use]
    pub const fn started(mut self, now: u64) -> Self {
        if !matches!(self.phase, Phase::Closed) {
            self.phase = Phase::Probing { since: now };
        }
        self
    }

    /// The state once a request has ended.
    #[must_use]
    pub fn ended(mut self, outcome: Outcome, now: u64) -> Self {
        match outcome {
            Outcome::Answered => Self::default(),
            Outcome::Abandoned => {
                if matches!(self.phase, Phase::Probing { .. }) {
                    self.phase = Phase::Open { until: now };
                }
                self
            }
            Outcome::Failed => {
                self.failures = self.failures.saturating_add(1);
                let probing = matches!(self.phase, Phase::Probing { .. });
                if probing || (self.failures >= FAILURES && self.phase == Phase::Closed) {
                    self.phase = Phase::Open { until: now.saturating_add(pause(self.pauses)) };
                    self.pauses = self.pauses.saturating_add(1);
                }
                self
            }
        }
    }
}

/// The length of the pause after so many pauses in a row.
pub fn pause(pauses: u32) -> u64 {
    FIRST_PAUSE.saturating_mul(1u64.checked_shl(pauses.min(32)).unwrap_or(u64::MAX)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_opens_probes_and_closes() {
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES {
            assert!(breaker.allows(0));
            breaker = breaker.started(0).ended(Outcome::Failed, 0);
        }
        assert!(!breaker.allows(FIRST_PAUSE - 1));
        assert!(breaker.allows(FIRST_PAUSE));
        let probing = breaker.started(FIRST_PAUSE);
        assert!(!probing.allows(FIRST_PAUSE), "one probe at a time");
        assert_eq!(probing.come_again(), Some(2 * FIRST_PAUSE), "nobody is sent away for a minute");
        assert!(probing.allows(FIRST_PAUSE + PROBE_LOST), "a lost probe does not block for ever");
        assert_eq!(probing.ended(Outcome::Answered, 300), Breaker::default());
        let again = probing.ended(Outcome::Failed, 300);
        assert_eq!(again.next_try(), Some(300 + 2 * FIRST_PAUSE));
        assert!(
            probing.ended(Outcome::Abandoned, 300).allows(300),
            "an abandoned probe is tried again at once"
        );
    }

    proptest! {
        #[test]
        fn one_answer_always_closes_it_and_pauses_stay_bounded(steps in prop::collection::vec((0u8..3, 0u64..100_000), 0..60)) {
            let mut breaker = Breaker::default();
            let mut now = 0;
            for (what, wait) in steps {
                now += wait;
                if breaker.allows(now) {
                    breaker = breaker.started(now);
                }
                let outcome = [Outcome::Answered, Outcome::Failed, Outcome::Abandoned][usize::from(what)];
                breaker = breaker.ended(outcome, now);
                if outcome == Outcome::Answered {
                    prop_assert_eq!(breaker, Breaker::default());
                }
                if let Some(next) = breaker.next_try() {
                    prop_assert!(next <= now + LONGEST_PAUSE.max(PROBE_LOST));
                    prop_assert!(breaker.allows(next), "it never stays open for ever");
                }
            }
        }
    }
}
