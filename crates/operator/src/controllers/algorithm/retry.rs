//! Retries of rejected applies, with an exponential backoff that survives a restart of the operator.

use crate::{
    cluster::Desired,
    workload::{ApplyFailure, OwnedObjects},
};
use gantry_api::AlgorithmStatus;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::time::Duration;

const LONGEST: u64 = 300;

/// The backoff of the status, and the failures that are not retried yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Retry {
    pub(super) count: Option<i32>,
    pub(super) next: Option<Timestamp>,
    pub(super) held: Vec<ApplyFailure>,
}

/// `2^count` seconds and up to 10 % more, at most 5 minutes.
fn delay(count: i32, salt: u64) -> Duration {
    let seconds = 2_u64.saturating_pow(u32::try_from(count).unwrap_or_default()).min(LONGEST);
    let jitter = salt % (seconds * 100 + 1);
    Duration::from_millis(seconds * 1_000 + jitter)
}

/// A failure after the announced time is a new one. The count ends when every object is as desired.
pub(super) fn retry(
    status: Option<&AlgorithmStatus>,
    failures: &[ApplyFailure],
    desired: &[Desired],
    owned: &OwnedObjects,
    now: Timestamp,
) -> Retry {
    let count = status.and_then(|status| status.retry_count);
    let next: Option<Timestamp> =
        status.and_then(|status| status.next_retry_time.as_deref()).and_then(|time| time.parse().ok());
    let concerns = |failure: &&ApplyFailure| {
        desired.iter().any(|d| d.kind == failure.kind && d.key == failure.key && d.digest() == failure.digest)
    };
    let failures: Vec<ApplyFailure> = failures.iter().filter(concerns).cloned().collect();
    let Some(youngest) = failures.iter().map(|failure| failure.age).min() else {
        let is_live = |d: &Desired| owned.get(d.kind, &d.key.name).is_some_and(|live| d.matches(live));
        let is_over = count.is_none() || desired.iter().all(is_live);
        return if is_over { Retry::default() } else { Retry { count, next, held: Vec::new() } };
    };
    let age = SignedDuration::try_from(youngest).unwrap_or_default();
    let failed_at = now.checked_sub(age).unwrap_or(now);
    match next {
        // Waits, or it is time for an attempt.
        Some(next) if failed_at < next => {
            let held = if now < next { failures } else { Vec::new() };
            Retry { count, next: Some(next), held }
        }
        _ => {
            let count = count.unwrap_or_default();
            let salt = failures
                .iter()
                .flat_map(|f| f.digest.bytes())
                .fold(7_u64, |salt, byte| salt.wrapping_mul(31).wrapping_add(u64::from(byte)));
            let wait = SignedDuration::try_from(delay(count, salt)).unwrap_or_default();
            // The status has whole seconds.
            let next = failed_at.checked_add(wait).unwrap_or(now);
            let next = Timestamp::from_second(next.as_second() + 1).unwrap_or(next);
            Retry { count: Some(count.saturating_add(1)), next: Some(next), held: failures }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{Key, ResourceKind},
        workload::FailureCause,
    };
    use serde_json::json;

    #[test]
    fn delay_doubles_up_to_five_minutes() {
        let seconds: Vec<u64> = (0..11).map(|count| delay(count, 0).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        for salt in 0..1000 {
            let delay = delay(3, salt * 7919);
            assert!(delay >= Duration::from_secs(8) && delay <= Duration::from_millis(8_800), "{delay:?}");
        }
    }

    #[test]
    fn attempts_follow_the_announced_times() {
        let desired = vec![Desired::new(ResourceKind::SERVICE, Key::new("ml", "a"), json!({ "spec": {} }))];
        let failed = |age: u64| ApplyFailure {
            kind: ResourceKind::SERVICE,
            key: Key::new("ml", "a"),
            digest: desired[0].digest(),
            live_uid: String::new(),
            cause: FailureCause::Rejected("quota".into()),
            age: Duration::from_secs(age),
        };
        let owned = OwnedObjects::default();
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let mut status = AlgorithmStatus::default();
        let mut now = 0;
        let mut waits = Vec::new();
        for attempt in 1..=4 {
            let first = retry(Some(&status), &[failed(0)], &desired, &owned, at(now));
            assert_eq!((first.count, first.held.len()), (Some(attempt), 1));
            status.retry_count = first.count;
            status.next_retry_time = first.next.map(|next| next.to_string());
            let next = first.next.unwrap();
            waits.push(next.as_second() - at(now).as_second());
            // Nothing changes until then.
            let again = retry(Some(&status), &[failed(1)], &desired, &owned, at(now + 1));
            assert_eq!((again.count, again.next), (first.count, first.next));
            now = next.as_second() - 1_800_000_000;
            let due = retry(Some(&status), &[failed(u64::try_from(now).unwrap())], &desired, &owned, at(now));
            assert_eq!((due.count, due.held.len()), (Some(attempt), 0), "it is tried again");
        }
        assert!(waits.is_sorted_by(|a, b| a < b), "{waits:?}");
        // A restart forgets the failure, not the count.
        assert_eq!(retry(Some(&status), &[], &desired, &owned, at(now)).count, Some(4));
        assert_eq!(retry(Some(&status), &[], &[], &owned, at(now)), Retry::default());
    }
}
