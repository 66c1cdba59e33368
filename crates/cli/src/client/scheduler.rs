//! Scheduler client: a deadline on every call, and an error message and exit code for every gRPC status.

use super::{Addresses, collect, ownership_refusal, tls, with_manager};
use crate::{
    args::Global,
    error::{CommandError, Exit},
    object_ref::ObjectRef,
    view::Resource,
};
use futures::{StreamExt as _, stream::BoxStream};
use gantry_api::{Kind, Object, nearest};
use gantry_proto::scheduler::{self as pb, scheduler_client::SchedulerClient};
use gantry_tls::{Client, Connector, Failover, diagnose};
use std::{error::Error as _, future::Future, time::Duration};
use tonic::{Code, Request, Status, Streaming, transport::Channel};

pub(super) const SUBSCRIBER: &str = "gantry-cli";
/// A status message lists every replica of a server.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// A mutating request owned by the CLI; the scheduler refuses it if the object has another owner.
pub(crate) fn as_cli<T>(message: T) -> Request<T> {
    with_manager(message, "cli")
}

/// A connection to the scheduler.
#[derive(Clone, Debug)]
pub(crate) struct Scheduler {
    address: Addresses,
    deadline: Duration,
    channel: Channel,
    /// TLS without a client certificate.
    anonymous: bool,
    client: SchedulerClient<Channel>,
}

impl Scheduler {
    pub(crate) async fn connect(global: &Global) -> Result<Self, CommandError> {
        let (address, tls) = tls::scheduler(global)?;
        Self::connect_to(address, tls, global.call_timeout(), None).await
    }

