//! The offset to commit for a partition, when records end in another order than they were read.

use std::collections::BTreeSet;

/// Offsets of one partition, from its assignment to its revocation.
#[derive(Debug, Default)]
pub struct Offsets {
    in_flight: BTreeSet<i64>,
    /// After the last record that was read.
    end: Option<i64>,
    committed: Option<i64>,
}

impl Offsets {
    /// A record was read. Offsets grow, with gaps where a topic is compacted; a smaller one is read again after the topic
    /// was created again or its end was lost, and counts from there. Returns false if the record is in flight.
    pub fn start(&mut self, offset: i64) -> bool {
        if !self.in_flight.insert(offset) {
            return false;
        }
        if self.end.is_some_and(|end| offset < end) {
            self.committed = None;
        }
        self.end = Some(offset.saturating_add(1));
        true
    }

    /// A record is done: its results are in the log.
    pub fn finish(&mut self, offset: i64) {
        self.in_flight.remove(&offset);
    }

    /// The first offset that is not done: the position from which another worker has to continue.
    pub fn position(&self) -> Option<i64> {
        self.in_flight.first().copied().or(self.end)
    }

    /// The position, if it is not committed yet.
    pub fn to_commit(&self) -> Option<i64> {
        self.position().filter(|position| self.committed.is_none_or(|committed| *position > committed))
    }

    pub fn committed(&mut self, position: i64) {
        self.committed = self.committed.max(Some(position));
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn position_is_the_first_offset_that_is_not_done() {
        let mut offsets = Offsets::default();
        assert_eq!((offsets.position(), offsets.to_commit()), (None, None));
        assert!([5, 6, 9].into_iter().all(|offset| offsets.start(offset)));
        assert!(!offsets.start(6));
        assert_eq!(offsets.position(), Some(5));
        offsets.finish(6);
        assert_eq!(offsets.position(), Some(5));
        offsets.finish(5);
        assert_eq!(offsets.to_commit(), Some(9));
        offsets.committed(9);
        assert_eq!(offsets.to_commit(), None);
        offsets.finish(9);
        assert_eq!(offsets.to_commit(), Some(10));
        assert_eq!(offsets.in_flight(), 0);
    }

    #[test]
    fn smaller_offset_starts_again() {
        let mut offsets = Offsets::default();
        assert!(offsets.start(100));
        offsets.finish(100);
        offsets.committed(101);
        assert!(offsets.start(0));
        assert_eq!(offsets.to_commit(), Some(0));
        offsets.finish(0);
        assert_eq!(offsets.to_commit(), Some(1));
    }

    proptest! {
        /// Records end in any order; commits happen at any time.
        #[test]
        fn no_record_is_committed_before_it_is_done(
            gaps in prop::collection::vec(1i64..4, 1..40),
            actions in prop::collection::vec((0u8..3, any::<prop::sample::Index>()), 0..200),
        ) {
            let mut next = 0;
            let all: Vec<i64> = gaps.iter().map(|gap| { next += gap; next }).collect();
            let mut unread = all.iter().copied();
            let mut offsets = Offsets::default();
            let (mut running, mut done, mut committed) = (Vec::new(), Vec::new(), 0);
            for (action, index) in actions {
                match action {
                    0 => if let Some(offset) = unread.next() {
                        prop_assert!(offsets.start(offset));
                        running.push(offset);
                    },
                    1 if !running.is_empty() => {
                        let offset = running.swap_remove(index.index(running.len()));
                        offsets.finish(offset);
                        done.push(offset);
                    }
                    _ => if let Some(position) = offsets.to_commit() {
                        prop_assert!(position > committed, "commits only move forward");
                        offsets.committed(position);
                        committed = position;
                    },
                }
                // At least once: nothing that runs is behind the committed position.
                prop_assert!(running.iter().all(|offset| *offset >= committed));
                // And nothing is repeated without need.
                let position = offsets.position().unwrap_or(0);
                let first_running = running.iter().min().copied().unwrap_or(i64::MAX);
                prop_assert!(done.iter().all(|offset| *offset < position || *offset > first_running));
                prop_assert_eq!(offsets.in_flight(), running.len());
            }
        }
    }
}
