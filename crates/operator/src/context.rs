//! Shared controller context: caches, work queues, API writer, scheduler connections.

use crate::{
    caches::Caches,
    cluster::{WriteFence, Writer},
    connections,
    health::{Health, SyncChange},
    metrics::Metrics,
    plan::SchedulerAction,
    schedulers::{RpcOutcome, SchedulerConnection, SchedulerConnector},
    triggers::WorkQueues,
};
use gantry_proto::gantry::{ServiceTraffic, ServiceTrafficRequest};
use k8s_openapi::jiff::Timestamp;
use std::{
    collections::BTreeMap,
    fmt,
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
    pub(crate) health: Health,
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

    /// Whether the caches have every object of a namespace. What they lack elsewhere is unknown, not absent.
    pub(crate) fn is_synced(&self, namespace: &str) -> bool {
        self.health.is_synced(self.caches.settings.scope.of(namespace))
    }

    /// Reacts to the state of a watch: objects of a synced scope can be reconciled, and retries need not wait for the
    /// rest of their backoff after an outage.
    pub(crate) fn watch_changed(self: &Arc<Self>, scope: &str, change: SyncChange) {
        if change.is_recovered {
            self.queues.retry_now();
        }
        if change.is_scope_synced && !scope.is_empty() {
            connections::update(self, scope);
            self.queues.add_all_in(&self.caches, scope);
        }
    }

    /// Statistics of the revisions of an Algorithm from the scheduler of a namespace; `None` without a route to it.
    pub(crate) async fn service_traffic(
        &self,
        namespace: &str,
        request: ServiceTrafficRequest,
    ) -> Result<Option<ServiceTraffic>, String> {
        let connection =
            self.connections.lock().unwrap_or_else(PoisonError::into_inner).get(namespace).cloned();
        match connection {
            Some(connection) => connection.service_traffic(request).await,
            None => Err(crate::schedulers::NO_SCHEDULER.into()),
        }
    }

    /// Sends a request to the scheduler of a namespace.
    pub(crate) async fn send(&self, namespace: &str, action: SchedulerAction) -> RpcOutcome {
        let connection =
            self.connections.lock().unwrap_or_else(PoisonError::into_inner).get(namespace).cloned();
        match connection {
            Some(connection) => connection.send(action).await,
            None => RpcOutcome::Unavailable(crate::schedulers::NO_SCHEDULER.into()),
        }
    }
}