    /// `authority` replaces the address in requests.
    pub(crate) async fn connect_to(
        address: Addresses,
        tls: Option<Client>,
        deadline: Duration,
        authority: Option<&str>,
    ) -> Result<Self, CommandError> {
        let wrong = |e: &dyn std::fmt::Display| CommandError::usage(format!("--scheduler {address}: {e}"));
        let connector = Connector::new(tls.clone()).within(deadline);
        let connector = Failover::new(connector, &address.list()).map_err(|e| wrong(&e))?;
        let mut endpoint = gantry_tls::endpoint(&address.first().to_string(), tls.as_ref())
            .map_err(|e| wrong(&e))?
            .http2_keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10));
        if let Some(authority) = authority {
            let scheme = if tls.is_some() { "https" } else { "http" };
            endpoint = endpoint.origin(format!("{scheme}://{authority}").parse().map_err(|e| wrong(&e))?);
        }
        let channel = endpoint.connect_with_connector(connector).await.map_err(|error| {
            let remedy = "start one with `gantry up`, or set --scheduler";
            let detail = if !address.is_single() {
                format!(
                    "{}; only the one that leads accepts connections, /ready of each gives the reason",
                    diagnose(&error)
                )
            } else if tls.is_some() {
                diagnose(&error)
            } else {
                remedy.to_owned()
            };
            CommandError::unavailable(format!("no scheduler at {address}: {detail}"))
        })?;
        Ok(Self {
            address,
            deadline,
            channel: channel.clone(),
            anonymous: tls.is_some_and(|t| !t.has_identity()),
            client: SchedulerClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES),
        })
    }

    /// For other services at the same address.
    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(super) const fn address(&self) -> &Addresses {
        &self.address
    }

    /// The generated client, for raw responses.
    pub(crate) fn client(&self) -> SchedulerClient<Channel> {
        self.client.clone()
    }

    pub(crate) async fn models(
        &self,
        all_versions: bool,
    ) -> Result<Vec<pb::ModelStatusResponse>, CommandError> {
        self.model_status(None, all_versions).await.map_err(|s| self.error(&s))
    }

    /// Includes a deleted model.
    pub(crate) async fn model(
        &self,
        name: &str,
        all_versions: bool,
    ) -> Result<Option<pb::ModelStatusResponse>, CommandError> {
        match self.model_status(Some(name), all_versions).await {
            Ok(found) => Ok(found.into_iter().next()),
            Err(status) if is_unknown(&status) => Ok(None),
            Err(status) => Err(self.error(&status)),
        }
    }

    pub(crate) async fn servers(&self) -> Result<Vec<pb::ServerStatusResponse>, CommandError> {
        self.server_status(None).await.map_err(|s| self.error(&s))
    }

    pub(crate) async fn server(&self, name: &str) -> Result<Option<pb::ServerStatusResponse>, CommandError> {
        match self.server_status(Some(name)).await {
            Ok(found) => Ok(found.into_iter().next()),
            Err(status) if is_unknown(&status) => Ok(None),
            Err(status) => Err(self.error(&status)),
        }
    }

    pub(crate) async fn pipelines(
        &self,
        all_versions: bool,
    ) -> Result<Vec<pb::PipelineStatusResponse>, CommandError> {
        self.pipeline_status(None, all_versions).await.map_err(|s| self.error(&s))
    }

    /// The steps of the last version of a pipeline.
    #[cfg(feature = "kafka")]
    pub(crate) async fn pipeline_steps(&self, name: &str) -> Result<Vec<String>, CommandError> {
        let found = self.pipeline_status(Some(name), false).await.map_err(|s| self.error(&s))?;
        let versions = found.into_iter().flat_map(|status| status.versions);
        let pipeline = versions.filter_map(|version| version.pipeline).next_back();
        Ok(pipeline.into_iter().flat_map(|pipeline| pipeline.steps).map(|step| step.name).collect())
    }

    pub(crate) async fn experiments(&self) -> Result<Vec<pb::ExperimentStatusResponse>, CommandError> {
        self.experiment_status(None).await.map_err(|s| self.error(&s))
    }

    /// An object, which may be deleted.
    pub(crate) async fn resource(
        &self,
        object: &ObjectRef,
        all_versions: bool,
    ) -> Result<Option<Resource>, CommandError> {
        let name = object.name.as_str();
        let found = match object.kind {
            Kind::Model => {
                return Ok(self.model(name, all_versions).await?.map(|m| Resource::Model(m.into())));
            }
            Kind::Server => return Ok(self.server(name).await?.map(|s| Resource::Server(s.into()))),
            Kind::Pipeline => self
                .pipeline_status(Some(name), all_versions)
                .await
                .map(|found| found.into_iter().next().map(|p| Resource::Pipeline(p.into()))),
            Kind::Experiment => self
                .experiment_status(Some(name))
                .await
                .map(|found| found.into_iter().next().map(|e| Resource::Experiment(e.into()))),
            Kind::RolloutPolicy => {
                let found = self.policies().await?.into_iter().find(|policy| policy.name == name);
                return Ok(found.map(|policy| Resource::RolloutPolicy(policy.into())));
            }
        };
        match found {
            Err(status) if is_unknown(&status) => Ok(None),
            other => other.map_err(|s| self.error(&s)),
        }
    }

    /// All objects of a kind.
    pub(crate) async fn resources(
        &self,
        kind: Kind,
        all_versions: bool,
    ) -> Result<Vec<Resource>, CommandError> {
        Ok(match kind {
            Kind::Model => {
                self.models(all_versions).await?.into_iter().map(|m| Resource::Model(m.into())).collect()
            }
            Kind::Server => self.servers().await?.into_iter().map(|s| Resource::Server(s.into())).collect(),
            Kind::Pipeline => self
                .pipelines(all_versions)
                .await?
                .into_iter()
                .map(|p| Resource::Pipeline(p.into()))
                .collect(),
            Kind::Experiment => {
                self.experiments().await?.into_iter().map(|e| Resource::Experiment(e.into())).collect()
            }
            Kind::RolloutPolicy => {
                self.policies().await?.into_iter().map(|p| Resource::RolloutPolicy(p.into())).collect()
            }
        })
    }

    /// The current state of each object of these kinds, then every change.
    pub(crate) async fn watch(&self, kinds: &[Kind]) -> Result<ResourceStream, CommandError> {
        let mut streams = Vec::new();
        for kind in kinds {
            streams.push(self.watch_kind(*kind).await.map_err(|s| self.error(&s))?);
        }
        Ok(ResourceStream { scheduler: self.clone(), streams: futures::stream::select_all(streams) })
    }

    async fn watch_kind(&self, kind: Kind) -> Result<BoxStream<'static, Result<Resource, Status>>, Status> {
        let mut client = self.client.clone();
        let subscriber_name = SUBSCRIBER.to_owned();
        Ok(match kind {
            Kind::Model => {
                let request = pb::ModelSubscriptionRequest { subscriber_name, is_model_gateway: false };
                let stream = self.call(client.subscribe_model_status(request)).await?;
                changes(stream.into_inner(), |m| Resource::Model(m.into()))
            }
            Kind::Server => {
                let request = pb::ServerSubscriptionRequest { subscriber_name };
                let stream = self.call(client.subscribe_server_status(request)).await?;
                changes(stream.into_inner(), |s| Resource::Server(s.into()))
            }
            Kind::Pipeline => {
                let request = pb::PipelineSubscriptionRequest { subscriber_name, ..Default::default() };
                let stream = self.call(client.subscribe_pipeline_status(request)).await?;
                changes(stream.into_inner(), |p| Resource::Pipeline(p.into()))
            }
            Kind::Experiment => {
                let request = pb::ExperimentSubscriptionRequest { subscriber_name };
                let stream = self.call(client.subscribe_experiment_status(request)).await?;
                changes(stream.into_inner(), |e| Resource::Experiment(e.into()))
            }
            // Their changes are not published.
            Kind::RolloutPolicy => futures::stream::pending().boxed(),
        })
    }

    /// Applies an object.
    pub(crate) async fn apply(&self, object: &Object) -> Result<(), CommandError> {
        let mut client = self.client.clone();
        match object {
            Object::Model(model) => {
                let request = pb::LoadModelRequest { model: Some(model.to_proto()) };
                self.call(client.load_model(as_cli(request))).await.map(drop)
            }
            Object::Server(server) => return self.notify_server(server.to_proto()).await,
            Object::Pipeline(pipeline) => {
                let request = pb::LoadPipelineRequest { pipeline: Some(pipeline.to_proto()) };
                self.call(client.load_pipeline(as_cli(request))).await.map(drop)
            }
            Object::Experiment(experiment) => {
                let request = pb::StartExperimentRequest { experiment: Some(experiment.to_proto()) };
                self.call(client.start_experiment(as_cli(request))).await.map(drop)
            }
            Object::RolloutPolicy(policy) => return self.put_policy(policy.to_proto()).await,
        }
        .map_err(|s| self.error(&s))
    }

    async fn notify_server(&self, server: pb::ServerNotify) -> Result<(), CommandError> {
        let mut client = self.client.clone();
        let request = pb::ServerNotifyRequest { servers: vec![server], is_first_sync: false };
        self.call(client.server_notify(as_cli(request))).await.map(|_| ()).map_err(|s| self.error(&s))
    }

    pub(crate) async fn delete(&self, object: &ObjectRef) -> Result<(), CommandError> {
        let mut client = self.client.clone();
        let name = object.name.clone();
        match object.kind {
            Kind::Model => {
                let model = pb::ModelReference { name, version: None };
                let request = pb::UnloadModelRequest { model: Some(model), kubernetes_meta: None };
                self.call(client.unload_model(as_cli(request))).await.map(drop)
            }
            Kind::Server => {
                let server = pb::ServerNotify { name, shared: true, ..Default::default() };
                return self.notify_server(server).await;
            }
            Kind::Pipeline => {
                let request = pb::UnloadPipelineRequest { name };
                self.call(client.unload_pipeline(as_cli(request))).await.map(drop)
            }
            Kind::Experiment => {
                let request = pb::StopExperimentRequest { name };
                self.call(client.stop_experiment(as_cli(request))).await.map(drop)
            }
            Kind::RolloutPolicy => return self.delete_policy(name).await,
        }
        .map_err(|s| self.error(&s))
    }

    /// The error for an unknown object, with the most similar name as a suggestion.
    pub(crate) async fn not_found(&self, object: &ObjectRef) -> CommandError {
        let found = self.resources(object.kind, false).await.unwrap_or_default();
        let names: Vec<String> =
            found.iter().filter(|f| !f.is_deleted()).map(|f| f.object_ref().name).collect();
        let others = names.iter().map(String::as_str).filter(|n| *n != object.name);
        let message = match nearest(&object.name, others) {
            Some(similar) => format!("{object} not found. Did you mean {similar}?"),
            None => format!("{object} not found"),
        };
        CommandError::new(Exit::NotFound, message)
    }

    async fn model_status(
        &self,
        name: Option<&str>,
        all_versions: bool,
    ) -> Result<Vec<pb::ModelStatusResponse>, Status> {
        let mut client = self.client.clone();
        let request = pb::ModelStatusRequest {
            subscriber_name: SUBSCRIBER.into(),
            model: name.map(|n| pb::ModelReference { name: n.to_owned(), version: None }),
            all_versions,
        };
        self.call(async { collect(client.model_status(request).await?.into_inner()).await }).await
    }

    async fn server_status(&self, name: Option<&str>) -> Result<Vec<pb::ServerStatusResponse>, Status> {
        let mut client = self.client.clone();
        let name = name.map(str::to_owned);
        let request = pb::ServerStatusRequest { subscriber_name: SUBSCRIBER.into(), name };
        self.call(async { collect(client.server_status(request).await?.into_inner()).await }).await
    }

    async fn pipeline_status(
        &self,
        name: Option<&str>,
        all_versions: bool,
    ) -> Result<Vec<pb::PipelineStatusResponse>, Status> {
        let mut client = self.client.clone();
        let name = name.map(str::to_owned);
        let request = pb::PipelineStatusRequest { subscriber_name: SUBSCRIBER.into(), name, all_versions };
        self.call(async { collect(client.pipeline_status(request).await?.into_inner()).await }).await
    }

    async fn experiment_status(
        &self,
        name: Option<&str>,
    ) -> Result<Vec<pb::ExperimentStatusResponse>, Status> {
        let mut client = self.client.clone();
        let name = name.map(str::to_owned);
        let request = pb::ExperimentStatusRequest { subscriber_name: SUBSCRIBER.into(), name };
        self.call(async { collect(client.experiment_status(request).await?.into_inner()).await }).await
    }

    pub(super) async fn call<T>(&self, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        let timed_out = || Status::deadline_exceeded("");
        tokio::time::timeout(self.deadline, call).await.unwrap_or_else(|_| Err(timed_out()))
    }

    pub(super) fn error(&self, status: &Status) -> CommandError {
        let mut error = status_error(&self.address, self.deadline, status);
        // A server that requires a client certificate closes the connection; its TLS alert may be lost.
        if self.anonymous && error.exit == Exit::Unavailable && !error.message.contains("--tls-client-cert") {
            error.message +=
                "; it may require a client certificate: set --tls-client-cert and --tls-client-key";
        }
        error
    }
}

