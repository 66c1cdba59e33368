//! De-duplicating work queue with delayed and rate-limited requeue.

use crate::cluster::Key;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

const BACKOFF_MIN: Duration = Duration::from_millis(250);
const BACKOFF_MAX: Duration = Duration::from_mins(5);

/// Each key is queued once, and processed by one worker at a time.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Key>,
    queued: HashSet<Key>,
    delayed: BTreeSet<(Instant, Key)>,
    due: HashMap<Key, Instant>,
    processing: HashSet<Key>,
    /// Added while it was processed: queued again afterwards.
    dirty: HashSet<Key>,
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

    pub(crate) fn add(&self, key: Key) {
        let mut state = self.lock();
        if state.processing.contains(&key) {
            state.dirty.insert(key);
        } else if state.queued.insert(key.clone()) {
            state.ready.push_back(key);
        }
        drop(state);
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
                if let Some(key) = state.ready.pop_front() {
                    state.queued.remove(&key);
                    state.processing.insert(key.clone());
                    let more = !state.ready.is_empty();
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
        if state.dirty.remove(key) && state.queued.insert(key.clone()) {
            state.ready.push_back(key.clone());
            drop(state);
            self.wake.notify_one();
        }
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
        (state.ready.len(), state.delayed.len())
    }
}

impl State {
    fn promote_due(&mut self) {
        let now = Instant::now();
        while self.delayed.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.delayed.pop_first() else { return };
            self.due.remove(&key);
            if self.processing.contains(&key) {
                self.dirty.insert(key);
            } else if self.queued.insert(key.clone()) {
                self.ready.push_back(key);
            }
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
        queue.add(key("a"));
        queue.add(key("a"));
        queue.add(key("b"));
        assert_eq!(queue.next().await, key("a"));
        assert_eq!(queue.next().await, key("b"));
        assert_eq!(queue.depth(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn key_added_while_processing_is_requeued() {
        let queue = WorkQueue::new(1);
        queue.add(key("a"));
        let processing_key = queue.next().await;
        queue.add(key("a"));
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
        queue.add(key("bad"));
        for round in 1..=8 {
            let bad = queue.next().await;
            let (failures, wait) = queue.add_with_backoff(bad.clone(), Duration::ZERO);
            queue.done(&bad);
            assert_eq!(failures, round);
            assert!(wait <= BACKOFF_MAX);
            queue.add(key("good"));
            let begin = Instant::now();
            let good = queue.next().await;
            assert_eq!((good.name.as_str(), begin.elapsed()), ("good", Duration::ZERO));
            queue.done(&good);
        }
        queue.reset_backoff(&key("bad"));
        let bad = queue.next().await;
        assert_eq!(queue.add_with_backoff(bad, Duration::ZERO).0, 1);
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
