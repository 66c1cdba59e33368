//! Plans starts and stops of replicas from desired and observed state. Pure: no clock, no processes, no randomness.
//!
//! Each call returns the actions that are possible now; the caller applies them and plans again after a change or at
//! `wake_at`.

use std::collections::BTreeMap;

/// Server and replica index.
pub(crate) type Key = (String, u32);
pub(crate) type Millis = u64;

const BACKOFF_MIN: Millis = 500;
const BACKOFF_MAX: Millis = 60_000;
/// A run of this length resets the crash count.
const STABLE_AFTER: Millis = 60_000;

/// Observed state of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Observed {
    Running {
        fingerprint: u64,
        ready: bool,
    },
    Stopping,
    /// It exited by itself and may be restarted at `restart_at`.
    Crashed {
        fingerprint: u64,
        restart_at: Millis,
    },
    Stopped,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Start(Key),
    Stop(Key),
    Remove(Key),
}

/// Actions that are possible now, and when to plan again without a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) actions: Vec<Action>,
    pub(crate) wake_at: Option<Millis>,
}

/// `desired` has the fingerprint of each desired replica's launch spec.
pub(crate) fn plan(desired: &BTreeMap<Key, u64>, observed: &BTreeMap<Key, Observed>, now: Millis) -> Plan {
    let mut plan = Plan::default();
    // Servers with a replica restarted by this plan: one at a time.
    let mut restarting: Vec<&str> = Vec::new();
    for (key, &fingerprint) in desired {
        match observed.get(key) {
            None | Some(Observed::Stopped) => plan.actions.push(Action::Start(key.clone())),
            Some(Observed::Stopping) => {}
            Some(Observed::Crashed { fingerprint: old, restart_at }) => {
                // A changed launch spec skips the backoff.
                if *old != fingerprint || now >= *restart_at {
                    plan.actions.push(Action::Start(key.clone()));
                } else {
                    plan.wake_at = Some(plan.wake_at.map_or(*restart_at, |w| w.min(*restart_at)));
                }
            }
            Some(Observed::Running { fingerprint: old, .. }) if *old == fingerprint => {}
            // Without traffic: restarted at once.
            Some(Observed::Running { ready: false, .. }) => plan.actions.push(Action::Stop(key.clone())),
            // Restarted only while all other replicas are ready: a bad change takes down one replica.
            Some(Observed::Running { ready: true, .. }) => {
                let others_ready = desired
                    .keys()
                    .filter(|k| k.0 == key.0 && *k != key)
                    .all(|k| matches!(observed.get(k), Some(Observed::Running { ready: true, .. })));
                if others_ready && !restarting.contains(&key.0.as_str()) {
                    restarting.push(&key.0);
                    plan.actions.push(Action::Stop(key.clone()));
                }
            }
        }
    }
    for (key, observed) in observed.iter().filter(|(key, _)| !desired.contains_key(*key)) {
        match observed {
            Observed::Running { .. } => plan.actions.push(Action::Stop(key.clone())),
            Observed::Stopping => {}
            Observed::Crashed { .. } | Observed::Stopped => plan.actions.push(Action::Remove(key.clone())),
        }
    }
    plan
}

/// Consecutive crashes, after another crash of a process that ran for `ran`.
pub(crate) const fn failures(before: u32, ran: Millis) -> u32 {
    if ran >= STABLE_AFTER { 1 } else { before.saturating_add(1) }
}

