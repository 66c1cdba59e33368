//! What to start and what to stop, given what is wanted and what is seen. Pure: no clock, no process, no chance.
//!
//! Each call gives what can be done now; the caller does it, and asks again when something changed or at `wake_at`.

use std::collections::BTreeMap;

/// A replica of a server.
pub(crate) type Key = (String, u32);
/// Milliseconds since some moment.
pub(crate) type Millis = u64;

/// The first wait after a crash.
const FIRST: Millis = 500;
/// The longest wait.
const LONGEST: Millis = 60_000;
/// Who ran for so long has not failed at its start: the count begins anew.
const GOOD_WHILE: Millis = 60_000;

/// What is known of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It runs; whether it answers.
    Running { fingerprint: u64, ready: bool },
    /// It was told to stop, and has not yet.
    Stopping,
    /// It ended by itself. It may be started again at `again_at`.
    Ended { fingerprint: u64, again_at: Millis },
    /// It was stopped.
    Stopped,
}

/// What to do about a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Start(Key),
    Stop(Key),
    Forget(Key),
}

/// What to do now, and when to look again if nothing happens before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) actions: Vec<Action>,
    pub(crate) wake_at: Option<Millis>,
}

/// Plans. `wanted` has the fingerprint of each wanted replica's recipe.
pub(crate) fn plan(wanted: &BTreeMap<Key, u64>, seen: &BTreeMap<Key, Seen>, now: Millis) -> Plan {
    let mut plan = Plan::default();
    // Servers of which a replica was stopped for a change in this very plan: one at a time.
    let mut changing: Vec<&str> = Vec::new();
    for (key, &fingerprint) in wanted {
        match seen.get(key) {
            None | Some(Seen::Stopped) => plan.actions.push(Action::Start(key.clone())),
            Some(Seen::Stopping) => {}
            Some(Seen::Ended { fingerprint: old, again_at }) => {
                // A changed recipe deserves a fresh try.
                if *old != fingerprint || now >= *again_at {
                    plan.actions.push(Action::Start(key.clone()));
                } else {
                    plan.wake_at = Some(plan.wake_at.map_or(*again_at, |w| w.min(*again_at)));
                }
            }
            Some(Seen::Running { fingerprint: old, .. }) if *old == fingerprint => {}
            // Who does not answer takes no traffic, and is changed at once.
            Some(Seen::Running { ready: false, .. }) => plan.actions.push(Action::Stop(key.clone())),
            // Who answers is changed only while every other replica of the server answers: if the change is bad, the
            // others go on as they are.
            Some(Seen::Running { ready: true, .. }) => {
                let others_ready = wanted
                    .keys()
                    .filter(|k| k.0 == key.0 && *k != key)
                    .all(|k| matches!(seen.get(k), Some(Seen::Running { ready: true, .. })));
                if others_ready && !changing.contains(&key.0.as_str()) {
                    changing.push(&key.0);
                    plan.actions.push(Action::Stop(key.clone()));
                }
            }
        }
    }
    for (key, seen) in seen.iter().filter(|(key, _)| !wanted.contains_key(*key)) {
        match seen {
            Seen::Running { .. } => plan.actions.push(Action::Stop(key.clone())),
            Seen::Stopping => {}
            Seen::Ended { .. } | Seen::Stopped => plan.actions.push(Action::Forget(key.clone())),
        }
    }
    plan
}

/// How often a replica has failed in a row, when it has now ended after running for so long.
pub(crate) const fn failures(before: u32, ran: Millis) -> u32 {
    if ran >= GOOD_WHILE { 1 } else { before.saturating_add(1) }
}

