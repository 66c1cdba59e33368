//! Traffic split by the number of pods: Argo Rollouts' replica counts of a basic canary.

/// Replicas of both revisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaCounts {
    pub canary: u32,
    pub stable: u32,
}

/// The counts closest to a weight, with one more replica in total if surge is allowed. Ties go to the larger canary. A
/// weight from 1 to 99 gives at least one replica to each, if there are two.
pub fn closest(replicas: u32, weight: u32, surge: bool) -> ReplicaCounts {
    let weight = weight.min(100);
    if replicas == 0 {
        return ReplicaCounts::default();
    }
    let exact = u64::from(replicas) * u64::from(weight);
    let (floor, ceil) = ((exact / 100) as u32, exact.div_ceil(100) as u32);
    let zero_allowed = weight == 0 || weight == 100 || (replicas == 1 && !surge);
    let tied = |total: u32| (u64::from(total) * u64::from(weight)) % 100 == 50;
    let floor_allowed = floor != 0 || zero_allowed;
    let more = replicas.saturating_add(1);
    [
        (ceil < replicas || zero_allowed).then_some((ceil, replicas)),
        (!tied(replicas) && floor_allowed).then_some((floor, replicas)),
        surge.then_some((ceil, more)),
        (surge && !tied(more) && floor_allowed).then_some((floor, more)),
    ]
    .into_iter()
    .flatten()
    .min_by(|left, right| distance(*left, weight).total_cmp(&distance(*right, weight)))
    .map_or(ReplicaCounts { canary: 0, stable: replicas }, |(canary, total)| ReplicaCounts {
        canary,
        stable: total.saturating_sub(canary),
    })
}

/// The canary replicas beside a fixed number of stable ones that come closest to a weight: at least one for a weight above
/// 0, at most as many as stable ones. Ties go to the smaller canary.
pub fn beside(stable: u32, weight: u32) -> ReplicaCounts {
    let canary = match weight.min(100) {
        0 => 0,
        100 => stable.max(1),
        weight => {
            let floor = (u64::from(stable) * u64::from(weight) / u64::from(100 - weight)) as u32;
            let off = |canary: u32| distance((canary, canary.saturating_add(stable)), weight);
            let more = floor.saturating_add(1);
            let closest = if floor > 0 && off(floor) <= off(more) { floor } else { more };
            closest.min(stable.max(1))
        }
    };
    ReplicaCounts { canary, stable }
}

fn distance((canary, total): (u32, u32), weight: u32) -> f64 {
    (f64::from(canary) * 100.0 / f64::from(total.max(1)) - f64::from(weight)).abs()
}

/// The share of requests that the canary receives, in percent.
pub fn effective_weight(counts: ReplicaCounts) -> f64 {
    let total = u64::from(counts.canary) + u64::from(counts.stable);
    f64::from(counts.canary) * 100.0 / total.max(1) as f64
}

/// Replicas of one `ReplicaSet` or Deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replicas {
    pub desired: u32,
    pub available: u32,
}

impl Replicas {
    /// Replicas that count as serving while the other revision is scaled down.
    const fn serving(self, ignore_availability: bool) -> u32 {
        if ignore_availability || self.desired < self.available { self.desired } else { self.available }
    }
}

/// Bounds of a scaling step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalingBounds {
    pub replicas: u32,
    pub max_surge: u32,
    pub max_unavailable: u32,
}

impl ScalingBounds {
    /// Percentages round up for surge and down for unavailability; if both give 0, one replica may be unavailable.
    pub fn new(replicas: u32, max_surge: u32, max_unavailable: u32) -> Self {
        let max_unavailable = if max_surge == 0 { max_unavailable.max(1) } else { max_unavailable };
        Self { replicas, max_surge, max_unavailable }
    }

