//! Logical clock with bounded steps; wall-clock jumps expire nothing.

use super::Millis;

/// Sums the time between commands. A wall clock set back pauses it; one set forward advances it by a bounded step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogicalClock {
    seen: Option<Millis>,
    pub(super) monotonic_now: Millis,
}

impl LogicalClock {
    pub(super) fn advance(&mut self, now: Millis, longest: Millis) {
        let step = self.seen.map_or(0, |seen| now.saturating_sub(seen)).min(longest);
        self.monotonic_now = self.monotonic_now.saturating_add(step);
        self.seen = Some(now);
    }
}
