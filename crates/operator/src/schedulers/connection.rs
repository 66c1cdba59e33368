//! The connection to a namespace's scheduler: status streams and calls.

use super::{RpcOutcome, SchedulerCache, SchedulerConnector, rpc};
use crate::cluster::{KindId, Model, Server};
use futures::{StreamExt as _, stream::BoxStream};
use gantry_proto::scheduler::{self as pb, scheduler_client::SchedulerClient};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::watch;
use tonic::{Status, transport::Channel};

/// The subscriber name of Seldon's operator.
const SUBSCRIBER: &str = "seldon manager";
const MAX_MESSAGE_SIZE: usize = 64 << 20;
const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(15);
/// Limit for subscribing and listing.
const SYNC_TIMEOUT: Duration = Duration::from_mins(1);

/// A change that requires reconciliation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeEvent {
    Object(KindId, String),
    /// All objects of the namespace: the scheduler connected or disconnected.
    Namespace,
}

/// A handle to a connection, which stays open until [`SchedulerConnection::close`].
#[derive(Clone, Debug)]
pub struct SchedulerConnection {
    client: Arc<Mutex<Option<SchedulerClient<Channel>>>>,
    closed: watch::Sender<bool>,
}

impl SchedulerConnection {
    /// Connects, and reconnects until closed. `servers` returns the Servers to announce on connect; `None` while they are
    /// unknown.
    pub fn open(
        namespace: &str,
        connector: Arc<dyn SchedulerConnector>,
        cache: Arc<SchedulerCache>,
        servers: impl Fn() -> Option<Vec<pb::ServerNotify>> + Send + Sync + 'static,
        notify: impl Fn(ChangeEvent) + Send + Sync + 'static,
    ) -> Self {
        let (closed, mut end) = watch::channel(false);
        let connection = Self { client: Arc::default(), closed };
        cache.add_namespace(namespace);
        let session = Session {
            namespace: namespace.to_owned(),
            connector,
            cache,
            connection: connection.clone(),
            servers: Box::new(servers),
            notify: Box::new(notify),
        };
        tokio::spawn(async move {
            tokio::select! {
                () = session.run() => {}
                _ = end.wait_for(|closed| *closed) => {}
            }
        });
        connection
    }