    /// The counts of the next step towards a weight: scales up the stable revision before the canary within the surge, and
    /// scales down within the unavailability, older revisions first.
    pub fn next(&self, weight: u32, canary: Replicas, stable: Replicas, older: u32) -> ReplicaCounts {
        let goal = closest(self.replicas, weight, self.max_surge > 0);
        let most = self.replicas.saturating_add(self.max_surge);
        let least = self.replicas.saturating_sub(self.max_unavailable);
        let current = canary.desired.saturating_add(stable.desired).saturating_add(older);
        let mut room = most.saturating_sub(current);
        let mut next = ReplicaCounts { canary: canary.desired, stable: stable.desired };
        let added = goal.stable.saturating_sub(stable.desired).min(room);
        next.stable += added;
        room -= added;
        next.canary += goal.canary.saturating_sub(canary.desired).min(room);
        if older > 0 {
            return next;
        }
        let increasing = goal.canary >= canary.desired;
        let serving = canary.serving(!increasing).saturating_add(stable.serving(increasing));
        let removable = serving.saturating_sub(least);
        if removable == 0 {
            return next;
        }
        let down = |current: u32, goal: u32, next: u32| {
            if current > goal { goal.max(current.saturating_sub(removable)) } else { next }
        };
        if increasing {
            next.stable = down(stable.desired, goal.stable, next.stable);
            (next.stable, next.canary) = fit(stable, canary, next.stable, next.canary, most, least);
        } else {
            next.canary = down(canary.desired, goal.canary, next.canary);
            (next.canary, next.stable) = fit(canary, stable, next.canary, next.stable, most, least);
        }
        next
    }
}

