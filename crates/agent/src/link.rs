//! The connection to the scheduler, as far as reports need it.

use gantry_proto::agent::{
    AgentDrainRequest, ModelEventMessage, ModelScalingTriggerMessage,
    agent_service_client::AgentServiceClient,
};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tonic::{
    Request,
    metadata::{AsciiMetadataValue, MetadataMap},
    transport::Channel,
};

/// How long a call may take, how often a report is tried, and the wait between two tries.
const CALL_TIME: Duration = Duration::from_secs(10);
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(50);

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
}

impl Default for Link {
    fn default() -> Self {
        Self { open: watch::Sender::new(None), broken: Notify::new() }
    }
}

impl Link {
    pub(crate) fn connected(&self, client: Client) {
        self.open.send_replace(Some(Open { client, subscribed: false, name: None }));
    }

    /// The scheduler has answered the subscription, with these headers.
    pub(crate) fn subscribed(&self, answer: &MetadataMap) {
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

    /// Asks the scheduler to move a replica's models elsewhere; returns when it has, or why it has not.
    pub(crate) async fn drain(&self, replica: AgentDrainRequest, limit: Duration) -> Result<(), String> {
        let Some(mut open) = self.open().await else {
            return Err("the scheduler is not connected".into());
        };
        let request = open.request(replica, limit);
        match open.client.agent_drain(request).await {
            Ok(answer) if answer.get_ref().success => Ok(()),
            Ok(_) => Err("the scheduler could not move all models".into()),
            Err(status) => Err(status.message().to_owned()),
        }
    }
}
