//! Reports decisions about rollouts to the webhooks of their policies.

use crate::error::CommandError;
use gantry_api::rollout_policy::{WebhookSpec, webhooks_of_json};
use gantry_artifacts::{ErrorKind, NetPolicy, NetRule, Poster, RetryPolicy};
use gantry_scheduler::{RolloutNotice, Scheduler};
use jiff::Timestamp;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use serde::Serialize;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::{broadcast::error::RecvError, mpsc};
use tokio_util::sync::CancellationToken;

/// Endpoints that are notified at the same time, each in the order of the events.
const MAX_ENDPOINTS: usize = 256;
/// Notifications that wait for an endpoint.
const MAX_WAITING: usize = 64;
/// About two minutes of attempts.
const RETRY: RetryPolicy =
    RetryPolicy { retries: 6, base: Duration::from_secs(1), max: Duration::from_mins(1) };

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    result: &'static str,
}

/// The document that an endpoint gets.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    /// The same for every attempt.
    id: &'a str,
    event: &'static str,
    time: Timestamp,
    kind: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    name: &'a str,
    policy: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    percent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    /// One sentence, under the name that chat services display.
    text: &'a str,
}

/// A document for one endpoint.
struct Notification {
    id: String,
    event: &'static str,
    document: Vec<u8>,
}

/// Sends notifications. Clones share the endpoints.
#[derive(Clone)]
pub struct Notifier {
    poster: Arc<Poster>,
    endpoints: Arc<Mutex<HashMap<String, mpsc::Sender<Notification>>>>,
    sent: Family<Labels, Counter>,
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notifier").finish_non_exhaustive()
    }
}

impl Notifier {
    /// Endpoints with public addresses can be notified, and those that `allow` or `allow_loopback` open.
    pub fn new(allow: &[NetRule], allow_loopback: bool) -> Result<Self, CommandError> {
        Self::with_retries(allow, allow_loopback, RETRY)
    }

    fn with_retries(
        allow: &[NetRule],
        allow_loopback: bool,
        retry: RetryPolicy,
    ) -> Result<Self, CommandError> {
        let poster = Poster::new(NetPolicy::new(allow.to_vec(), allow_loopback), retry)
            .map_err(|error| CommandError::failed(error.to_string()))?;
        let sent = Family::<Labels, Counter>::default();
        for result in ["delivered", "failed", "dropped"] {
            drop(sent.get_or_create(&Labels { result }));
        }
        Ok(Self { poster: Arc::new(poster), endpoints: Arc::default(), sent })
    }

    pub fn register_metrics(&self, registry: &mut Registry) {
        registry.register(
            "gantry_rollout_notifications",
            "Notifications of rollouts to webhooks, by result",
            self.sent.clone(),
        );
    }

    /// Reports the events of a scheduler's rollouts until `stop`. What waits then is lost.
    pub fn start(self, scheduler: &Scheduler, stop: CancellationToken) {
        let mut notices = scheduler.rollout_notices();
        let follow = async move {
            let mut count = 0_u64;
            loop {
                match notices.recv().await {
                    Ok(notice) => {
                        count += 1;
                        self.notify(&notice, &format!("{}-{count}", notice.at));
                    }
                    Err(RecvError::Lagged(lost)) => self.count("dropped", lost),
                    Err(RecvError::Closed) => return,
                }
            }
        };
        tokio::spawn(async move { stop.run_until_cancelled(follow).await });
    }

    fn count(&self, result: &'static str, by: u64) {
        self.sent.get_or_create(&Labels { result }).inc_by(by);
    }

    /// Queues a notice for the endpoints of its policy that report its event.
    fn notify(&self, notice: &RolloutNotice, id: &str) {
        let webhooks = webhooks_of_json(&notice.spec);
        for WebhookSpec { url, .. } in webhooks.into_iter().filter(|webhook| webhook.reports(notice.event)) {
            let notification =
                Notification { id: id.to_owned(), event: notice.event, document: document(notice, id) };
            if !self.queue(&url, notification) {
                self.count("dropped", 1);
                tracing::warn!(
                    event = notice.event,
                    name = %notice.name,
                    policy = %notice.policy,
                    "notification dropped: too many wait for their endpoint"
                );
            }
        }
    }

    fn queue(&self, url: &str, notification: Notification) -> bool {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = endpoints.get(url) {
            return endpoint.try_send(notification).is_ok();
        }
        if endpoints.len() >= MAX_ENDPOINTS {
            return false;
        }
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        let is_queued = sender.try_send(notification).is_ok();
        endpoints.insert(url.to_owned(), sender);
        tokio::spawn(self.clone().deliver(url.to_owned(), receiver));
        is_queued
    }

    /// Delivers in order, until nothing waits.
    async fn deliver(self, url: String, mut waiting: mpsc::Receiver<Notification>) {
        loop {
            let next = {
                let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
                let next = waiting.try_recv().ok();
                // Under the lock, so that nothing is queued for an endpoint that is removed.
                if next.is_none() {
                    endpoints.remove(&url);
                }
                next
            };
            let Some(Notification { id, event, document }) = next else { return };
            match self.poster.post(&url, &id, &document).await {
                Ok(()) => self.count("delivered", 1),
                Err(error) => {
                    self.count("failed", 1);
                    let remedy = match error.kind() {
                        ErrorKind::Denied => "; --allow-net NETWORK of the scheduler allows its address",
                        _ => "",
                    };
                    tracing::warn!(event, %error, "notification failed{remedy}");
                }
            }
        }
    }
}

fn document(notice: &RolloutNotice, id: &str) -> Vec<u8> {
    let time = i64::try_from(notice.at).ok().and_then(|at| Timestamp::from_millisecond(at).ok());
    // The name of a service is `namespace/name`.
    let name = notice.name.rsplit_once('/').map_or(&*notice.name, |(_, name)| name);
    let document = Document {
        id,
        event: notice.event,
        time: time.unwrap_or_default(),
        kind: notice.kind,
        namespace: &notice.namespace,
        name,
        policy: &notice.policy,
        version: notice.version,
        to: notice.to,
        percent: notice.percent,
        reason: notice.reason.as_deref(),
        text: &notice.message,
    };
    serde_json::to_vec(&document).unwrap_or_default()
}

#[cfg(test)]
mod tests;