/// Backoff after consecutive crashes; `jitter`, between 0 and 1, spreads the restarts of replicas that crashed together.
pub(crate) fn backoff(failures: u32, jitter: f64) -> Millis {
    let doubled =
        BACKOFF_MIN.saturating_mul(1u64.checked_shl(failures.saturating_sub(1).min(32)).unwrap_or(u64::MAX));
    let wait = doubled.min(BACKOFF_MAX);
    wait / 2 + ((wait / 2) as f64 * jitter.clamp(0.0, 1.0)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(server: &str, replica: u32) -> Key {
        (server.to_owned(), replica)
    }

    fn running(fingerprint: u64, ready: bool) -> Observed {
        Observed::Running { fingerprint, ready }
    }

    #[test]
    fn actions_follow_from_desired_and_observed_state() {
        let (a0, a1) = (key("a", 0), key("a", 1));
        let crashed = |fingerprint, restart_at| Observed::Crashed { fingerprint, restart_at };
        for (name, desired, observed, expected) in [
            ("new", vec![(&a0, 1)], vec![], vec![Action::Start(a0.clone())]),
            ("converged", vec![(&a0, 1)], vec![(&a0, running(1, true))], vec![]),
            ("not desired", vec![], vec![(&a0, running(1, true))], vec![Action::Stop(a0.clone())]),
            ("exited and not desired", vec![], vec![(&a0, crashed(1, 0))], vec![Action::Remove(a0.clone())]),
            ("stopping", vec![(&a0, 1)], vec![(&a0, Observed::Stopping)], vec![]),
            (
                "crashed, backoff elapsed",
                vec![(&a0, 1)],
                vec![(&a0, crashed(1, 100))],
                vec![Action::Start(a0.clone())],
            ),
            ("crashed, in backoff", vec![(&a0, 1)], vec![(&a0, crashed(1, 101))], vec![]),
            (
                "crashed, spec changed",
                vec![(&a0, 2)],
                vec![(&a0, crashed(1, 999))],
                vec![Action::Start(a0.clone())],
            ),
            ("changed", vec![(&a0, 2)], vec![(&a0, running(1, true))], vec![Action::Stop(a0.clone())]),
            (
                "changed: one at a time",
                vec![(&a0, 2), (&a1, 2)],
                vec![(&a0, running(1, true)), (&a1, running(1, true))],
                vec![Action::Stop(a0.clone())],
            ),
            (
                "changed: the new one is not ready",
                vec![(&a0, 2), (&a1, 2)],
                vec![(&a0, running(2, false)), (&a1, running(1, true))],
                vec![],
            ),
            (
                "changed: the new one crashed",
                vec![(&a0, 2), (&a1, 2)],
                vec![(&a0, crashed(2, 999)), (&a1, running(1, true))],
                vec![],
            ),
            (
                "changed: an old one is not ready",
                vec![(&a0, 2), (&a1, 2)],
                vec![(&a0, running(1, false)), (&a1, running(1, true))],
                vec![Action::Stop(a0.clone())],
            ),
        ] {
            let desired = desired.into_iter().map(|(k, f)| (k.clone(), f)).collect();
            let observed = observed.into_iter().map(|(k, s)| (k.clone(), s)).collect();
            assert_eq!(plan(&desired, &observed, 100).actions, expected, "{name}");
        }
        let waiting = plan(&[(a0.clone(), 1)].into(), &[(a0, crashed(1, 101))].into(), 100);
        assert_eq!(waiting.wake_at, Some(101));
    }

    #[test]
    fn backoff_grows_up_to_its_maximum() {
        assert_eq!((backoff(1, 0.0), backoff(1, 1.0)), (250, 500));
        assert_eq!(backoff(3, 1.0), 2_000);
        assert_eq!((backoff(1_000, 0.0), backoff(u32::MAX, 1.0)), (30_000, 60_000));
        assert_eq!((failures(7, 10), failures(7, STABLE_AFTER)), (8, 1));
    }

    fn observed() -> impl Strategy<Value = Observed> {
        prop_oneof![
            (0..3u64, any::<bool>()).prop_map(|(f, ready)| running(f, ready)),
            Just(Observed::Stopping),
            Just(Observed::Stopped),
            (0..3u64, 0..200u64)
                .prop_map(|(fingerprint, restart_at)| Observed::Crashed { fingerprint, restart_at }),
        ]
    }

    fn keys() -> impl Strategy<Value = Key> {
        ("[ab]", 0..3u32)
    }

    proptest! {
        /// From any observed state, applying plans converges to the desired state, and then the plan is empty.
        #[test]
        fn plans_converge(
            desired in prop::collection::btree_map(keys(), 0..1u64, 0..6),
            mut observed in prop::collection::btree_map(keys(), observed(), 0..6),
        ) {
            // A server has one launch spec.
            let desired: BTreeMap<Key, u64> = desired.into_keys().map(|k| (k.clone(), u64::from(k.0 == "b"))).collect();
            let mut now = 100;
            for _ in 0..64 {
                let next = plan(&desired, &observed, now);
                for action in &next.actions {
                    match action {
                        Action::Start(key) => {
                            let before = observed.insert(key.clone(), running(desired[key], true));
                            let allowed = match before {
                                None | Some(Observed::Stopped) => true,
                                Some(Observed::Crashed { fingerprint, restart_at }) => {
                                    now >= restart_at || fingerprint != desired[key]
                                }
                                _ => false,
                            };
                            prop_assert!(allowed, "started a running replica, or too early");
                        }
                        Action::Stop(key) => {
                            let stopped = matches!(observed.get(key), Some(Observed::Running { .. }));
                            prop_assert!(stopped, "stopped a replica that does not run");
                            observed.insert(key.clone(), Observed::Stopping);
                        }
                        Action::Remove(key) => {
                            prop_assert!(!desired.contains_key(key));
                            observed.remove(key);
                        }
                    }
                }
                // Stopping replicas stop, running ones become ready.
                for state in observed.values_mut() {
                    match state {
                        Observed::Stopping => *state = Observed::Stopped,
                        Observed::Running { ready, .. } => *ready = true,
                        _ => {}
                    }
                }
                now = next.wake_at.map_or(now + 1, |w| w.max(now + 1));
            }
            let expected: BTreeMap<Key, Observed> =
                desired.iter().map(|(k, f)| (k.clone(), running(*f, true))).collect();
            prop_assert_eq!(&observed, &expected);
            prop_assert_eq!(plan(&desired, &observed, now), Plan::default());
        }

        #[test]
        fn change_stops_one_ready_replica_at_a_time(count in 1..5u32, changed in 1..9u64) {
            let desired: BTreeMap<Key, u64> = (0..count).map(|i| (key("a", i), changed)).collect();
            let observed: BTreeMap<Key, Observed> = (0..count).map(|i| (key("a", i), running(0, true))).collect();
            prop_assert_eq!(plan(&desired, &observed, 0).actions.len(), 1);
        }
    }
}
