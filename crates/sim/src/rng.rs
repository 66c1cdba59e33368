//! Random numbers determined by the seed.

use fastrand::Rng;

/// A generator for one purpose, so that draws of one component do not shift those of another.
pub(crate) fn seeded(seed: u64, purpose: &str) -> Rng {
    let hash = crate::trace::digest(&[purpose]);
    Rng::with_seed(seed.rotate_left(32) ^ hash)
}

/// True for this percentage of draws.
pub(crate) fn chance(rng: &mut Rng, percent: u32) -> bool {
    rng.u32(..100) < percent
}
