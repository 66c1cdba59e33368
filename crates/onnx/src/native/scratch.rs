//! Buffers that are used again. A fresh large buffer costs a page fault for every 4 KiB, which for the layers of a
//! small network is as much as the arithmetic.

use std::cell::RefCell;

/// Smaller buffers come cheaply from the allocator.
const WORTH_KEEPING: usize = 4096;
/// Elements that a thread may keep.
const MAX_KEPT: usize = 4 << 20;

thread_local! {
    static KEPT: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer with room for this many elements.
pub(crate) fn take(room: usize) -> Vec<f32> {
    if room < WORTH_KEEPING {
        return Vec::with_capacity(room);
    }
    let kept = KEPT.with_borrow_mut(|kept| {
        // The smallest that fits, and not one many times too large.
        let fitting = kept.iter().enumerate().filter(|(_, b)| (room..=room * 4).contains(&b.capacity()));
        let best = fitting.min_by_key(|(_, b)| b.capacity()).map(|(i, _)| i);
        best.map(|i| kept.swap_remove(i))
    });
    kept.unwrap_or_else(|| Vec::with_capacity(room))
}

/// A buffer of zeros.
pub(crate) fn zeros(length: usize) -> Vec<f32> {
    if length < WORTH_KEEPING {
        return vec![0.0; length];
    }
    let mut buffer = take(length);
    buffer.resize(length, 0.0);
    buffer
}

/// Gives a buffer back.
pub(crate) fn give(mut buffer: Vec<f32>) {
    let size = buffer.capacity();
    if size < WORTH_KEEPING {
        return;
    }
    buffer.clear();
    KEPT.with_borrow_mut(|kept| {
        let held: usize = kept.iter().map(Vec::capacity).sum();
        if held + size <= MAX_KEPT {
            kept.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_empty_and_only_for_a_similar_size() {
        let mut buffer = zeros(10_000);
        buffer.fill(7.0);
        let at = buffer.as_ptr();
        give(buffer);
        let (large, small) = (take(1_000_000), take(WORTH_KEEPING / 2));
        assert_ne!(large.as_ptr(), at);
        assert_ne!(small.as_ptr(), at);
        let again = zeros(9_000);
        assert_eq!(again.as_ptr(), at);
        assert!(again.iter().all(|&v| v == 0.0) && again.len() == 9_000);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        for _ in 0..10 {
            give(Vec::with_capacity(MAX_KEPT / 3));
        }
        assert_eq!(KEPT.with_borrow(Vec::len), 3);
    }
}
