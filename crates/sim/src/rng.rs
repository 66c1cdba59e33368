//! Random numbers that a seed determines.

/// A generator (`SplitMix64`): small, quick, and the same everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A generator of its own for one purpose, so that what one part draws does not shift what another gets.
    pub(crate) fn of(seed: u64, purpose: &str) -> Self {
        let mut state = Self(seed ^ 0x6a09_e667_f3bc_c909);
        for byte in purpose.bytes() {
            state.0 ^= u64::from(byte);
            state.next();
        }
        Self(state.next())
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `end`, without `end`; 0 when there is none.
    pub(crate) const fn below(&mut self, end: u64) -> u64 {
        match self.next().checked_rem(end) {
            Some(number) => number,
            None => 0,
        }
    }

    /// A number from `first` to `last`, both included.
    pub(crate) const fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last.saturating_sub(first) + 1)
    }

    /// True so many times in a hundred.
    pub(crate) const fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of them.
    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let index = self.below(of.len() as u64);
        of.get(usize::try_from(index).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_it_all_and_purposes_differ() {
        let draw = |mut rng: Rng| (0..8).map(|_| rng.next()).collect::<Vec<_>>();
        assert_eq!(draw(Rng::of(7, "net")), draw(Rng::of(7, "net")));
        assert_ne!(draw(Rng::of(7, "net")), draw(Rng::of(7, "plan")));
        assert_ne!(draw(Rng::of(7, "net")), draw(Rng::of(8, "net")));
    }

    #[test]
    fn bounds_hold() {
        let mut rng = Rng::of(1, "");
        assert!((0..200).all(|_| (3..=5).contains(&rng.between(3, 5))));
        assert_eq!(rng.below(0), 0);
        assert!(rng.pick::<u8>(&[]).is_none());
    }
}
