//! Which version, and which of its replicas.

/// Up to so many replicas the least loaded is found by looking at all of them.
const LOOK_AT_ALL: usize = 16;

/// The version that takes this request: shares of the traffic follow the weights. `ticket` is any number; over many
/// tickets each version gets its share. A version of weight zero gets nothing. `None` when no weight is above zero.
pub fn version(weights: impl Iterator<Item = u32> + Clone, ticket: u64) -> Option<usize> {
    let total: u64 = weights.clone().map(u64::from).sum();
    if total == 0 {
        return None;
    }
    let mut rest = ticket % total;
    for (index, weight) in weights.enumerate() {
        match rest.checked_sub(u64::from(weight)) {
            None => return Some(index),
            Some(left) => rest = left,
        }
    }
    None
}

/// The replica that takes this request: the one with the fewest requests in flight, ties going round by `ticket`.
///
/// `load` gives the requests in flight of a replica, or `None` when it must not be asked. With many replicas the
/// better of two is taken, and all are looked at only when both must not be asked.
pub fn replica(count: usize, ticket: u64, load: impl Fn(usize) -> Option<usize>) -> Option<usize> {
    let first = usize::try_from(ticket % u64::try_from(count.max(1)).unwrap_or(1)).unwrap_or(0);
    if count > LOOK_AT_ALL {
        let step = 1 + usize::try_from((ticket >> 32) % u64::try_from(count - 1).unwrap_or(1)).unwrap_or(0);
        let second = (first + step) % count;
        match (load(first), load(second)) {
            (Some(a), Some(b)) => return Some(if b < a { second } else { first }),
            (Some(_), None) => return Some(first),
            (None, Some(_)) => return Some(second),
            (None, None) => {}
        }
    }
    (0..count)
        .map(|i| (first + i) % count)
        .filter_map(|i| load(i).map(|l| (l, i)))
        .min_by_key(|&(l, _)| l)
        .map(|(_, i)| i)
}

/// Turns a counter into tickets that look random (`SplitMix64`).
pub const fn ticket(counter: u64) -> u64 {
    let mut z = counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_replica_that_must_not_be_asked_is_not(loads in prop::collection::vec(prop::option::of(0usize..9), 0..40), t in any::<u64>()) {
            match replica(loads.len(), t, |i| loads[i]) {
                Some(i) => prop_assert!(loads[i].is_some()),
                None => prop_assert!(loads.iter().all(Option::is_none)),
            }
        }

        #[test]
        fn few_replicas_are_balanced_exactly(loads in prop::collection::vec(prop::option::of(0usize..9), 1..=LOOK_AT_ALL), t in any::<u64>()) {
            let chosen = replica(loads.len(), t, |i| loads[i]).and_then(|i| loads[i]);
            prop_assert_eq!(chosen, loads.iter().flatten().min().copied());
        }

        #[test]
        fn of_many_replicas_the_most_loaded_is_never_preferred(n in LOOK_AT_ALL + 1..60, t in any::<u64>()) {
            // One replica is loaded, the others are idle: of any two at most one is the loaded one.
            let loaded = n / 2;
            prop_assert_ne!(replica(n, t, |i| Some(if i == loaded { 100 } else { 0 })), Some(loaded));
        }

        #[test]
        fn shares_follow_the_weights(weights in prop::collection::vec(0u32..50, 1..5)) {
            let total: u32 = weights.iter().sum();
            let mut hits = vec![0u32; weights.len()];
            for t in 0..u64::from(total) {
                if let Some(i) = version(weights.iter().copied(), t) { hits[i] += 1; }
            }
            prop_assert_eq!(hits, weights);
        }
    }

    #[test]
    fn ties_go_round() {
        let mut hits = [0; 3];
        for t in 0..300 {
            hits[replica(3, t, |_| Some(0)).unwrap()] += 1;
        }
        assert_eq!(hits, [100; 3]);
        assert_eq!(version([0, 0].into_iter(), 5), None);
        assert_eq!(replica(0, 5, |_| Some(0)), None);
    }
}
