//! De-duplicating work queue with two priorities, and with delayed and rate-limited requeue.

use crate::cluster::Key;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

const BACKOFF_MIN: Duration = Duration::from_millis(250);
const BACKOFF_MAX: Duration = Duration::from_mins(5);
/// One key in this many is taken from the background while others are urgent, so that neither waits without limit.
const BACKGROUND_SHARE: u64 = 8;

/// Which keys a worker takes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// Keys of a list, a resync or a connected scheduler: many at once, most of them unchanged.
    Background,
    /// A single change.
    Urgent,
}

/// Each key is queued once, and processed by one worker at a time.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of arrival.
    urgent: BTreeMap<u64, Key>,
    background: BTreeMap<u64, Key>,
    queued: HashMap<Key, (Priority, u64)>,
    /// Number of the next arrival.
    arrivals: u64,
    taken: u64,
    delayed: BTreeSet<(Instant, Key)>,
    due: HashMap<Key, Instant>,
    processing: HashSet<Key>,
    /// Added while it was processed: queued again afterwards.
    dirty: HashMap<Key, Priority>,
    failures: BTreeMap<Key, u32>,
    rng: fastrand::Rng,
}

impl WorkQueue {
    /// The seed spreads retries of many objects over time.
    pub(crate) fn new(seed: u64) -> Self {
        let state = State { rng: fastrand::Rng::with_seed(seed), ..State::default() };
        Self { state: Mutex::new(state), wake: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, key: Key, priority: Priority) {
        self.lock().add(key, priority);
        self.wake.notify_one();
    }

    /// Adds the key after a delay; an earlier request wins.
    pub(crate) fn add_after(&self, key: Key, wait: Duration) {
        let mut state = self.lock();
        let at = Instant::now() + wait;
        if let Some(known) = state.due.get(&key).copied() {
            if known <= at {
                return;
            }
            state.delayed.remove(&(known, key.clone()));
        }
        state.due.insert(key.clone(), at);
        state.delayed.insert((at, key));
        drop(state);
        self.wake.notify_one();
    }

    /// The next key; the worker calls [`done`](Self::done) afterwards.
    pub(crate) async fn next(&self) -> Key {
        loop {
            let soonest = {
                let mut state = self.lock();
                state.promote_due();
                if let Some(key) = state.take() {
                    state.processing.insert(key.clone());
                    let more = !state.queued.is_empty();
                    drop(state);
                    if more {
                        self.wake.notify_one();
                    }
                    return key;
                }
                state.delayed.first().map(|(at, _)| *at)
            };
            match soonest {
                Some(at) => tokio::select! {
                    () = self.wake.notified() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                None => self.wake.notified().await,
            }
        }
    }

    /// Ends the processing of a key.
    pub(crate) fn done(&self, key: &Key) {
        let mut state = self.lock();
        state.processing.remove(key);
        if let Some(priority) = state.dirty.remove(key) {
            state.add(key.clone(), priority);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Ends the backoff of every failed key.
    pub(crate) fn retry_now(&self) {
        let mut state = self.lock();
        for key in std::mem::take(&mut state.failures).into_keys() {
            if let Some(at) = state.due.remove(&key) {
                state.delayed.remove(&(at, key.clone()));
                state.add(key, Priority::Background);
            }
        }
        drop(state);
        self.wake.notify_one();
    }

    pub(crate) fn reset_backoff(&self, key: &Key) {
        self.lock().failures.remove(key);
    }

    /// Adds the key after a delay that doubles with each failure, with jitter, and is at least `min`. Returns the
    /// failures in a row and the delay.
    pub(crate) fn add_with_backoff(&self, key: Key, min: Duration) -> (u32, Duration) {
        let (failures, wait) = {
            let mut state = self.lock();
            let count = state.failures.entry(key.clone()).or_insert(0);
            *count = count.saturating_add(1);
            let failures = *count;
            (failures, backoff(failures, state.rng.f64()).max(min))
        };
        self.add_after(key, wait);
        (failures, wait)
    }

    /// Keys ready for a worker, and delayed keys.
    pub(crate) fn depth(&self) -> (usize, usize) {
        let state = self.lock();
        (state.queued.len(), state.delayed.len())
    }
}

impl State {
    fn add(&mut self, key: Key, priority: Priority) {
        if self.processing.contains(&key) {
            let known = self.dirty.entry(key).or_insert(priority);
            *known = priority.max(*known);
            return;
        }
        match self.queued.get(&key) {
            Some((known, _)) if *known >= priority => return,
            Some((_, arrival)) => drop(self.background.remove(arrival)),
            None => {}
        }
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.queued.insert(key.clone(), (priority, arrival));
        let keys = if priority == Priority::Urgent { &mut self.urgent } else { &mut self.background };
        keys.insert(arrival, key);
    }

    fn take(&mut self) -> Option<Key> {
        self.taken = self.taken.wrapping_add(1);
        let is_background_first = self.taken.is_multiple_of(BACKGROUND_SHARE);
        let (first, second) = if is_background_first {
            (&mut self.background, &mut self.urgent)
        } else {
            (&mut self.urgent, &mut self.background)
        };
        let (_, key) = first.pop_first().or_else(|| second.pop_first())?;
        self.queued.remove(&key);
        Some(key)
    }

    fn promote_due(&mut self) {
        let now = Instant::now();
        while self.delayed.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.delayed.pop_first() else { return };
            self.due.remove(&key);
            self.add(key, Priority::Urgent);
        }
    }
}

/// Between half of the delay and the whole of it.
fn backoff(failures: u32, jitter: f64) -> Duration {
    let doubled = BACKOFF_MIN.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(BACKOFF_MAX);
    let half = doubled / 2;
    half + half.mul_f64(jitter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(name: &str) -> Key {
        Key::new("ns", name)
    }

    #[tokio::test(start_paused = true)]
    async fn key_added_twice_is_queued_once() {
        let queue = WorkQueue::new(1);
        queue.add(key("a"), Priority::Urgent);
        queue.add(key("a"), Priority::Urgent);
        queue.add(key("b"), Priority::Urgent);
        assert_eq!(queue.next().await, key("a"));
        assert_eq!(queue.next().await, key("b"));
        assert_eq!(queue.depth(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn key_added_while_processing_is_requeued() {
        let queue = WorkQueue::new(1);
        queue.add(key("a"), Priority::Urgent);
        let processing_key = queue.next().await;
        queue.add(key("a"), Priority::Urgent);
        assert_eq!(queue.depth(), (0, 0), "one worker at a time");
        queue.done(&processing_key);
        assert_eq!(queue.next().await, key("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn earliest_delay_wins() {
        let queue = WorkQueue::new(1);
        let begin = Instant::now();
        queue.add_after(key("a"), Duration::from_secs(10));
        queue.add_after(key("a"), Duration::from_secs(3));
        queue.add_after(key("a"), Duration::from_secs(7));
        assert_eq!(queue.next().await, key("a"));
        assert_eq!(begin.elapsed().as_secs(), 3);
        assert_eq!(queue.depth(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn backoff_is_not_shorter_than_retry_after() {
        let queue = WorkQueue::new(1);
        let begin = Instant::now();
        assert_eq!(queue.add_with_backoff(key("a"), Duration::from_secs(7)).1, Duration::from_secs(7));
        assert_eq!(queue.next().await, key("a"));
        assert_eq!(begin.elapsed().as_secs(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn failing_key_does_not_block_others() {
        let queue = WorkQueue::new(1);
        queue.add(key("bad"), Priority::Urgent);
        for round in 1..=8 {
            let bad = queue.next().await;
            let (failures, wait) = queue.add_with_backoff(bad.clone(), Duration::ZERO);
            queue.done(&bad);
            assert_eq!(failures, round);
            assert!(wait <= BACKOFF_MAX);
            queue.add(key("good"), Priority::Urgent);
            let begin = Instant::now();
            let good = queue.next().await;
            assert_eq!((good.name.as_str(), begin.elapsed()), ("good", Duration::ZERO));
            queue.done(&good);
        }
        queue.reset_backoff(&key("bad"));
        let bad = queue.next().await;
        assert_eq!(queue.add_with_backoff(bad, Duration::ZERO).0, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn urgent_key_is_taken_before_background_keys() {
        let queue = WorkQueue::new(1);
        for number in 0..10_000 {
            queue.add(key(&format!("listed-{number}")), Priority::Background);
        }
        let listed = queue.next().await;
        queue.done(&listed);
        queue.add(key("edited"), Priority::Urgent);
        queue.add(key("listed-9000"), Priority::Urgent);
        let mut taken = Vec::new();
        for _ in 0..3 {
            let next = queue.next().await;
            queue.done(&next);
            taken.push(next.name);
        }
        assert_eq!(taken, ["edited", "listed-9000", "listed-1"]);
        assert_eq!(queue.depth(), (9_997, 0), "a key has one place");
    }

    #[tokio::test(start_paused = true)]
    async fn background_key_is_taken_while_others_are_urgent() {
        let queue = WorkQueue::new(1);
        queue.add(key("listed"), Priority::Background);
        let mut rounds = 0;
        loop {
            rounds += 1;
            queue.add(key("busy"), Priority::Urgent);
            let next = queue.next().await;
            queue.done(&next);
            if next.name == "listed" {
                break;
            }
            assert!(rounds < 100);
        }
        assert!(rounds <= BACKGROUND_SHARE, "{rounds}");
    }

    #[tokio::test(start_paused = true)]
    async fn priority_is_kept_while_processing() {
        let queue = WorkQueue::new(1);
        queue.add(key("a"), Priority::Urgent);
        let processing = queue.next().await;
        queue.add(key("a"), Priority::Urgent);
        queue.add(key("a"), Priority::Background);
        queue.add(key("b"), Priority::Background);
        queue.done(&processing);
        assert_eq!(queue.next().await, key("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn retry_now_ends_the_backoff_of_failed_keys_only() {
        let queue = WorkQueue::new(1);
        for _ in 0..12 {
            queue.add_with_backoff(key("failed"), Duration::ZERO);
            let failed = queue.next().await;
            queue.done(&failed);
        }
        queue.add_with_backoff(key("failed"), Duration::ZERO);
        queue.add_after(key("waiting"), Duration::from_secs(30));
        let begin = Instant::now();
        queue.retry_now();
        assert_eq!(queue.next().await, key("failed"));
        assert_eq!(begin.elapsed(), Duration::ZERO);
        assert_eq!(queue.next().await, key("waiting"));
        assert_eq!(begin.elapsed().as_secs(), 30);
        assert_eq!(queue.add_with_backoff(key("failed"), Duration::ZERO).0, 1, "the count starts again");
    }

    proptest! {
        #[test]
        fn backoff_grows_within_bounds(failures in 1_u32..1000, jitter in 0.0..1.0) {
            let wait = backoff(failures, jitter);
            prop_assert!(wait >= BACKOFF_MIN / 2 && wait <= BACKOFF_MAX);
            prop_assert!(backoff(failures, 1.0) >= backoff(failures, 0.0));
        }
    }
}
