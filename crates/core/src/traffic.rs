//! Traffic split over weighted backends, with an optional mirror.

/// A split of requests. Rollouts and experiments use the same value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic<B> {
    /// Backends with their weights; a backend of weight 0 gets no request.
    pub backends: Vec<(B, u32)>,
    /// A backend that also receives a copy of this percentage of the requests.
    pub mirror: Option<(B, u32)>,
}

impl<B> Traffic<B> {
    /// The backend for a uniformly random number; `None` if all weights are 0.
    pub fn pick(&self, random: u64) -> Option<&B> {
        let mut point = scale(random, self.total())?;
        for (backend, weight) in &self.backends {
            match point.checked_sub(u64::from(*weight)) {
                Some(rest) => point = rest,
                None => return Some(backend),
            }
        }
        None
    }

    /// The mirror, if a copy of this request goes to it. `random` is independent of the number for [`Self::pick`].
    pub fn mirror(&self, random: u64) -> Option<&B> {
        let (backend, percent) = self.mirror.as_ref()?;
        is_within(random, *percent).then_some(backend)
    }

    /// Each backend with its share of the requests in percent; all 0 if all weights are 0.
    pub fn shares(&self) -> impl Iterator<Item = (&B, f64)> {
        let total = self.total().max(1) as f64;
        self.backends.iter().map(move |(backend, weight)| (backend, f64::from(*weight) * 100.0 / total))
    }

    fn total(&self) -> u64 {
        self.backends.iter().map(|(_, weight)| u64::from(*weight)).sum()
    }
}

/// Whether a uniformly random number belongs to a share of the requests.
pub fn is_within(random: u64, percent: u32) -> bool {
    scale(random, 100).is_some_and(|point| point < u64::from(percent))
}

/// Maps a uniform number to `0..bound` by multiplication; the bias is below `bound / 2^64`.
fn scale(random: u64, bound: u64) -> Option<u64> {
    (bound > 0).then(|| ((u128::from(random) * u128::from(bound)) >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn traffic(weights: &[u32]) -> Traffic<usize> {
        Traffic { backends: weights.iter().copied().enumerate().collect(), mirror: None }
    }

    /// `SplitMix64`: the tests are repeatable with a seed.
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn within_three_sigma(count: u32, requests: u32, probability: f64) -> bool {
        let mean = f64::from(requests) * probability;
        let sigma = (mean * (1.0 - probability)).sqrt();
        (f64::from(count) - mean).abs() <= 3.0 * sigma
    }

    #[test]
    fn counts_are_within_three_sigma_of_the_weights() {
        for weights in [[50, 50], [90, 10], [1, 99], [1, 2], [u32::MAX, u32::MAX]] {
            let traffic = traffic(&weights);
            let mut seed = 7;
            let first = (0..10_000).filter(|_| traffic.pick(random(&mut seed)) == Some(&0)).count() as u32;
            let share = f64::from(weights[0]) / (f64::from(weights[0]) + f64::from(weights[1]));
            assert!(within_three_sigma(first, 10_000, share), "{first} of 10,000 for {weights:?}");
        }
    }

    #[test]
    fn evenly_spaced_numbers_give_exact_proportions() {
        for weights in [vec![50, 50], vec![90, 10], vec![1, 99], vec![0, 3, 0, 5, 2], vec![1]] {
            let traffic = traffic(&weights);
            let total: u32 = weights.iter().sum();
            let step = u64::MAX / u64::from(total);
            let mut counts = vec![0; weights.len()];
            for i in 0..u64::from(total) {
                counts[*traffic.pick(i * step + step / 2).unwrap()] += 1;
            }
            assert_eq!(counts, weights);
        }
    }

    #[test]
    fn weights_of_zero_pick_nothing() {
        assert_eq!(traffic(&[]).pick(5), None);
        assert_eq!(traffic(&[0, 0]).pick(u64::MAX), None);
        assert_eq!(traffic(&[0, 0]).shares().map(|(_, share)| share).collect::<Vec<_>>(), [0.0, 0.0]);
    }

    #[test]
    fn mirror_receives_its_percentage() {
        for (percent, lowest, highest) in
            [(0, 0, 0), (10, 910, 1_090), (100, 10_000, 10_000), (250, 10_000, 10_000)]
        {
            let traffic = Traffic { mirror: Some(("mirror", percent)), ..Traffic::default() };
            let mut seed = 11;
            let copies = (0..10_000).filter(|_| traffic.mirror(random(&mut seed)).is_some()).count();
            assert!((lowest..=highest).contains(&copies), "{copies} copies for {percent} %");
        }
        assert_eq!(traffic(&[1]).mirror(0), None);
    }

    #[test]
    fn shares_are_percentages() {
        let traffic = traffic(&[1, 2, 1, 0]);
        assert_eq!(traffic.shares().map(|(_, share)| share).collect::<Vec<_>>(), [25.0, 50.0, 25.0, 0.0]);
    }

    proptest! {
        #[test]
        fn pick_never_returns_a_weight_of_zero(
            weights in prop::collection::vec(prop_oneof![Just(0), Just(1), Just(u32::MAX), any::<u32>()], 0..10),
            numbers in prop::collection::vec(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()], 10),
        ) {
            let traffic = traffic(&weights);
            for number in numbers {
                match traffic.pick(number) {
                    Some(&backend) => prop_assert!(weights[backend] > 0),
                    None => prop_assert!(weights.iter().all(|&weight| weight == 0)),
                }
            }
        }

        #[test]
        fn larger_numbers_do_not_pick_earlier_backends(
            weights in prop::collection::vec(0..5_u32, 1..6),
            mut numbers in prop::collection::vec(any::<u64>(), 20),
        ) {
            numbers.sort_unstable();
            let traffic = traffic(&weights);
            let picked: Vec<_> = numbers.iter().filter_map(|&number| traffic.pick(number)).collect();
            prop_assert!(picked.is_sorted());
        }
    }
}
