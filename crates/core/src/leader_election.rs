//! Leader election over a shared lease record (pure logic).
//!
//! Clocks of different machines are never compared. A candidate measures with its own clock how long the record has been
//! unchanged, and takes it over only after the record's duration. A leader counts its lease from the moment it *sent* its
//! last renewal, which is before any candidate can have observed it.

use std::time::Duration;

/// The shared lease record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Empty after the leader resigned.
    pub holder: String,
    /// Validity after the last renewal.
    pub duration: Duration,
    /// Changes with each renewal; compared only for equality.
    pub renewal: String,
    /// Number of leader changes.
    pub transitions: u32,
}

/// What a candidate or leader does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write the record: it is free or expired.
    Acquire { transitions: u32 },
    /// Renew the own record.
    Renew,
    /// Another leader is active; its lease can expire after this time at the earliest.
    Standby(Duration),
}

/// `unchanged` is how long the caller has observed the same record.
pub fn step(me: &str, record: Option<&LeaseRecord>, unchanged: Duration) -> Step {
    match record {
        None => Step::Acquire { transitions: 0 },
        Some(record) if record.holder == me => Step::Renew,
        Some(record) if record.holder.is_empty() || unchanged >= record.duration => {
            Step::Acquire { transitions: record.transitions.saturating_add(1) }
        }
        Some(record) => Step::Standby(record.duration.saturating_sub(unchanged)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DURATION: Duration = Duration::from_secs(15);

    fn held(by: &str) -> LeaseRecord {
        LeaseRecord { holder: by.into(), duration: DURATION, renewal: "1".into(), transitions: 3 }
    }

    #[test]
    fn only_free_or_expired_lease_is_acquired() {
        assert_eq!(step("a", None, Duration::ZERO), Step::Acquire { transitions: 0 });
        assert_eq!(step("a", Some(&held("a")), DURATION * 2), Step::Renew);
        assert_eq!(step("a", Some(&held("")), Duration::ZERO), Step::Acquire { transitions: 4 });
        assert_eq!(step("a", Some(&held("b")), DURATION), Step::Acquire { transitions: 4 });
        assert_eq!(step("a", Some(&held("b")), DURATION / 3), Step::Standby(DURATION * 2 / 3));
    }

    proptest! {
        /// With clock drift up to the margin and any message delay, the leader's lease, counted from when it sent its
        /// renewal, ends before a candidate can acquire the record.
        #[test]
        fn at_most_one_leader_at_a_time(delays in prop::collection::vec(0_u64..4_000, 1..60), drift in -5_i64..=5) {
            // Milliseconds of a reference clock. The leader renews at `sent`; the candidate observes the write later, and
            // its clock runs `drift` percent off.
            let margin = 5_000_u64;
            let mut sent = 0_u64;
            for delay in delays {
                let committed = sent + delay / 2;
                let observed = sent + delay;
                let leads_until = sent + DURATION.as_millis() as u64 - margin;
                let candidate_wait = DURATION.as_millis() as i64 * 100 / (100 + drift);
                let acquired_at = observed.max(committed) + candidate_wait as u64;
                prop_assert!(leads_until < acquired_at);
                sent += 2_000;
            }
        }
    }
}
