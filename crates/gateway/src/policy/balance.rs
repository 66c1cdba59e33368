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

/// Picks the replica of a sequence by rendezvous hashing: every gateway picks the same one, and only the sequences of a
/// replica that leaves move.
///
/// `key` returns the stable key of a replica, or `None` if it is not eligible.
pub fn pick_sequence_replica(
    count: usize,
    sequence: u64,
    key: impl Fn(usize) -> Option<u64>,
) -> Option<usize> {
    (0..count).filter_map(|i| key(i).map(|key| (mix(sequence ^ key), i))).max().map(|(_, i)| i)
}

/// The finalizer of `SplitMix64`: close inputs yield unrelated outputs.
const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A hash that does not depend on the process or its version (FNV-1a).
pub fn stable_hash(parts: &[&[u8]]) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    // Parts are separated by a byte that UTF-8 text does not contain.
    let bytes = parts.iter().flat_map(|part| part.iter().copied().chain([0xff]));
    mix(bytes.fold(0xcbf2_9ce4_8422_2325, step))
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
    fn only_sequences_of_a_removed_replica_move() {
        let keys: Vec<u64> = (0..5_u8).map(|i| stable_hash(&[b"mlserver".as_slice(), &[i]])).collect();
        let mut hits = [0; 5];
        for sequence in 0..2000_u64 {
            let sequence = stable_hash(&[b"m", sequence.to_string().as_bytes()]);
            let before = pick_sequence_replica(5, sequence, |i| Some(keys[i])).unwrap();
            hits[before] += 1;
            let after = pick_sequence_replica(5, sequence, |i| (i != 2).then_some(keys[i])).unwrap();
            assert!(if before == 2 { after != 2 } else { after == before });
        }
        assert!(hits.iter().all(|n| (300..=500).contains(n)), "{hits:?}");
        assert_eq!(pick_sequence_replica(5, 1, |_| None), None);
    }

    #[test]
    fn stable_hash_separates_parts() {
        assert_ne!(stable_hash(&[b"ab", b"c"]), stable_hash(&[b"a", b"bc"]));
        // Gateways of different versions agree.
        assert_eq!(stable_hash(&[b"iris", b"42"]), stable_hash(&[b"iris", b"42"]));
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
