//! A limit per second for events that a caller can provoke.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

#[derive(Debug)]
pub(crate) struct Limited {
    per_second: u32,
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    start: Instant,
    count: u32,
    suppressed: u64,
}

impl Limited {
    pub(crate) fn new(per_second: u32) -> Self {
        let window = Window { start: Instant::now(), count: 0, suppressed: 0 };
        Self { per_second, window: Mutex::new(window) }
    }

    /// The number of events suppressed since the last one, if this one is within the limit.
    pub(crate) fn admit(&self) -> Option<u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if window.start.elapsed() >= Duration::from_secs(1) {
            (window.start, window.count) = (Instant::now(), 0);
        }
        if window.count >= self.per_second {
            window.suppressed += 1;
            return None;
        }
        window.count += 1;
        Some(std::mem::take(&mut window.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_beyond_the_limit_are_counted_in_the_next_one() {
        let limited = Limited::new(2);
        let old = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        assert_eq!((limited.admit(), limited.admit()), (Some(0), Some(0)));
        assert_eq!((limited.admit(), limited.admit()), (None, None));
        limited.window.lock().unwrap().start = old;
        assert_eq!((limited.admit(), limited.admit()), (Some(2), Some(0)));
    }
}