/// Message and exit code of a gRPC status.
fn status_error(address: &Addresses, deadline: Duration, status: &Status) -> CommandError {
    match status.code() {
        Code::DeadlineExceeded if status.message().is_empty() => CommandError::new(
            Exit::Timeout,
            format!("the scheduler at {address} did not answer within {deadline:?}"),
        ),
        Code::DeadlineExceeded => CommandError::new(Exit::Timeout, status.message()),
        Code::FailedPrecondition | Code::InvalidArgument | Code::Unimplemented => CommandError::new(
            Exit::Refused,
            ownership_refusal(status).unwrap_or_else(|| status.message().to_owned()),
        ),
        Code::Unavailable | Code::Cancelled | Code::Unknown => CommandError::unavailable(format!(
            "connection to the scheduler at {address} failed: {}",
            match (status.source(), status.message()) {
                (Some(_), _) => diagnose(status),
                (None, "") => "connection closed".to_owned(),
                (None, message) => message.to_owned(),
            }
        )),
        // With a source, the status is local: the peer does not speak HTTP/2.
        Code::Internal if status.source().is_some() => CommandError::unavailable(format!(
            "{address} does not speak plaintext gRPC ({}): if it is the scheduler's TLS port, set --tls-ca",
            diagnose(status)
        )),
        code => CommandError::failed(format!(
            "the scheduler at {address} returned {code:?}: {}",
            status.message()
        )),
    }
}

