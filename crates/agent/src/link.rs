//! The connection to the scheduler, as far as reports need it.

use gantry_proto::agent::{ModelEventMessage, agent_service_client::AgentServiceClient};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tonic::transport::Channel;

/// How long a call may take, how often a report is tried, and the wait between two tries.
const CALL_TIME: Duration = Duration::from_secs(10);
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) type Client = AgentServiceClient<Channel>;

#[derive(Clone)]
struct Open {
    client: Client,
    /// Whether the scheduler has taken the subscription: what is reported before that could be forgotten by it.
    subscribed: bool,
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
        self.open.send_replace(Some(Open { client, subscribed: false }));
    }

    pub(crate) fn subscribed(&self) {
        self.open.send_modify(|open| {
            if let Some(open) = open {
                open.subscribed = true;
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
    pub(crate) async fn client(&self) -> Option<Client> {
        let mut changes = self.open.subscribe();
        let subscribed = changes.wait_for(|open| open.as_ref().is_some_and(|o| o.subscribed));
        let _ = tokio::time::timeout(CALL_TIME, subscribed).await;
        self.open.borrow().as_ref().map(|o| o.client.clone())
    }

    /// Tells the scheduler. If that cannot be done, the next subscription tells.
    pub(crate) async fn report(&self, report: &ModelEventMessage) {
        for _ in 0..TRIES {
            let Some(mut client) = self.client().await else { return };
            let mut request = tonic::Request::new(report.clone());
            request.set_timeout(CALL_TIME);
            match client.agent_event(request).await {
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
}