    pub fn close(&self) {
        self.closed.send_replace(true);
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn client(&self) -> Option<SchedulerClient<Channel>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub async fn load(&self, model: pb::Model) -> RpcOutcome {
        match self.client() {
            Some(mut client) => rpc::load(&mut client, model).await,
            None => not_connected(),
        }
    }

    pub async fn unload(&self, request: pb::UnloadModelRequest) -> RpcOutcome {
        match self.client() {
            Some(mut client) => rpc::unload(&mut client, request).await,
            None => not_connected(),
        }
    }

    pub async fn notify(&self, server: pb::ServerNotify) -> RpcOutcome {
        match self.client() {
            Some(mut client) => rpc::notify(&mut client, vec![server], false).await,
            None => not_connected(),
        }
    }
}

fn not_connected() -> RpcOutcome {
    RpcOutcome::Unavailable("not connected to the scheduler".into())
}

struct Session {
    namespace: String,
    connector: Arc<dyn SchedulerConnector>,
    cache: Arc<SchedulerCache>,
    connection: SchedulerConnection,
    servers: Box<dyn Fn() -> Option<Vec<pb::ServerNotify>> + Send + Sync>,
    notify: Box<dyn Fn(ChangeEvent) + Send + Sync>,
}

impl Session {
    async fn run(&self) {
        let mut backoff = BACKOFF_MIN;
        loop {
            let started = tokio::time::Instant::now();
            let reason = match self.connector.connect(&self.namespace).await {
                Ok(channel) => self.sync(channel).await,
                Err(reason) => reason,
            };
            *self.connection.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
            let was_connected = self.cache.unreachable_for(&self.namespace).is_none();
            self.cache.disconnected(&self.namespace, &reason);
            if was_connected {
                tracing::warn!(namespace = %self.namespace, "scheduler disconnected: {reason}");
                (self.notify)(ChangeEvent::Namespace);
            }
            // A session that lasted resets the backoff.
            if started.elapsed() > BACKOFF_MAX {
                backoff = BACKOFF_MIN;
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Runs until the connection ends; returns the reason.
    async fn sync(&self, channel: Channel) -> String {
        let mut client = SchedulerClient::new(channel).max_decoding_message_size(MAX_MESSAGE_SIZE);
        self.cache.begin_sync(&self.namespace);
        match self.open_streams(&mut client).await {
            Ok(streams) => {
                *self.connection.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(client);
                self.cache.synced(&self.namespace);
                tracing::info!(namespace = %self.namespace, "scheduler connected");
                (self.notify)(ChangeEvent::Namespace);
                self.apply_changes(streams).await
            }
            Err(status) => {
                format!("failed to list models and servers of the scheduler: {}", status.message())
            }
        }
    }

    /// Subscribes before listing, so that no change is missed.
    async fn open_streams(&self, client: &mut SchedulerClient<Channel>) -> Result<StatusStreams, Status> {
        let name = || SUBSCRIBER.to_owned();
        let opening = async {
            let control = client
                .subscribe_control_plane(pb::ControlPlaneSubscriptionRequest { subscriber_name: name() })
                .await?
                .into_inner();
            self.announce_servers(client).await;
            let models = client
                .subscribe_model_status(pb::ModelSubscriptionRequest {
                    subscriber_name: name(),
                    is_model_gateway: false,
                })
                .await?
                .into_inner();
            let servers = client
                .subscribe_server_status(pb::ServerSubscriptionRequest { subscriber_name: name() })
                .await?
                .into_inner();
            let mut all = client
                .model_status(pb::ModelStatusRequest {
                    subscriber_name: name(),
                    model: None,
                    all_versions: false,
                })
                .await?
                .into_inner();
            while let Some(status) = all.message().await? {
                self.cache.apply_model_status(&self.namespace, status);
            }
            let mut all = client
                .server_status(pb::ServerStatusRequest { subscriber_name: name(), name: None })
                .await?
                .into_inner();
            while let Some(status) = all.message().await? {
                self.cache.apply_server_status(&self.namespace, &status);
            }
            Ok(StatusStreams { models: models.boxed(), servers: servers.boxed(), control: control.boxed() })
        };
        let slow = || Status::deadline_exceeded(format!("timed out after {} s", SYNC_TIMEOUT.as_secs()));
        tokio::time::timeout(SYNC_TIMEOUT, opening).await.map_err(|_| slow())?
    }

    /// Announces all Servers as the initial sync. Seldon's scheduler places no model and reports no status until then, for
    /// up to ten minutes.
    async fn announce_servers(&self, client: &mut SchedulerClient<Channel>) {
        let Some(servers) = (self.servers)() else { return };
        if let RpcOutcome::Rejected(reason) = rpc::notify(client, servers, true).await {
            // A Server has another owner there. Its own announcement is rejected too, which its status reports.
            tracing::debug!(namespace = %self.namespace, "initial server sync rejected: {reason}");
            rpc::notify(client, Vec::new(), true).await;
        }
    }

    async fn apply_changes(&self, mut streams: StatusStreams) -> String {
        let ended = |status: Option<Status>| {
            status.map_or_else(
                || "the scheduler closed the stream".to_owned(),
                |s| format!("connection to the scheduler lost: {}", s.message()),
            )
        };
        loop {
            tokio::select! {
                message = streams.models.next() => match message {
                    Some(Ok(status)) => {
                        let name = status.model_name.clone();
                        if self.cache.apply_model_status(&self.namespace, status) {
                            (self.notify)(ChangeEvent::Object(KindId::of::<Model>(), name));
                        }
                    }
                    other => return ended(other.and_then(Result::err)),
                },
                message = streams.servers.next() => match message {
                    Some(Ok(status)) => {
                        if self.cache.apply_server_status(&self.namespace, &status) {
                            (self.notify)(ChangeEvent::Object(KindId::of::<Server>(), status.server_name));
                        }
                    }
                    other => return ended(other.and_then(Result::err)),
                },
                message = streams.control.next() => match message {
                    // The scheduler may have lost its state.
                    Some(Ok(_)) => (self.notify)(ChangeEvent::Namespace),
                    other => return ended(other.and_then(Result::err)),
                },
            }
        }
    }
}

struct StatusStreams {
    models: BoxStream<'static, Result<pb::ModelStatusResponse, Status>>,
    servers: BoxStream<'static, Result<pb::ServerStatusResponse, Status>>,
    control: BoxStream<'static, Result<pb::ControlPlaneResponse, Status>>,
}
