//! The connection to a namespace's scheduler: status streams and calls.

use super::{RpcOutcome, SchedulerCache, SchedulerConnector, rpc};
use crate::{
    cluster::{
        Algorithm, Experiment, InferenceGraph, InferenceService, Key, KindId, Model, Pipeline, RolloutPolicy,
        Server, WriteFence,
    },
    plan::SchedulerAction,
};
use futures::{StreamExt as _, stream, stream::BoxStream};
use gantry_proto::{
    gantry::{
        PolicyEvent, RolloutEvent, ServiceEvent, WatchPoliciesRequest, WatchRolloutsRequest,
        WatchServicesRequest, policy_event, rollout_event, rollouts_client::RolloutsClient,
        service_event::Event, services_client::ServicesClient,
    },
    scheduler::{self as pb, scheduler_client::SchedulerClient},
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::watch;
use tonic::{Code, Status, transport::Channel};

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
    Object(KindId, Key),
    /// All objects of the namespace: the scheduler connected or disconnected.
    Namespace,
}

/// A handle to a connection, which stays open until [`SchedulerConnection::close`].
#[derive(Clone, Debug)]
pub struct SchedulerConnection {
    namespace: Arc<str>,
    channel: Arc<Mutex<Option<Channel>>>,
    closed: watch::Sender<bool>,
    /// Bounds every call by the time that this operator leads.
    fence: WriteFence,
}

