//! Deterministic entropy.
//!
//! Hash maps and tokio's `select!` draw from the operating system through `getrandom`. This module overrides libc's
//! function, so that the seed determines their order. One process runs one seed, because earlier draws affect later ones.
#![allow(unsafe_code, reason = "a C function can neither be defined nor given a buffer without it")]

use std::sync::atomic::{AtomicU64, Ordering};

static STATE: AtomicU64 = AtomicU64::new(0);

pub(crate) fn seed(seed: u64) {
    STATE.store(seed ^ 0x5851_f42d_4c95_7f2d, Ordering::Relaxed);
}

fn next() -> u64 {
    let generator = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    let z = (generator ^ (generator >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Replaces libc's function. It never blocks, so `flags` have no effect.
///
/// # Safety
/// `buffer` must be valid for writing `length` bytes, as for libc.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    // SAFETY: the caller gives a buffer of that length.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
    for chunk in buffer.chunks_mut(8) {
        for (to, from) in chunk.iter_mut().zip(next().to_le_bytes()) {
            *to = from;
        }
    }
    isize::try_from(length).unwrap_or(isize::MAX)
}