/// How long to wait after so many failures in a row; `chance` is between 0 and 1 and keeps replicas that fell together
/// from rising together.
pub(crate) fn backoff(failures: u32, chance: f64) -> Millis {
    let doubled =
        FIRST.saturating_mul(1u64.checked_shl(failures.saturating_sub(1).min(32)).unwrap_or(u64::MAX));
    let wait = doubled.min(LONGEST);
    wait / 2 + ((wait / 2) as f64 * chance.clamp(0.0, 1.0)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(server: &str, replica: u32) -> Key {
        (server.to_owned(), replica)
    }

    fn running(fingerprint: u64, ready: bool) -> Seen {
        Seen::Running { fingerprint, ready }
    }

    #[test]
    fn what_follows_from_what() {
        let (a0, a1) = (key("a", 0), key("a", 1));
        let ended = |fingerprint, again_at| Seen::Ended { fingerprint, again_at };
        for (name, wanted, seen, expected) in [
            ("new", vec![(&a0, 1)], vec![], vec![Action::Start(a0.clone())]),
            ("as it should be", vec![(&a0, 1)], vec![(&a0, running(1, true))], vec![]),
            ("not wanted", vec![], vec![(&a0, running(1, true))], vec![Action::Stop(a0.clone())]),
            ("gone and not wanted", vec![], vec![(&a0, ended(1, 0))], vec![Action::Forget(a0.clone())]),
            ("being stopped", vec![(&a0, 1)], vec![(&a0, Seen::Stopping)], vec![]),
            (
                "crashed, time is up",
                vec![(&a0, 1)],
                vec![(&a0, ended(1, 100))],
                vec![Action::Start(a0.clone())],
            ),
            ("crashed, waiting", vec![(&a0, 1)], vec![(&a0, ended(1, 101))], vec![]),
            ("crashed, mended", vec![(&a0, 2)], vec![(&a0, ended(1, 999))], vec![Action::Start(a0.clone())]),
            ("changed", vec![(&a0, 2)], vec![(&a0, running(1, true))], vec![Action::Stop(a0.clone())]),
            (
                "changed: one at a time",
                vec![(&a0, 2), (&a1, 2)],
                vec![(&a0, running(1, true)), (&a1, running(1, true))],
                vec![Action::Stop(a0.clone())],
            ),
            (
                "changed: the new one does not answer yet",
                vec![(&a0, 2), (&a1, 2)],
                vec![(&a0, running(2, false)), (&a1, running(1, true))],
                vec![],
            ),
            (
                "changed: the new one crashed",
                vec![(&a0, 2), (&a1, 2)],
                vec![(&a0, ended(2, 999)), (&a1, running(1, true))],
                vec![],
            ),
            (
                "changed: an old one never answered",
                vec![(&a0, 2), (&a1, 2)],
                vec![(&a0, running(1, false)), (&a1, running(1, true))],
                vec![Action::Stop(a0.clone())],
            ),
        ] {
            let wanted = wanted.into_iter().map(|(k, f)| (k.clone(), f)).collect();
            let seen = seen.into_iter().map(|(k, s)| (k.clone(), s)).collect();
            assert_eq!(plan(&wanted, &seen, 100).actions, expected, "{name}");
        }
        let waiting = plan(&[(a0.clone(), 1)].into(), &[(a0, ended(1, 101))].into(), 100);
        assert_eq!(waiting.wake_at, Some(101));
    }

    #[test]
    fn waits_grow_and_end() {
        assert_eq!((backoff(1, 0.0), backoff(1, 1.0)), (250, 500));
        assert_eq!(backoff(3, 1.0), 2_000);
        assert_eq!((backoff(1_000, 0.0), backoff(u32::MAX, 1.0)), (30_000, 60_000));
        assert_eq!((failures(7, 10), failures(7, GOOD_WHILE)), (8, 1));
    }

    fn seen() -> impl Strategy<Value = Seen> {
        prop_oneof![
            (0..3u64, any::<bool>()).prop_map(|(f, ready)| running(f, ready)),
            Just(Seen::Stopping),
            Just(Seen::Stopped),
            (0..3u64, 0..200u64).prop_map(|(fingerprint, again_at)| Seen::Ended { fingerprint, again_at }),
        ]
    }

    fn keys() -> impl Strategy<Value = Key> {
        ("[ab]", 0..3u32)
    }

    proptest! {
        /// Whatever is seen at first, doing what the plan says leads to what is wanted, and then it says nothing more.
        #[test]
        fn plans_lead_to_what_is_wanted(
            wanted in prop::collection::btree_map(keys(), 0..1u64, 0..6),
            mut seen in prop::collection::btree_map(keys(), seen(), 0..6),
        ) {
            // A server has one recipe.
            let wanted: BTreeMap<Key, u64> = wanted.into_keys().map(|k| (k.clone(), u64::from(k.0 == "b"))).collect();
            let mut now = 100;
            for _ in 0..64 {
                let next = plan(&wanted, &seen, now);
                for action in &next.actions {
                    match action {
                        Action::Start(key) => {
                            let before = seen.insert(key.clone(), running(wanted[key], true));
                            let may = match before {
                                None | Some(Seen::Stopped) => true,
                                Some(Seen::Ended { fingerprint, again_at }) => {
                                    now >= again_at || fingerprint != wanted[key]
                                }
                                _ => false,
                            };
                            prop_assert!(may, "started what runs, or too early");
                        }
                        Action::Stop(key) => {
                            let stopped = matches!(seen.get(key), Some(Seen::Running { .. }));
                            prop_assert!(stopped, "stopped what does not run");
                            seen.insert(key.clone(), Seen::Stopping);
                        }
                        Action::Forget(key) => {
                            prop_assert!(!wanted.contains_key(key));
                            seen.remove(key);
                        }
                    }
                }
                // The world goes on: what was told to stop has stopped, what runs answers.
                for state in seen.values_mut() {
                    match state {
                        Seen::Stopping => *state = Seen::Stopped,
                        Seen::Running { ready, .. } => *ready = true,
                        _ => {}
                    }
                }
                now = next.wake_at.map_or(now + 1, |w| w.max(now + 1));
            }
            let expected: BTreeMap<Key, Seen> =
                wanted.iter().map(|(k, f)| (k.clone(), running(*f, true))).collect();
            prop_assert_eq!(&seen, &expected);
            prop_assert_eq!(plan(&wanted, &seen, now), Plan::default());
        }

        /// A server of which all replicas answer never has two of them stopped for a change at once.
        #[test]
        fn a_change_stops_one_replica_at_a_time(count in 1..5u32, changed in 1..9u64) {
            let wanted: BTreeMap<Key, u64> = (0..count).map(|i| (key("a", i), changed)).collect();
            let seen: BTreeMap<Key, Seen> = (0..count).map(|i| (key("a", i), running(0, true))).collect();
            prop_assert_eq!(plan(&wanted, &seen, 0).actions.len(), 1);
        }
    }
}
