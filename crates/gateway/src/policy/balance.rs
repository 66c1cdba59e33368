//! Weighted version selection and least-loaded replica selection.

/// Up to this count all replicas are compared; beyond it, two random choices.
const FULL_SCAN_MAX: usize = 16;

/// Picks a version by weight. `random` is uniform; versions of weight zero are never picked. `None` when all weights
/// are zero.
pub fn pick_version(weights: impl Iterator<Item = u32> + Clone, random: u64) -> Option<usize> {
    let total: u64 = weights.clone().map(u64::from).sum();
    if total == 0 {
        return None;
    }
    let mut rest = random % total;
    for (index, weight) in weights.enumerate() {
        match rest.checked_sub(u64::from(weight)) {
            None => return Some(index),
            Some(left) => rest = left,
        }
    }
    None
}

/// Picks the replica with the fewest requests in flight; ties are broken by `random`.
///
/// `load` returns the in-flight count of a replica, or `None` if it is not eligible. With many replicas the better of
/// two random choices wins, with a full scan as fallback when neither is eligible.
pub fn pick_replica(count: usize, random: u64, load: impl Fn(usize) -> Option<usize>) -> Option<usize> {
    let first = usize::try_from(random % u64::try_from(count.max(1)).unwrap_or(1)).unwrap_or(0);
    if count > FULL_SCAN_MAX {
        let step = 1 + usize::try_from((random >> 32) % u64::try_from(count - 1).unwrap_or(1)).unwrap_or(0);
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pick_replica_skips_ineligible_replicas(loads in prop::collection::vec(prop::option::of(0usize..9), 0..40), t in any::<u64>()) {
            match pick_replica(loads.len(), t, |i| loads[i]) {
                Some(i) => prop_assert!(loads[i].is_some()),
                None => prop_assert!(loads.iter().all(Option::is_none)),
            }
        }

        #[test]
        fn pick_replica_returns_least_loaded_of_few(loads in prop::collection::vec(prop::option::of(0usize..9), 1..=FULL_SCAN_MAX), t in any::<u64>()) {
            let chosen = pick_replica(loads.len(), t, |i| loads[i]).and_then(|i| loads[i]);
            prop_assert_eq!(chosen, loads.iter().flatten().min().copied());
        }

        #[test]
        fn pick_replica_avoids_busiest_of_many(n in FULL_SCAN_MAX + 1..60, t in any::<u64>()) {
            // One replica is busy: of any two choices at most one is busy.
            let loaded = n / 2;
            prop_assert_ne!(pick_replica(n, t, |i| Some(if i == loaded { 100 } else { 0 })), Some(loaded));
        }

        #[test]
        fn pick_version_follows_weights(weights in prop::collection::vec(0u32..50, 1..5)) {
            let total: u32 = weights.iter().sum();
            let mut hits = vec![0u32; weights.len()];
            for t in 0..u64::from(total) {
                if let Some(i) = pick_version(weights.iter().copied(), t) { hits[i] += 1; }
            }
            prop_assert_eq!(hits, weights);
        }
    }

    #[test]
    fn pick_replica_breaks_ties_evenly() {
        let mut hits = [0; 3];
        for t in 0..300 {
            hits[pick_replica(3, t, |_| Some(0)).unwrap()] += 1;
        }
        assert_eq!(hits, [100; 3]);
        assert_eq!(pick_version([0, 0].into_iter(), 5), None);
        assert_eq!(pick_replica(0, 5, |_| Some(0)), None);
    }
}
