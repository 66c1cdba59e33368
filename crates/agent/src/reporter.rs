//! Event reports and drain requests on the current scheduler connection.

use gantry_proto::agent::{
    AgentDrainRequest, ModelEventMessage, ModelScalingTriggerMessage,
    agent_service_client::AgentServiceClient,
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tonic::{
    Request,
    metadata::{AsciiMetadataValue, MetadataMap},
    transport::Channel,
};

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const REPORT_ATTEMPTS: u32 = 3;
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// How long a drain waits for an unreachable scheduler.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Identifies a subscription in its response and in later reports.
const SUBSCRIPTION_HEADER: &str = "gantry-subscription";
/// Marks a failure report whose load must not be retried until something changed. Other schedulers ignore it.
const PERMANENT_HEADER: &str = "gantry-permanent-failure";

pub(crate) type Client = AgentServiceClient<Channel>;

#[derive(Clone)]
struct Connection {
    client: Client,
    /// Accepted by the scheduler; earlier reports could be lost.
    subscribed: bool,
    /// The scheduler's ID of the subscription, so that it can discard late reports of an earlier one.
    subscription: Option<AsciiMetadataValue>,
}

impl Connection {
    fn request<T>(&self, message: T, limit: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(limit);
        if let Some(id) = &self.subscription {
            request.metadata_mut().insert(SUBSCRIPTION_HEADER, id.clone());
        }
        request
    }
}

pub(crate) struct Reporter {
    connection: watch::Sender<Option<Connection>>,
    /// A new subscription is needed, for example because a report was lost.
    resync: Notify,
    joined: AtomicBool,
}

impl Default for Reporter {
    fn default() -> Self {
        Self { connection: watch::Sender::new(None), resync: Notify::new(), joined: AtomicBool::new(false) }
    }
}

impl Reporter {
    pub(crate) fn connected(&self, client: Client) {
        self.connection.send_replace(Some(Connection { client, subscribed: false, subscription: None }));
    }

    pub(crate) fn subscribed(&self, answer: &MetadataMap) {
        self.joined.store(true, Ordering::Relaxed);
        self.connection.send_modify(|connection| {
            if let Some(connection) = connection {
                connection.subscribed = true;
                connection.subscription = answer.get(SUBSCRIPTION_HEADER).cloned();
            }
        });
    }

    pub(crate) fn disconnected(&self) {
        self.connection.send_replace(None);
    }

    pub(crate) fn is_subscribed(&self) -> bool {
        self.connection.borrow().as_ref().is_some_and(|o| o.subscribed)
    }

    pub(crate) fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }

    /// Ends the subscription, so that a new one reports the current state.
    pub(crate) fn resync(&self) {
        self.resync.notify_one();
    }

    pub(crate) async fn resync_needed(&self) {
        self.resync.notified().await;
    }

    /// Waits for an accepted subscription. Falls back to the open connection, since some schedulers send no headers
    /// before their first order.
    async fn connection(&self) -> Option<Connection> {
        let mut changes = self.connection.subscribe();
        let subscribed = changes.wait_for(|connection| connection.as_ref().is_some_and(|o| o.subscribed));
        let _ = tokio::time::timeout(CALL_TIMEOUT, subscribed).await;
        self.connection.borrow().clone()
    }

    /// Retries; a lost report triggers a new subscription.
    pub(crate) async fn report(&self, report: &ModelEventMessage, permanent: bool) {
        for _ in 0..REPORT_ATTEMPTS {
            let Some(mut connection) = self.connection().await else { return };
            let mut request = connection.request(report.clone(), CALL_TIMEOUT);
            if permanent {
                request.metadata_mut().insert(PERMANENT_HEADER, AsciiMetadataValue::from_static("true"));
            }
            match connection.client.agent_event(request).await {
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(
                        model = %report.model_name, version = report.model_version, error = error.message(),
                        "failed to report model event"
                    );
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            }
        }
        self.resync();
    }

    pub(crate) async fn report_scaling(&self, triggers: Vec<ModelScalingTriggerMessage>) {
        let Some(mut connection) = self.connection().await else { return };
        let request = connection.request(futures::stream::iter(triggers), CALL_TIMEOUT);
        if let Err(status) = connection.client.model_scaling_trigger(request).await {
            tracing::debug!(error = status.message(), "failed to report scaling triggers");
        }
    }

    /// Asks the scheduler to move this replica's models elsewhere. Waits for an unreachable scheduler, unless there
    /// is nothing to move.
    pub(crate) async fn drain(
        &self,
        replica: AgentDrainRequest,
        limit: Duration,
        is_empty: impl Fn() -> bool,
    ) -> Result<(), String> {
        let give_up_at = Instant::now() + limit.min(RECONNECT_TIMEOUT);
        loop {
            // Nothing to drain and not subscribed: skip the call.
            if is_empty() && !self.is_subscribed() {
                return Ok(());
            }
            let reason = match self.connection().await {
                None => "the scheduler is not connected".to_owned(),
                Some(mut connection) => {
                    match connection.client.agent_drain(connection.request(replica.clone(), limit)).await {
                        Ok(answer) if answer.get_ref().success => return Ok(()),
                        Ok(_) => return Err("the scheduler could not relocate all models".into()),
                        Err(status) => status.message().to_owned(),
                    }
                }
            };
            if Instant::now() >= give_up_at {
                return Err(reason);
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn drain_waits_for_unreachable_scheduler() {
        let (reporter, started) = (Reporter::default(), Instant::now());
        let limit = Duration::from_mins(2);
        let drained = reporter.drain(AgentDrainRequest::default(), limit, || false).await;
        assert_eq!(drained, Err("the scheduler is not connected".to_owned()));
        let waited = started.elapsed();
        assert!(waited >= RECONNECT_TIMEOUT, "a rescheduled scheduler needs longer than {waited:?}");
        assert_eq!(reporter.drain(AgentDrainRequest::default(), limit, || true).await, Ok(()));
        assert_eq!(started.elapsed(), waited, "an empty replica does not wait");
        assert!(waited < limit, "a removed scheduler must not block pod termination: {waited:?}");
    }
}
