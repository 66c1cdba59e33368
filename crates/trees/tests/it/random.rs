//! A small generator of numbers, so that one seed of a property makes a whole model.

use proptest::prelude::ProptestConfig;

/// So many cases, unless `PROPTEST_CASES` overrides it.
pub(crate) fn cases(usual: u32) -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    // Failures are reported with their seed; files beside the tests would add nothing.
    let config = if asked { ProptestConfig::default() } else { ProptestConfig::with_cases(usual) };
    ProptestConfig { failure_persistence: None, ..config }
}

/// A xorshift generator; the seed may be anything.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed ^ 0x9e37_79b9_7f4a_7c15 | 1);
        for _ in 0..8 {
            random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below the limit.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}