impl SchedulerConnection {
    /// Connects, and reconnects until closed. `servers` returns the Servers to announce on connect; `None` while they are
    /// unknown.
    pub fn open(
        namespace: &str,
        connector: Arc<dyn SchedulerConnector>,
        cache: Arc<SchedulerCache>,
        fence: WriteFence,
        servers: impl Fn() -> Option<Vec<pb::ServerNotify>> + Send + Sync + 'static,
        notify: impl Fn(ChangeEvent) + Send + Sync + 'static,
    ) -> Self {
        let (closed, mut end) = watch::channel(false);
        let connection = Self { namespace: namespace.into(), channel: Arc::default(), closed, fence };
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
        *self.channel.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The channel and the time limit of a call that starts now.
    pub(super) fn channel(&self) -> Result<(Channel, Duration), RpcOutcome> {
        let unavailable = |why: &str| RpcOutcome::Unavailable(why.into());
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let channel = channel.ok_or_else(|| unavailable("not connected to the scheduler"))?;
        Ok((channel, self.limit().ok_or_else(|| unavailable("not the leader"))?))
    }

    /// A call must not take effect after the lease: the next leader sends newer requests.
    fn limit(&self) -> Option<Duration> {
        Some(self.fence.remaining()?.min(rpc::CALL_TIMEOUT))
    }

    pub async fn send(&self, action: SchedulerAction) -> RpcOutcome {
        match self.channel() {
            Ok((channel, limit)) => rpc::send(channel, &self.namespace, action, limit).await,
            Err(outcome) => outcome,
        }
    }
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
            *self.connection.channel.lock().unwrap_or_else(PoisonError::into_inner) = None;
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
        let mut client = SchedulerClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_SIZE);
        self.cache.begin_sync(&self.namespace);
        match self.open_streams(&mut client, channel.clone()).await {
            Ok(streams) => {
                *self.connection.channel.lock().unwrap_or_else(PoisonError::into_inner) = Some(channel);
                self.cache.synced(&self.namespace);
                tracing::info!(namespace = %self.namespace, "scheduler connected");
                (self.notify)(ChangeEvent::Namespace);
                self.apply_changes(streams).await
            }
            Err(status) => {
                format!("failed to list the objects of the scheduler: {}", status.message())
            }
        }
    }

    /// Subscribes before listing, so that no change is missed.
    async fn open_streams(
        &self,
        client: &mut SchedulerClient<Channel>,
        channel: Channel,
    ) -> Result<StatusStreams, Status> {
        let name = || SUBSCRIBER.to_owned();
        let opening = async {
            let control = client
                .subscribe_control_plane(pb::ControlPlaneSubscriptionRequest { subscriber_name: name() })
                .await?
                .into_inner();
            self.announce_servers(client).await;
            let models = pb::ModelSubscriptionRequest { subscriber_name: name(), is_model_gateway: false };
            let models = client.subscribe_model_status(models).await?.into_inner();
            let servers = pb::ServerSubscriptionRequest { subscriber_name: name() };
            let servers = client.subscribe_server_status(servers).await?.into_inner();
            let pipelines = pb::PipelineSubscriptionRequest { subscriber_name: name(), ..Default::default() };
            let pipelines = client.subscribe_pipeline_status(pipelines).await?.into_inner();
            let experiments = pb::ExperimentSubscriptionRequest { subscriber_name: name() };
            let experiments = client.subscribe_experiment_status(experiments).await?.into_inner();
            self.list(client).await?;
            let services = self.watch_services(channel.clone()).await?;
            let (policies, rollouts) = self.watch_rollouts(channel).await?;
            Ok(StatusStreams {
                models: models.boxed(),
                servers: servers.boxed(),
                pipelines: pipelines.boxed(),
                experiments: experiments.boxed(),
                services,
                policies,
                rollouts,
                control: control.boxed(),
            })
        };
        let slow = || Status::deadline_exceeded(format!("timed out after {} s", SYNC_TIMEOUT.as_secs()));
        tokio::time::timeout(SYNC_TIMEOUT, opening).await.map_err(|_| slow())?
    }

    /// Services of all namespaces, until Synced. Schedulers without them send nothing.
    async fn watch_services(
        &self,
        channel: Channel,
    ) -> Result<BoxStream<'static, Result<ServiceEvent, Status>>, Status> {
        if !self.cache.has_services_of(&self.namespace) {
            return Ok(stream::pending().boxed());
        }
        let mut client = ServicesClient::new(channel).max_decoding_message_size(MAX_MESSAGE_SIZE);
        let request = WatchServicesRequest { subscriber: SUBSCRIBER.into() };
        let mut events = match client.watch_services(request).await {
            Ok(events) => events.into_inner(),
            Err(status) if status.code() == Code::Unimplemented => return Ok(stream::pending().boxed()),
            Err(status) => return Err(status),
        };
        loop {
            let event = events.message().await?.and_then(|event| event.event);
            match event.ok_or_else(closed)? {
                Event::Synced(_) => break,
                event => drop(self.cache.apply_service_event(&self.namespace, event)),
            }
        }
        self.cache.services_synced(&self.namespace);
        Ok(events.boxed())
    }

    /// Policies and rollouts, until Synced. Schedulers without them send nothing.
    async fn watch_rollouts(&self, channel: Channel) -> Result<(PolicyStream, RolloutStream), Status> {
        let mut client = RolloutsClient::new(channel).max_decoding_message_size(MAX_MESSAGE_SIZE);
        let none = || (stream::pending().boxed(), stream::pending().boxed());
        let request = WatchPoliciesRequest { subscriber: SUBSCRIBER.into() };
        let mut policies = match client.watch_policies(request).await {
            Ok(events) => events.into_inner(),
            Err(status) if status.code() == Code::Unimplemented => return Ok(none()),
            Err(status) => return Err(status),
        };
        loop {
            let event = policies.message().await?.and_then(|event| event.event);
            match event.ok_or_else(closed)? {
                policy_event::Event::Synced(_) => break,
                event => drop(self.cache.apply_policy_event(&self.namespace, event)),
            }
        }
        let request = WatchRolloutsRequest { subscriber: SUBSCRIBER.into() };
        let mut rollouts = client.watch_rollouts(request).await?.into_inner();
        loop {
            let event = rollouts.message().await?.and_then(|event| event.event);
            match event.ok_or_else(closed)? {
                rollout_event::Event::Synced(_) => break,
                event => drop(self.cache.apply_rollout_event(&self.namespace, event)),
            }
        }
        Ok((policies.boxed(), rollouts.boxed()))
    }

    async fn list(&self, client: &mut SchedulerClient<Channel>) -> Result<(), Status> {
        let name = || SUBSCRIBER.to_owned();
        let all = pb::ModelStatusRequest { subscriber_name: name(), ..Default::default() };
        let mut all = client.model_status(all).await?.into_inner();
        while let Some(status) = all.message().await? {
            self.cache.apply_model_status(&self.namespace, status);
        }
        let all = pb::ServerStatusRequest { subscriber_name: name(), name: None };
        let mut all = client.server_status(all).await?.into_inner();
        while let Some(status) = all.message().await? {
            self.cache.apply_server_status(&self.namespace, &status);
        }
        let all = pb::PipelineStatusRequest { subscriber_name: name(), ..Default::default() };
        let mut all = client.pipeline_status(all).await?.into_inner();
        while let Some(status) = all.message().await? {
            self.cache.apply_pipeline_status(&self.namespace, status);
        }
        let all = pb::ExperimentStatusRequest { subscriber_name: name(), name: None };
        let mut all = client.experiment_status(all).await?.into_inner();
        while let Some(status) = all.message().await? {
            self.cache.apply_experiment_status(&self.namespace, status);
        }
        Ok(())
    }

    /// Announces all Servers as the initial sync. Seldon's scheduler places no model and reports no status until then, for
    /// up to ten minutes.
    async fn announce_servers(&self, client: &mut SchedulerClient<Channel>) {
        let (Some(servers), Some(limit)) = ((self.servers)(), self.connection.limit()) else { return };
        if let RpcOutcome::Rejected(reason) = rpc::notify(client, servers, true, limit).await {
            // A Server has another owner there. Its own announcement is rejected too, which its status reports.
            tracing::debug!(namespace = %self.namespace, "initial server sync rejected: {reason}");
            rpc::notify(client, Vec::new(), true, limit).await;
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
                            self.changed(KindId::of::<Model>(), name);
                        }
                    }
                    other => return ended(other.and_then(Result::err)),
                },
                message = streams.servers.next() => match message {
                    Some(Ok(status)) => {
                        if self.cache.apply_server_status(&self.namespace, &status) {
                            self.changed(KindId::of::<Server>(), status.server_name);
                        }
                    }
                    other => return ended(other.and_then(Result::err)),
                },
                message = streams.pipelines.next() => match message {
                    Some(Ok(status)) => {
                        let name = status.pipeline_name.clone();
                        if self.cache.apply_pipeline_status(&self.namespace, status) {
                            self.changed(KindId::of::<Pipeline>(), name);
                        }
                    }
                    other => return ended(other.and_then(Result::err)),
                },
                message = streams.experiments.next() => match message {
                    Some(Ok(status)) => self.experiment_changed(status),
                    other => return ended(other.and_then(Result::err)),
                },
                message = streams.services.next() => match message {
                    Some(Ok(ServiceEvent { event })) => {
                        let changed =
                            event.and_then(|event| self.cache.apply_service_event(&self.namespace, event));
                        if let Some(key) = changed {
                            // Any of them may have the name.
                            (self.notify)(ChangeEvent::Object(KindId::of::<Algorithm>(), key.clone()));
                            (self.notify)(ChangeEvent::Object(KindId::of::<InferenceGraph>(), key.clone()));
                            (self.notify)(ChangeEvent::Object(KindId::of::<InferenceService>(), key));
                        }
                    }
                    other => return ended(other.and_then(Result::err)),
                },
                message = streams.policies.next() => match message {
                    Some(Ok(PolicyEvent { event })) => {
                        let changed =
                            event.and_then(|event| self.cache.apply_policy_event(&self.namespace, event));
                        if let Some(name) = changed {
                            self.changed(KindId::of::<RolloutPolicy>(), name);
                        }
                    }
                    other => return ended(other.and_then(Result::err)),
                },
                message = streams.rollouts.next() => match message {
                    Some(Ok(RolloutEvent { event })) => {
                        let changed =
                            event.map(|event| self.cache.apply_rollout_event(&self.namespace, event));
                        for (kind, key) in changed.unwrap_or_default() {
                            (self.notify)(ChangeEvent::Object(kind, key));
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

    /// An object of the scheduler's own namespace changed.
    fn changed(&self, kind: KindId, name: String) {
        (self.notify)(ChangeEvent::Object(kind, Key::new(self.namespace.clone(), name)));
    }

    /// A model or pipeline is the default of one experiment: the end of one may allow another that was rejected.
    fn experiment_changed(&self, status: pb::ExperimentStatusResponse) {
        let name = status.experiment_name.clone();
        if self.cache.apply_experiment_status(&self.namespace, status) {
            let rejected = self.cache.forget_rejections::<Experiment>(&self.namespace);
            for name in rejected.into_iter().chain([name]) {
                self.changed(KindId::of::<Experiment>(), name);
            }
        }
    }
}

fn closed() -> Status {
    Status::unavailable("the scheduler closed the stream")
}

type PolicyStream = BoxStream<'static, Result<PolicyEvent, Status>>;
type RolloutStream = BoxStream<'static, Result<RolloutEvent, Status>>;

struct StatusStreams {
    models: BoxStream<'static, Result<pb::ModelStatusResponse, Status>>,
    servers: BoxStream<'static, Result<pb::ServerStatusResponse, Status>>,
    pipelines: BoxStream<'static, Result<pb::PipelineStatusResponse, Status>>,
    experiments: BoxStream<'static, Result<pb::ExperimentStatusResponse, Status>>,
    services: BoxStream<'static, Result<ServiceEvent, Status>>,
    policies: PolicyStream,
    rollouts: RolloutStream,
    control: BoxStream<'static, Result<pb::ControlPlaneResponse, Status>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper_util::rt::TokioIo;
    use tokio::time::Instant;
    use tonic::transport::Endpoint;

    #[tokio::test(start_paused = true)]
    async fn call_ends_with_the_lease() {
        // A scheduler that accepts the connection and never responds.
        let (ours, _theirs) = tokio::io::duplex(1 << 16);
        let mut ours = Some(ours);
        let connector = tower::service_fn(move |_| {
            let stream = ours.take().map(TokioIo::new).ok_or_else(|| std::io::Error::other("single-use"));
            async move { stream }
        });
        let channel = Endpoint::from_static("http://scheduler").connect_with_connector_lazy(connector);
        let fence = WriteFence::closed();
        let unload = || SchedulerAction::UnloadModel(pb::UnloadModelRequest::default());
        let connection = SchedulerConnection {
            namespace: "ml".into(),
            channel: Arc::new(Mutex::new(Some(channel))),
            closed: watch::channel(false).0,
            fence: fence.clone(),
        };
        let begin = Instant::now();
        fence.extend(begin + Duration::from_secs(3));
        let outcome = connection.send(unload()).await;
        assert!(matches!(outcome, RpcOutcome::Unavailable(_)), "{outcome:?}");
        assert_eq!(begin.elapsed().as_secs(), 3);
        let late = connection.send(unload()).await;
        assert_eq!((late, begin.elapsed().as_secs()), (RpcOutcome::Unavailable("not the leader".into()), 3));
    }
}