/// Unknown names are reported as `FailedPrecondition`, as in Seldon.
pub(super) fn is_unknown(status: &Status) -> bool {
    matches!(status.code(), Code::FailedPrecondition | Code::NotFound)
}

fn changes<T: Send + 'static>(
    stream: Streaming<T>,
    view: fn(T) -> Resource,
) -> BoxStream<'static, Result<Resource, Status>> {
    // The end of one subscription is the end of the connection.
    let end = futures::stream::once(async { Err(Status::unavailable("it is shutting down")) });
    stream.map(move |change| change.map(view)).chain(end).boxed()
}

/// A status subscription.
pub(crate) struct ResourceStream {
    scheduler: Scheduler,
    streams: futures::stream::SelectAll<BoxStream<'static, Result<Resource, Status>>>,
}

impl ResourceStream {
    /// The next change, without a deadline.
    pub(crate) async fn next(&mut self) -> Result<Resource, CommandError> {
        let ended = || Err(Status::unavailable("it is shutting down"));
        self.streams.next().await.unwrap_or_else(ended).map_err(|status| self.scheduler.error(&status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_maps_to_message_and_exit_code() {
        let address = Addresses::parse_any("h:1", 9004, "").unwrap();
        for (status, exit, message) in [
            (
                Status::failed_precondition("model m is still terminating"),
                Exit::Refused,
                "model m is still terminating",
            ),
            (Status::invalid_argument("no"), Exit::Refused, "no"),
            (
                Status::failed_precondition(
                    "m belongs to the operator: delete it there. To take it over on purpose: gantry adopt model/m",
                ),
                Exit::Refused,
                "m belongs to the operator: delete it there.\nTo take it over on purpose: gantry adopt model/m",
            ),
            (
                Status::unimplemented("pipelines are not supported yet"),
                Exit::Refused,
                "pipelines are not supported yet",
            ),
            (Status::deadline_exceeded(""), Exit::Timeout, "the scheduler at h:1 did not answer within 5s"),
            (Status::deadline_exceeded("not decided"), Exit::Timeout, "not decided"),
            (
                Status::unavailable(""),
                Exit::Unavailable,
                "connection to the scheduler at h:1 failed: connection closed",
            ),
            (
                Status::unknown("transport error"),
                Exit::Unavailable,
                "connection to the scheduler at h:1 failed: transport error",
            ),
            (Status::internal("x"), Exit::Failed, "the scheduler at h:1 returned Internal: x"),
        ] {
            let got = status_error(&address, Duration::from_secs(5), &status);
            assert_eq!((got.exit, got.message.as_str()), (exit, message));
        }
    }
}
