//! The connection to the scheduler, as far as reports need it.

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

/// How long a call may take, how often a report is tried, and the wait between two tries.
const CALL_TIME: Duration = Duration::from_secs(10);
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(50);
/// How long whoever is to be drained waits for a scheduler that is away.
const SCHEDULER_AWAY: Duration = Duration::from_secs(30);

/// The header by which a scheduler names a subscription, and an agent says of which one it speaks.
const SUBSCRIPTION: &str = "gantry-subscription";

pub(crate) type Client = AgentServiceClient<Channel>;

#[derive(Clone)]
struct Open {
    client: Client,
    /// Whether the scheduler has taken the subscription: what is reported before that could be forgotten by it.
    subscribed: bool,
    /// What the scheduler calls the subscription. Reports repeat it, so that one which was on its way for long is not
    /// taken for news.
    name: Option<AsciiMetadataValue>,
}

impl Open {
    /// A request on this connection, with a deadline.
    fn request<T>(&self, message: T, limit: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(limit);
        if let Some(name) = &self.name {
            request.metadata_mut().insert(SUBSCRIPTION, name.clone());
        }
        request
    }
}

/// The connection of the moment, if there is one.
pub(crate) struct Link {
    open: watch::Sender<Option<Open>>,
    /// A report was lost while the subscription lasted: only a new subscription can mend that.
    broken: Notify,
    joined: AtomicBool,
}

impl Default for Link {
    fn default() -> Self {
        Self { open: watch::Sender::new(None), broken: Notify::new(), joined: AtomicBool::new(false) }
    }
}

impl Link {
    pub(crate) fn connected(&self, client: Client) {
        self.open.send_replace(Some(Open { client, subscribed: false, name: None }));
    }

    /// The scheduler has answered the subscription, with these headers.
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

    /// Whether the scheduler has this agent's subscription.
    pub(crate) fn is_subscribed(&self) -> bool {
        self.open.borrow().as_ref().is_some_and(|o| o.subscribed)
    }

    /// Whether a scheduler has ever had this agent's subscription.
    pub(crate) fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }

    /// Waits until a new subscription is needed.
    pub(crate) async fn broken(&self) {
        self.broken.notified().await;
    }

    /// A connection on which the scheduler knows this agent. A scheduler that stays silent until it has an order is
    /// believed after a while.
    async fn open(&self) -> Option<Open> {
        let mut changes = self.open.subscribe();
        let subscribed = changes.wait_for(|open| open.as_ref().is_some_and(|o| o.subscribed));
        let _ = tokio::time::timeout(CALL_TIME, subscribed).await;
        self.open.borrow().clone()
    }

    /// Tells the scheduler. If that cannot be done, the next subscription tells.
    pub(crate) async fn report(&self, report: &ModelEventMessage) {
        for _ in 0..TRIES {
            let Some(mut open) = self.open().await else { return };
            let request = open.request(report.clone(), CALL_TIME);
            match open.client.agent_event(request).await {
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(
                        model = %report.model_name, version = report.model_version, error = error.message(),
                        "the scheduler could not be told"
                    );
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        self.broken.notify_one();
    }

    /// Tells the scheduler which models have too much or too little to do.
    pub(crate) async fn tell_load(&self, triggers: Vec<ModelScalingTriggerMessage>) {
        let Some(mut open) = self.open().await else { return };
        let request = open.request(futures::stream::iter(triggers), CALL_TIME);
        if let Err(status) = open.client.model_scaling_trigger(request).await {
            tracing::debug!(error = status.message(), "the scheduler does not take what models have to do");
        }
    }

    /// Asks the scheduler to move a replica's models elsewhere; returns when it has, or why it has not. A scheduler that
    /// is away may be on its way to another node, and is waited for, unless nothing is left that it could move.
    pub(crate) async fn drain(
        &self,
        replica: AgentDrainRequest,
        limit: Duration,
        is_empty: impl Fn() -> bool,
    ) -> Result<(), String> {
        let until = Instant::now() + limit.min(SCHEDULER_AWAY);
        loop {
            // Nobody need be asked about nothing, least of all one who may be gone for good.
            if is_empty() && !self.is_subscribed() {
                return Ok(());
            }
            let reason = match self.open().await {
                None => "the scheduler is not connected".to_owned(),
                Some(mut open) => match open.client.agent_drain(open.request(replica.clone(), limit)).await {
                    Ok(answer) if answer.get_ref().success => return Ok(()),
                    Ok(_) => return Err("the scheduler could not move all models".into()),
                    Err(status) => status.message().to_owned(),
                },
            };
            if Instant::now() >= until {
                return Err(reason);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn whoever_is_drained_waits_for_a_scheduler_that_is_away() {
        let (link, begun) = (Link::default(), Instant::now());
        let limit = Duration::from_mins(2);
        let drained = link.drain(AgentDrainRequest::default(), limit, || false).await;
        assert_eq!(drained, Err("the scheduler is not connected".to_owned()));
        let waited = begun.elapsed();
        assert!(
            waited >= SCHEDULER_AWAY,
            "a scheduler that moves to another node needs longer than {waited:?}"
        );
        assert_eq!(link.drain(AgentDrainRequest::default(), limit, || true).await, Ok(()));
        assert_eq!(begun.elapsed(), waited, "one that holds nothing does not wait");
        assert!(waited < limit, "one that is gone for good must not hold up a pod: {waited:?}");
    }
}