/// Keeps both counts within the most replicas without losing available ones below the least. Returns the drained and the
/// other count.
fn fit(drained: Replicas, other: Replicas, drain: u32, adjust: u32, most: u32, least: u32) -> (u32, u32) {
    let adjusted = adjust.saturating_sub(adjust.saturating_add(drain).saturating_sub(most));
    let available = drained.available.min(drain).saturating_add(other.available.min(adjusted));
    let lost = other.available.saturating_sub(adjusted);
    let adjusted = adjusted.saturating_add(lost.min(least.saturating_sub(available)));
    (drain.saturating_sub(adjusted.saturating_add(drain).saturating_sub(most)), adjusted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Facts of `utils/replicaset/canary_test.go`: replicas, surge, then weight, canary and stable.
    #[test]
    fn closest_counts_table() {
        type Row = (u32, u32, &'static [(u32, u32, u32)]);
        let table: &[Row] = &[
            (0, 0, &[(0, 0, 0), (50, 0, 0), (100, 0, 0)]),
            (0, 1, &[(0, 0, 0), (50, 0, 0), (100, 0, 0)]),
            (1, 0, &[(0, 0, 1), (1, 0, 1), (49, 0, 1), (50, 1, 0), (99, 1, 0), (100, 1, 0)]),
            (1, 1, &[(0, 0, 1), (1, 1, 1), (49, 1, 1), (50, 1, 1), (99, 1, 1), (100, 1, 0)]),
            (2, 0, &[(0, 0, 2), (1, 1, 1), (50, 1, 1), (99, 1, 1), (100, 2, 0)]),
            (2, 1, &[(0, 0, 2), (1, 1, 2), (50, 1, 1), (99, 2, 1), (100, 2, 0)]),
            (3, 0, &[(10, 1, 2), (25, 1, 2), (33, 1, 2), (34, 1, 2), (49, 1, 2), (50, 2, 1)]),
            (3, 1, &[(10, 1, 3), (25, 1, 3), (33, 1, 2), (34, 1, 2), (49, 2, 2), (50, 2, 2)]),
            (10, 0, &[(1, 1, 9), (14, 1, 9), (15, 2, 8), (16, 2, 8), (99, 9, 1)]),
            (10, 1, &[(0, 0, 10), (1, 1, 10), (18, 2, 9), (19, 2, 9), (20, 2, 8), (23, 2, 8)]),
            (10, 1, &[(24, 3, 8), (25, 3, 8), (99, 10, 1), (100, 10, 0)]),
        ];
        for (replicas, surge, rows) in table {
            for (weight, canary, stable) in *rows {
                let counts = closest(*replicas, *weight, *surge > 0);
                let expected = ReplicaCounts { canary: *canary, stable: *stable };
                assert_eq!(counts, expected, "{replicas} replicas, weight {weight}, surge {surge}");
            }
        }
        assert!((effective_weight(closest(10, 24, true)) - 27.27).abs() < 0.01);
    }

    #[test]
    fn canary_beside_fixed_replicas_table() {
        for (stable, rows) in [
            (0, &[(0, 0), (20, 1), (100, 1)][..]),
            (1, &[(1, 1), (20, 1), (50, 1), (60, 1), (99, 1), (100, 1)]),
            (3, &[(20, 1), (25, 1), (30, 1), (40, 2), (50, 3), (60, 3), (100, 3)]),
            (8, &[(0, 0), (5, 1), (20, 2), (50, 8), (100, 8)]),
        ] {
            for (weight, canary) in rows {
                let counts = beside(stable, *weight);
                assert_eq!(counts, ReplicaCounts { canary: *canary, stable }, "{stable} at {weight}");
            }
        }
    }

    /// Facts of `TestCalculateReplicaCountsForCanary`, the rows without traffic routing.
    #[test]
    fn next_counts_table() {
        for (name, replicas, weight, (surge, unavailable), stable, canary, older, expected) in [
            ("extra available replicas do not count", 10, 100, (3, 0), (7, 8), (6, 3), 0, (7, 6)),
            ("surge scales the canary up", 10, 20, (2, 0), (10, 10), (0, 0), 0, (10, 2)),
            ("extra stable replicas are removed", 10, 20, (2, 0), (10, 10), (2, 2), 0, (8, 2)),
            ("surge is a limit", 10, 30, (2, 0), (10, 10), (0, 0), 0, (10, 2)),
            ("unavailability scales stable down", 10, 20, (0, 2), (10, 10), (0, 0), 0, (8, 0)),
            ("unavailability is a limit", 10, 30, (0, 2), (10, 10), (0, 0), 0, (8, 0)),
            ("surge and unavailability", 10, 50, (2, 1), (10, 10), (0, 0), 0, (9, 2)),
            ("weight 0 removes the canary", 10, 0, (1, 1), (10, 10), (1, 1), 0, (10, 0)),
            ("weight 100 removes stable", 10, 100, (1, 1), (1, 1), (10, 10), 0, (0, 10)),
            ("a weight is never 0 replicas", 1, 20, (1, 0), (1, 1), (0, 0), 0, (1, 1)),
            ("a weight is never all replicas", 1, 90, (1, 0), (1, 1), (0, 0), 0, (1, 1)),
            ("one replica below 50", 1, 49, (0, 1), (1, 1), (0, 0), 0, (1, 0)),
            ("one replica from 50", 1, 51, (0, 1), (1, 1), (0, 0), 0, (0, 0)),
            ("one replica from 50, then", 1, 51, (0, 1), (0, 0), (0, 0), 0, (0, 1)),
            ("stable scales up first", 10, 30, (1, 0), (1, 1), (0, 0), 3, (7, 1)),
            ("both scale down", 10, 30, (0, 3), (8, 5), (4, 4), 0, (7, 3)),
            ("available canary allows stable to shrink", 10, 100, (1, 0), (10, 2), (10, 8), 0, (2, 9)),
            ("older revisions first", 10, 30, (0, 1), (8, 6), (4, 2), 3, (8, 4)),
            ("uneven weight", 10, 5, (0, 1), (10, 10), (0, 0), 0, (9, 0)),
            ("uneven weight, then", 10, 5, (0, 1), (9, 9), (0, 0), 0, (9, 1)),
            ("neither surge nor unavailability", 10, 10, (0, 0), (10, 10), (0, 0), 0, (9, 0)),
            ("surge with unavailable stable", 4, 100, (1, 0), (4, 1), (0, 0), 0, (4, 1)),
            ("two unavailable", 3, 99, (0, 2), (3, 3), (0, 0), 0, (1, 0)),
            ("two unavailable, then", 3, 99, (0, 2), (1, 1), (0, 0), 0, (1, 2)),
            ("unavailable stable shrinks by one", 4, 100, (1, 0), (4, 1), (1, 1), 0, (3, 1)),
            ("abort surges stable", 4, 0, (1, 0), (0, 0), (4, 4), 0, (1, 4)),
            ("abort waits for stable", 4, 0, (1, 0), (1, 0), (4, 4), 0, (1, 4)),
            ("abort removes the canary", 4, 0, (1, 0), (1, 1), (4, 4), 0, (1, 3)),
            ("promotion ignores the weight", 4, 100, (4, 4), (4, 4), (0, 0), 0, (0, 4)),
            ("promotion honours the surge", 4, 100, (3, 0), (4, 4), (0, 0), 0, (4, 3)),
        ] {
            let of = |(desired, available)| Replicas { desired, available };
            let bounds = ScalingBounds::new(replicas, surge, unavailable);
            let counts = bounds.next(weight, of(canary), of(stable), older);
            assert_eq!((counts.stable, counts.canary), expected, "{name}");
        }
    }

    #[test]
    fn counts_stay_within_their_bounds() {
        for replicas in 0..12 {
            for weight in (0..=100).step_by(7) {
                for surge in 0..3 {
                    let counts = closest(replicas, weight, surge > 0);
                    let total = counts.canary + counts.stable;
                    assert!(
                        total >= replicas && total <= replicas + surge.min(1),
                        "{replicas} {weight} {surge}"
                    );
                }
            }
        }
    }
}
