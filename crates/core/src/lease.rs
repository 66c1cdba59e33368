//! Who leads: one of several that all want to, by a record that all of them can see.
//!
//! Clocks of different machines are never compared. A candidate measures, by its own clock, how long a record has stood
//! unchanged; only when that is longer than the record's own term may it be taken over. A leader counts its term from
//! the moment it *sent* its last renewal, which is before anybody can have seen it.

use std::time::Duration;

/// What the record says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Who leads; empty when it was given up.
    pub holder: String,
    /// For how long after its last renewal.
    pub term: Duration,
    /// Changes with each renewal; only ever compared for being the same.
    pub stamp: String,
    /// How often the leader changed.
    pub transitions: u32,
}

/// What a candidate or a leader does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write the record in one's own name: it is free, or its term is over.
    Take {
        /// The number of changes of leader that is written.
        transitions: u32,
    },
    /// Renew it: it is one's own.
    Renew,
    /// Look again: somebody else leads. This long at most until it could be taken.
    Wait(Duration),
}

/// Decides. `unchanged` is how long the record has stood as it is, by the clock of the one who asks.
pub fn step(me: &str, record: Option<&Record>, unchanged: Duration) -> Step {
    match record {
        None => Step::Take { transitions: 0 },
        Some(record) if record.holder == me => Step::Renew,
        Some(record) if record.holder.is_empty() || unchanged >= record.term => {
            Step::Take { transitions: record.transitions.saturating_add(1) }
        }
        Some(record) => Step::Wait(record.term.saturating_sub(unchanged)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TERM: Duration = Duration::from_secs(15);

    fn held(by: &str) -> Record {
        Record { holder: by.into(), term: TERM, stamp: "1".into(), transitions: 3 }
    }

    #[test]
    fn what_is_free_or_over_is_taken_and_nothing_else() {
        assert_eq!(step("a", None, Duration::ZERO), Step::Take { transitions: 0 });
        assert_eq!(step("a", Some(&held("a")), TERM * 2), Step::Renew);
        assert_eq!(step("a", Some(&held("")), Duration::ZERO), Step::Take { transitions: 4 });
        assert_eq!(step("a", Some(&held("b")), TERM), Step::Take { transitions: 4 });
        assert_eq!(step("a", Some(&held("b")), TERM / 3), Step::Wait(TERM * 2 / 3));
    }

    proptest! {
        /// Two candidates with clocks of any speed and offset, delays of any length: a leader's term, counted from when
        /// it sent its renewal, is over by its own clock before the other can take the record, as long as no clock runs
        /// so much faster than another that the margin is used up.
        #[test]
        fn two_never_lead_at_once(delays in prop::collection::vec(0_u64..4_000, 1..60), drift in -5_i64..=5) {
            // Times in milliseconds of a world clock. The leader renews at t, the write is seen by the other some time
            // later; the other's clock runs `drift` percent off.
            let margin = 5_000_u64;
            let mut sent = 0_u64;
            for delay in delays {
                let committed = sent + delay / 2;
                let seen = sent + delay;
                let leads_until = sent + TERM.as_millis() as u64 - margin;
                let others_term = TERM.as_millis() as i64 * 100 / (100 + drift);
                let taken_at = seen.max(committed) + others_term as u64;
                prop_assert!(leads_until < taken_at);
                sent += 2_000;
            }
        }
    }
}
