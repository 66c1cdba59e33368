//! Shared controller context: caches, work queues, API writer, scheduler connections.

use crate::{
    caches::Caches,
    cluster::{WriteFence, Writer},
    metrics::Metrics,
    schedulers::{RpcOutcome, SchedulerConnection, SchedulerConnector},
    triggers::WorkQueues,
};
use k8s_openapi::jiff::Timestamp;
use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
};

/// The wall clock; simulations have their own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

pub(crate) struct Context {
    pub(crate) caches: Caches,
    pub(crate) queues: WorkQueues,
    pub(crate) writer: Writer,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
    pub(crate) fence: WriteFence,
    pub(crate) connector: Arc<dyn SchedulerConnector>,
    /// Scheduler connections by namespace.
    pub(crate) connections: Mutex<BTreeMap<String, SchedulerConnection>>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Context {
    /// Whether this operator holds the write fence.
    pub(crate) fn may_write(&self) -> bool {
        self.fence.remaining().is_some()
    }

    /// Calls the scheduler of a namespace.
    pub(crate) async fn connection<F: Future<Output = RpcOutcome>>(
        &self,
        namespace: &str,
        call: impl FnOnce(SchedulerConnection) -> F,
    ) -> RpcOutcome {
        let connection =
            self.connections.lock().unwrap_or_else(PoisonError::into_inner).get(namespace).cloned();
        match connection {
            Some(connection) => call(connection).await,
            None => RpcOutcome::Unavailable(crate::schedulers::NO_SCHEDULER.into()),
        }
    }
}
