//! Time that passed, as far as it can be believed.

use super::Millis;

/// Counts the time between commands. A clock that is set back stands still for a moment, one that is set forward moves
/// by a bounded step: neither makes anything expire that was fine a moment ago.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock {
    seen: Option<Millis>,
    pub(super) passed: Millis,
}

impl Clock {
    pub(super) fn advance(&mut self, now: Millis, longest: Millis) {
        let step = self.seen.map_or(0, |seen| now.saturating_sub(seen)).min(longest);
        self.passed = self.passed.saturating_add(step);
        self.seen = Some(now);
    }
}
