//! Cancellation of a running computation.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// Shared between a caller and a computation; the computation polls it and stops early.
#[derive(Clone, Debug, Default)]
pub struct CancelToken {
    cancelled: Arc<AtomicBool>,
    deadline: Option<Instant>,
    /// The callers that share the computation, if several do.
    callers: Option<Arc<[Self]>>,
}

impl CancelToken {
    /// Also counts as cancelled from `deadline` on.
    #[must_use]
    pub fn with_deadline(deadline: Option<Instant>) -> Self {
        Self { deadline, ..Self::default() }
    }

    /// The same token; also counts as cancelled once all `callers` are.
    #[must_use]
    pub fn shared_by(&self, callers: impl IntoIterator<Item = Self>) -> Self {
        Self { callers: Some(callers.into_iter().collect()), ..self.clone() }
    }

    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
            || self.deadline.is_some_and(|d| Instant::now() >= d)
            || self.callers.as_ref().is_some_and(|callers| callers.iter().all(Self::is_cancelled))
    }

    #[must_use]
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_token_is_cancelled_with_its_last_caller() {
        let callers = [CancelToken::default(), CancelToken::default()];
        let job = CancelToken::default();
        let shared = job.shared_by(callers.clone());
        callers[0].cancel();
        assert!(!shared.is_cancelled());
        callers[1].cancel();
        assert!(shared.is_cancelled() && !job.is_cancelled());
        let other = job.shared_by([CancelToken::default()]);
        job.cancel();
        assert!(other.is_cancelled());
        assert!(CancelToken::with_deadline(Some(Instant::now())).is_cancelled());
    }
}
