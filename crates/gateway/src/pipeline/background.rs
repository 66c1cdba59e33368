//! Work of pipelines beyond a response: bounded, and counted when it is refused.

use crate::serve::Worker;
use std::sync::{Arc, atomic::Ordering};

/// Runs that continue or start in the background.
const MAX_BACKGROUND: usize = 1024;

/// A run in the background until dropped.
pub(crate) struct Background {
    worker: Arc<Worker>,
}

impl Background {
    pub(super) fn new(worker: &Arc<Worker>) -> Option<Self> {
        let before = worker.shared.background.fetch_add(1, Ordering::Relaxed);
        let counted = Self { worker: Arc::clone(worker) };
        if before >= MAX_BACKGROUND {
            worker.shared.metrics.background_dropped.inc();
            return None;
        }
        Some(counted)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.worker.shared.background.fetch_sub(1, Ordering::Relaxed);
    }
}
