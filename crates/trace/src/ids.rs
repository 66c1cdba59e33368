//! Numbers that nobody else has. They need to differ, not to be secret.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

/// Makes numbers, from a place that the process chose at random.
#[derive(Debug)]
pub(crate) struct Ids {
    next: AtomicU64,
}

impl Ids {
    pub(crate) fn new() -> Self {
        let seed = RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now()));
        Self { next: AtomicU64::new(seed) }
    }

    /// A number that is not 0.
    pub(crate) fn next(&self) -> u64 {
        // SplitMix64: every value of the counter gives another number.
        let mut z = self.next.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).max(1)
    }

    pub(crate) fn next_trace(&self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }
}
