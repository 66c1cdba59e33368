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
const SUBSCRIPTION: &str = "gantry-subscription";

pub(crate) type Client = AgentServiceClient<Channel>;

#[derive(Clone)]
struct Open {
    client: Client,
    /// Accepted by the scheduler; earlier reports could be lost.
    subscribed: bool,
    /// The scheduler's ID of the subscription, so that it can discard late reports of an earlier one.
    name: Option<AsciiMetadataValue>,
}

impl Open {
    fn request<T>(&self, message: T, limit: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(limit);
        if let Some(name) = &self.name {
            request.metadata_mut().insert(SUBSCRIPTION, name.clone());
        }
        request
    }
}

pub(crate) struct Reporter {
    open: watch::Sender<Option<Open>>,
    /// A report was lost: a new subscription is needed to resync.
    broken: Notify,
    joined: AtomicBool,
}

impl Default for Reporter {
    fn default() -> Self {
        Self { open: watch::Sender::new(None), broken: Notify::new(), joined: AtomicBool::new(false) }
    }
}

impl Reporter {
    pub(crate) fn connected(&self, client: Client) {
        self.open.send_replace(Some(Open { client, subscribed: false, name: None }));
    }

    pub(crate) fn subscribed(&self, answer: &MetadataMap) {
        self.joined.store(true, Ordering::Relaxed);
        self.open.send_modify(|open| {
            if let Some(open) = open {
                open.subscribed = true;
                open.name = answer.get(SUBSCRIPTION).cloned();
            }
        });
    }

    pub(crate) fn ended(&self) {
        self.open.send_replace(None);
    }

    pub(crate) fn is_subscribed(&self) -> bool {
        self.open.borrow().as_ref().is_some_and(|o| o.subscribed)
    }

    pub(crate) fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }

    pub(crate) async fn broken(&self) {
        self.broken.notified().await;
    }

    /// Waits for an accepted subscription. Falls back to the open connection, since some schedulers send no headers
    /// before their first order.
    async fn open(&self) -> Option<Open> {
        let mut changes = self.open.subscribe();
        let subscribed = changes.wait_for(|open| open.as_ref().is_some_and(|o| o.subscribed));
        let _ = tokio::time::timeout(CALL_TIMEOUT, subscribed).await;
        self.open.borrow().clone()
    }

    /// Retries; a lost report triggers a new subscription.
    pub(crate) async fn report(&self, report: &ModelEventMessage) {
        for _ in 0..REPORT_ATTEMPTS {
            let Some(mut open) = self.open().await else { return };
            let request = open.request(report.clone(), CALL_TIMEOUT);
            match open.client.agent_event(request).await {
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
        self.broken.notify_one();
    }

    pub(crate) async fn report_scaling(&self, triggers: Vec<ModelScalingTriggerMessage>) {
        let Some(mut open) = self.open().await else { return };
        let request = open.request(futures::stream::iter(triggers), CALL_TIMEOUT);
        if let Err(status) = open.client.model_scaling_trigger(request).await {
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
        let until = Instant::now() + limit.min(RECONNECT_TIMEOUT);
        loop {
            // Nothing to drain and not subscribed: skip the call.
            if is_empty() && !self.is_subscribed() {
                return Ok(());
            }
            let reason = match self.open().await {
                None => "the scheduler is not connected".to_owned(),
                Some(mut open) => match open.client.agent_drain(open.request(replica.clone(), limit)).await {
                    Ok(answer) if answer.get_ref().success => return Ok(()),
                    Ok(_) => return Err("the scheduler could not relocate all models".into()),
                    Err(status) => status.message().to_owned(),
                },
            };
            if Instant::now() >= until {
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
