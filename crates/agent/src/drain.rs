//! Drain: moves the replica's models away and waits for in-flight requests.
//!
//! ```text
//! preStop of every container ──/terminate──▶ drain ──▶ SIGTERM ends the process
//!                                              └─ no SIGTERM, or the server restarted ──▶ ready again
//! ```
//!
//! One call alone is the restart of one container, which needs no drain.

use crate::{agent::Agent, model_cache::ModelCache};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{OnceCell, watch},
    time::Instant,
};

/// The kubelet runs the preStop hooks of a terminating pod at the same time.
const CALL_WINDOW: Duration = Duration::from_secs(2);
/// How long a drained agent waits for its termination before it serves again.
const TERMINATION_TIMEOUT: Duration = Duration::from_mins(1);

/// One drain, shared by everything that waits for it.
type Shared = Arc<OnceCell<()>>;

pub(crate) struct Drain {
    agent: Arc<Agent>,
    cache: ModelCache,
    /// Limit for moving models away, and again for in-flight requests.
    limit: Duration,
    /// Calls of `/terminate` within the window that start a drain.
    calls_needed: usize,
    calls: Mutex<VecDeque<Instant>>,
    current: watch::Sender<Option<Shared>>,
}

impl Drain {
    pub(crate) fn new(
        agent: Arc<Agent>,
        cache: ModelCache,
        limit: Duration,
        calls_needed: usize,
    ) -> Arc<Self> {
        let current = watch::Sender::new(None);
        Arc::new(Self { agent, cache, limit, calls_needed, calls: Mutex::default(), current })
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.current.borrow().is_some()
    }

    /// Joins the drain in progress, or starts one.
    pub(crate) async fn run(&self) {
        let mut shared = Shared::default();
        self.current.send_modify(|current| shared = current.get_or_insert_default().clone());
        shared.get_or_init(|| self.drain()).await;
    }

    /// Handles a call of `/terminate`. Returns whether the agent is drained.
    pub(crate) async fn terminate(self: &Arc<Self>) -> bool {
        if self.count_call() {
            self.start();
        }
        let mut current = self.current.subscribe();
        let started = tokio::time::timeout(CALL_WINDOW, current.wait_for(Option::is_some)).await.is_ok();
        if started {
            self.run().await;
        } else {
            tracing::info!("/terminate was called by one container only: its restart needs no drain");
        }
        started
    }

    /// Whether there are enough calls within the window.
    fn count_call(&self) -> bool {
        let mut calls = self.calls();
        calls.retain(|at| at.elapsed() < CALL_WINDOW);
        calls.push_back(Instant::now());
        if calls.len() > self.calls_needed {
            calls.pop_front();
        }
        calls.len() >= self.calls_needed
    }

    fn calls(&self) -> MutexGuard<'_, VecDeque<Instant>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a drain that ends by itself when the process is not terminated.
    fn start(self: &Arc<Self>) {
        let (this, epoch) = (self.clone(), self.cache.epoch());
        let starts = self.current.send_if_modified(|current| {
            let starts = current.is_none();
            current.get_or_insert_default();
            starts
        });
        if !starts {
            return;
        }
        tokio::spawn(async move {
            this.run().await;
            tokio::select! {
                () = tokio::time::sleep(TERMINATION_TIMEOUT) => {}
                () = this.cache.restored(epoch) => {}
            }
            tracing::warn!("the drain was not followed by a termination: serving again");
            this.calls().clear();
            this.current.send_replace(None);
            this.agent.resubscribe();
        });
    }

    async fn drain(&self) {
        tracing::info!("draining: requesting relocation of all models");
        match tokio::time::timeout(self.limit, self.agent.drain(self.limit)).await {
            Ok(Ok(())) => match self.agent.models() {
                0 => tracing::info!("drain complete: this replica has no models"),
                models => tracing::warn!(models, "drain complete: some models were not moved elsewhere"),
            },
            Ok(Err(reason)) => tracing::warn!(%reason, "drain failed"),
            Err(_) => tracing::warn!("drain timed out"),
        }
        if tokio::time::timeout(self.limit, self.cache.idle()).await.is_err() {
            tracing::warn!(requests = self.cache.in_flight(), "drain timeout: aborting in-flight requests");
        }
    }

    pub(crate) fn not_ready(&self) -> Vec<&'static str> {
        let mut reasons = Vec::new();
        if !self.cache.is_alive() {
            reasons.push("the inference server is not ready");
        }
        // Only the first connection counts: a replica keeps serving without the scheduler, and an unready pod could
        // be evicted.
        if !self.agent.has_joined() {
            reasons.push("the scheduler is not connected");
        }
        if self.is_draining() {
            reasons.push("the agent is draining");
        }
        reasons
    }
}
