//! Inference thread pool with a bounded queue.

use crate::InferenceError;
use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

type Job = Box<dyn FnOnce() + Send>;

/// Threads end when the pool is dropped.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
    longest: usize,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Jobs run outside the lock, so a panic cannot leave the queue inconsistent.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let job = {
                let mut queue = self.lock();
                loop {
                    if let Some(job) = queue.jobs.pop_front() {
                        break job;
                    }
                    if queue.closed {
                        return;
                    }
                    queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            };
            job();
        }
    }
}

impl Pool {
    pub(crate) fn new(threads: usize, longest: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), filled: Condvar::new(), longest });
        let pool = Self { shared };
        for i in 0..threads.max(1) {
            let shared = pool.shared.clone();
            std::thread::Builder::new().name(format!("infer-{i}")).spawn(move || shared.work())?;
        }
        Ok(pool)
    }

    /// Fails when the queue is full.
    pub(crate) fn submit(&self, job: impl FnOnce() + Send + 'static) -> Result<(), InferenceError> {
        let mut queue = self.shared.lock();
        if queue.jobs.len() >= self.shared.longest {
            return Err(InferenceError::Busy { waiting: queue.jobs.len() });
        }
        queue.jobs.push_back(Box::new(job));
        drop(queue);
        self.shared.filled.notify_one();
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.filled.notify_all();
    }
}
