//! Scheduler client: a deadline on every call, and an error message and exit code for every gRPC status.

use super::{Address, collect, ownership_refusal, tls, with_manager};
use crate::{
    args::Global,
    error::{CommandError, Exit},
    object_ref::ObjectRef,
};
use gantry_api::{Kind, nearest};
use gantry_proto::scheduler::{self as pb, scheduler_client::SchedulerClient};
use gantry_tls::{Client, Connector, diagnose};
use std::{error::Error as _, future::Future, time::Duration};
use tonic::{Code, Request, Status, Streaming, transport::Channel};

const SUBSCRIBER: &str = "gantry-cli";
/// A status message lists every replica of a server.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// A mutating request owned by the CLI; the scheduler refuses it if the object has another owner.
pub(crate) fn as_cli<T>(message: T) -> Request<T> {
    with_manager(message, "cli")
}

/// A connection to the scheduler.
#[derive(Clone, Debug)]
pub(crate) struct Scheduler {
    address: Address,
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
        address: Address,
        tls: Option<Client>,
        deadline: Duration,
        authority: Option<&str>,
    ) -> Result<Self, CommandError> {
        let wrong = |e: &dyn std::fmt::Display| CommandError::usage(format!("--scheduler {address}: {e}"));
        let connector = Connector::new(tls.clone()).within(deadline);
        let mut endpoint = gantry_tls::endpoint(&address.to_string(), tls.as_ref())
            .map_err(|e| wrong(&e))?
            .http2_keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10));
        if let Some(authority) = authority {
            let scheme = if tls.is_some() { "https" } else { "http" };
            endpoint = endpoint.origin(format!("{scheme}://{authority}").parse().map_err(|e| wrong(&e))?);
        }
        let channel = endpoint.connect_with_connector(connector).await.map_err(|error| {
            let remedy = "start one with `gantry up`, or set --scheduler";
            let detail = if tls.is_some() { diagnose(&error) } else { remedy.to_owned() };
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

    pub(super) const fn address(&self) -> &Address {
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

    /// The current state of each model, then every change.
    pub(crate) async fn watch_models(&self) -> Result<StatusStream<pb::ModelStatusResponse>, CommandError> {
        let request =
            pb::ModelSubscriptionRequest { subscriber_name: SUBSCRIBER.into(), is_model_gateway: false };
        let mut client = self.client.clone();
        let stream = self.call(client.subscribe_model_status(request)).await.map_err(|s| self.error(&s))?;
        Ok(StatusStream { scheduler: self.clone(), stream: stream.into_inner() })
    }

    /// The current state of each server, then every change.
    pub(crate) async fn watch_servers(&self) -> Result<StatusStream<pb::ServerStatusResponse>, CommandError> {
        let request = pb::ServerSubscriptionRequest { subscriber_name: SUBSCRIBER.into() };
        let mut client = self.client.clone();
        let stream = self.call(client.subscribe_server_status(request)).await.map_err(|s| self.error(&s))?;
        Ok(StatusStream { scheduler: self.clone(), stream: stream.into_inner() })
    }

    pub(crate) async fn load(&self, model: pb::Model) -> Result<(), CommandError> {
        let mut client = self.client.clone();
        let request = pb::LoadModelRequest { model: Some(model) };
        self.call(client.load_model(as_cli(request))).await.map(|_| ()).map_err(|s| self.error(&s))
    }

    pub(crate) async fn notify_server(&self, server: pb::ServerNotify) -> Result<(), CommandError> {
        let mut client = self.client.clone();
        let request = pb::ServerNotifyRequest { servers: vec![server], is_first_sync: false };
        self.call(client.server_notify(as_cli(request))).await.map(|_| ()).map_err(|s| self.error(&s))
    }

    pub(crate) async fn delete(&self, object: &ObjectRef) -> Result<(), CommandError> {
        match object.kind {
            Kind::Model => {
                let mut client = self.client.clone();
                let model = pb::ModelReference { name: object.name.clone(), version: None };
                let request = pb::UnloadModelRequest { model: Some(model), kubernetes_meta: None };
                self.call(client.unload_model(as_cli(request))).await.map(|_| ()).map_err(|s| self.error(&s))
            }
            Kind::Server => {
                let server =
                    pb::ServerNotify { name: object.name.clone(), shared: true, ..Default::default() };
                self.notify_server(server).await
            }
        }
    }

    /// The error for an unknown object, with the most similar name as a suggestion.
    pub(crate) async fn not_found(&self, object: &ObjectRef) -> CommandError {
        let names: Vec<String> = match object.kind {
            Kind::Model => self
                .models(false)
                .await
                .map(|all| all.into_iter().filter(|m| !m.deleted).map(|m| m.model_name).collect()),
            Kind::Server => self.servers().await.map(|all| all.into_iter().map(|s| s.server_name).collect()),
        }
        .unwrap_or_default();
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
fn status_error(address: &Address, deadline: Duration, status: &Status) -> CommandError {
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

/// A status subscription.
pub(crate) struct StatusStream<T> {
    scheduler: Scheduler,
    stream: Streaming<T>,
}

impl<T> StatusStream<T> {
    /// The next change, without a deadline.
    pub(crate) async fn next(&mut self) -> Result<T, CommandError> {
        match self.stream.message().await {
            Ok(Some(change)) => Ok(change),
            Ok(None) => Err(self.scheduler.error(&Status::unavailable("it is shutting down"))),
            Err(status) => Err(self.scheduler.error(&status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_maps_to_message_and_exit_code() {
        let address = Address::parse("h:1", 9004, "").unwrap();
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
