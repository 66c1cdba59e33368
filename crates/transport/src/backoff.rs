//! Exponential backoff.

use std::time::Duration;

/// Delays that double from `min` to `max`.
#[derive(Clone, Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, next: min }
    }

    pub const fn reset(&mut self) {
        self.next = self.min;
    }

    /// Whether no delay has been taken since the last reset.
    pub fn is_reset(&self) -> bool {
        self.next == self.min
    }

    pub fn next_delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(self.max);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(150));
        let delays = [(); 4].map(|()| backoff.next_delay().as_millis());
        assert_eq!(delays, [50, 100, 150, 150]);
        assert!(!backoff.is_reset());
        backoff.reset();
        assert!(backoff.is_reset());
    }
}
