//! Thread-local pool of `f32` buffers. A fresh large buffer costs a page fault for every 4 KiB, which for the layers of a
//! small network is as much as the arithmetic.

use std::cell::RefCell;

/// Smaller buffers are cheap to allocate.
const MIN_POOLED: usize = 4096;
/// Elements per thread.
const MAX_POOLED: usize = 4 << 20;

thread_local! {
    static POOL: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer with room for this many elements.
pub(crate) fn take(room: usize) -> Vec<f32> {
    if room < MIN_POOLED {
        return Vec::with_capacity(room);
    }
    let kept = POOL.with_borrow_mut(|kept| {
        // Best fit, at most four times the size.
        let fitting = kept.iter().enumerate().filter(|(_, b)| (room..=room * 4).contains(&b.capacity()));
        let best = fitting.min_by_key(|(_, b)| b.capacity()).map(|(i, _)| i);
        best.map(|i| kept.swap_remove(i))
    });
    kept.unwrap_or_else(|| Vec::with_capacity(room))
}

/// A buffer of zeros.
pub(crate) fn zeros(length: usize) -> Vec<f32> {
    if length < MIN_POOLED {
        return vec![0.0; length];
    }
    let mut buffer = take(length);
    buffer.resize(length, 0.0);
    buffer
}

/// Returns a buffer to the pool.
pub(crate) fn put(mut buffer: Vec<f32>) {
    let size = buffer.capacity();
    if size < MIN_POOLED {
        return;
    }
    buffer.clear();
    POOL.with_borrow_mut(|kept| {
        let held: usize = kept.iter().map(Vec::capacity).sum();
        if held + size <= MAX_POOLED {
            kept.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_reused_empty_for_similar_size() {
        let mut buffer = zeros(10_000);
        buffer.fill(7.0);
        let at = buffer.as_ptr();
        put(buffer);
        let (large, small) = (take(1_000_000), take(MIN_POOLED / 2));
        assert_ne!(large.as_ptr(), at);
        assert_ne!(small.as_ptr(), at);
        let again = zeros(9_000);
        assert_eq!(again.as_ptr(), at);
        assert!(again.iter().all(|&v| v == 0.0) && again.len() == 9_000);
    }

    #[test]
    fn pool_size_is_bounded() {
        for _ in 0..10 {
            put(Vec::with_capacity(MAX_POOLED / 3));
        }
        assert_eq!(POOL.with_borrow(Vec::len), 3);
    }
}
