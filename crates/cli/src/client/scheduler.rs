//! The scheduler, with a deadline on every call and words for every refusal.

use super::{Address, tls};
use crate::{
    args::Global,
    failure::{Exit, Failure},
    reference::Reference,
};
use gantry_api::{Kind, nearest};
use gantry_oip::grpc::percent_encode;
use gantry_proto::scheduler::{self as pb, scheduler_client::SchedulerClient};
use gantry_tls::{Client, Connector, explain};
use std::{error::Error as _, future::Future, time::Duration};
use tonic::{Code, Request, Status, Streaming, metadata::MetadataValue, transport::Channel};

/// Who we are to the scheduler.
const SUBSCRIBER: &str = "gantry-cli";
/// Largest message that is taken: a model's definition is small, but a server may hold many replicas.
const LARGEST: usize = 64 << 20;

/// The header that names who manages what a call asks for.
const MANAGER: &str = "gantry-manager";

/// A call that changes something, in our name: the scheduler refuses it when the object is somebody else's.
pub(crate) fn changing<T>(message: T) -> Request<T> {
    managed(message, "cli")
}

/// A call that changes something in the name of a manager, such as `file:/srv/models/iris.yaml`.
pub(crate) fn managed<T>(message: T, manager: &str) -> Request<T> {
    let mut request = Request::new(message);
    // A name that cannot stand in a header as it is (a path may hold anything) stands there percent-encoded.
    let plain = MetadataValue::try_from(manager);
    let value = plain.or_else(|_| MetadataValue::try_from(percent_encode(manager)));
    if let Ok(value) = value {
        request.metadata_mut().insert(MANAGER, value);
    }
    request
}

/// A connection to the scheduler.
#[derive(Clone, Debug)]
pub(crate) struct Scheduler {
    address: Address,
    deadline: Duration,
    channel: Channel,
    /// Whether TLS is spoken without a certificate of ours.
    anonymous: bool,
    client: SchedulerClient<Channel>,
}

impl Scheduler {
    /// Connects; fails at once when nobody listens.
    pub(crate) async fn connect(global: &Global) -> Result<Self, Failure> {
        let (address, tls) = tls::scheduler(global)?;
        Self::connect_to(address, tls, global.call_timeout(), None).await
    }

    /// Connects to an address; `authority` is named in requests instead of it.
    pub(crate) async fn connect_to(
        address: Address,
        tls: Option<Client>,
        deadline: Duration,
        authority: Option<&str>,
    ) -> Result<Self, Failure> {
        let wrong = |e: &dyn std::fmt::Display| Failure::usage(format!("--scheduler {address}: {e}"));
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
            let remedy = "start one with `gantry up`, or name another with --scheduler";
            let why = if tls.is_some() { explain(&error) } else { remedy.to_owned() };
            Failure::unavailable(format!("no scheduler answers at {address}: {why}"))
        })?;
        Ok(Self {
            address,
            deadline,
            channel: channel.clone(),
            anonymous: tls.is_some_and(|t| !t.has_identity()),
            client: SchedulerClient::new(channel).max_decoding_message_size(LARGEST),
        })
    }

    /// The connection, for another service behind the same address.
    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Where it is.
    pub(super) const fn address(&self) -> &Address {
        &self.address
    }

    /// The contract itself, for whoever wants its answers as they come.
    pub(crate) fn client(&self) -> SchedulerClient<Channel> {
        self.client.clone()
    }

    /// Models as they are now, by name.
    pub(crate) async fn models(&self, all_versions: bool) -> Result<Vec<pb::ModelStatusResponse>, Failure> {
        self.model_status(None, all_versions).await.map_err(|s| self.failure(&s))
    }

    /// One model, if it is known; also one that was deleted.
    pub(crate) async fn model(
        &self,
        name: &str,
        all_versions: bool,
    ) -> Result<Option<pb::ModelStatusResponse>, Failure> {
        match self.model_status(Some(name), all_versions).await {
            Ok(found) => Ok(found.into_iter().next()),
            Err(status) if is_unknown(&status) => Ok(None),
            Err(status) => Err(self.failure(&status)),
        }
    }

    /// Servers as they are now, by name.
    pub(crate) async fn servers(&self) -> Result<Vec<pb::ServerStatusResponse>, Failure> {
        self.server_status(None).await.map_err(|s| self.failure(&s))
    }

    /// One server, if it is known.
    pub(crate) async fn server(&self, name: &str) -> Result<Option<pb::ServerStatusResponse>, Failure> {
        match self.server_status(Some(name)).await {
            Ok(found) => Ok(found.into_iter().next()),
            Err(status) if is_unknown(&status) => Ok(None),
            Err(status) => Err(self.failure(&status)),
        }
    }

    /// Every change of a model from now on, after the state of each.
    pub(crate) async fn watch_models(&self) -> Result<Changes<pb::ModelStatusResponse>, Failure> {
        let request =
            pb::ModelSubscriptionRequest { subscriber_name: SUBSCRIBER.into(), is_model_gateway: false };
        let mut client = self.client.clone();
        let stream = self.call(client.subscribe_model_status(request)).await.map_err(|s| self.failure(&s))?;
        Ok(Changes { scheduler: self.clone(), stream: stream.into_inner() })
    }

    /// Every change of a server from now on, after the state of each.
    pub(crate) async fn watch_servers(&self) -> Result<Changes<pb::ServerStatusResponse>, Failure> {
        let request = pb::ServerSubscriptionRequest { subscriber_name: SUBSCRIBER.into() };
        let mut client = self.client.clone();
        let stream =
            self.call(client.subscribe_server_status(request)).await.map_err(|s| self.failure(&s))?;
        Ok(Changes { scheduler: self.clone(), stream: stream.into_inner() })
    }

    /// Asks for a model.
    pub(crate) async fn load(&self, model: pb::Model) -> Result<(), Failure> {
        let mut client = self.client.clone();
        let request = pb::LoadModelRequest { model: Some(model) };
        self.call(client.load_model(changing(request))).await.map(|_| ()).map_err(|s| self.failure(&s))
    }

    /// Asks for servers.
    pub(crate) async fn expect(&self, server: pb::ServerNotify) -> Result<(), Failure> {
        let mut client = self.client.clone();
        let request = pb::ServerNotifyRequest { servers: vec![server], is_first_sync: false };
        self.call(client.server_notify(changing(request))).await.map(|_| ()).map_err(|s| self.failure(&s))
    }

    /// Deletes an object.
    pub(crate) async fn delete(&self, what: &Reference) -> Result<(), Failure> {
        match what.kind {
            Kind::Model => {
                let mut client = self.client.clone();
                let model = pb::ModelReference { name: what.name.clone(), version: None };
                let request = pb::UnloadModelRequest { model: Some(model), kubernetes_meta: None };
                self.call(client.unload_model(changing(request)))
                    .await
                    .map(|_| ())
                    .map_err(|s| self.failure(&s))
            }
            Kind::Server => {
                let server = pb::ServerNotify { name: what.name.clone(), shared: true, ..Default::default() };
                self.expect(server).await
            }
        }
    }

    /// That there is no such object, with the one that may have been meant.
    pub(crate) async fn unknown(&self, what: &Reference) -> String {
        let names: Vec<String> = match what.kind {
            Kind::Model => self
                .models(false)
                .await
                .map(|all| all.into_iter().filter(|m| !m.deleted).map(|m| m.model_name).collect()),
            Kind::Server => self.servers().await.map(|all| all.into_iter().map(|s| s.server_name).collect()),
        }
        .unwrap_or_default();
        match nearest(&what.name, names.iter().map(String::as_str).filter(|n| *n != what.name)) {
            Some(meant) => format!("{what} is not known. Did you mean {meant}?"),
            None => format!("{what} is not known"),
        }
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
        let late = || Status::deadline_exceeded("");
        tokio::time::timeout(self.deadline, call).await.unwrap_or_else(|_| Err(late()))
    }

    pub(super) fn failure(&self, status: &Status) -> Failure {
        let mut failure = failure(&self.address, self.deadline, status);
        // A server that wants one closes the connection, and what it says of it does not always arrive.
        if self.anonymous
            && failure.exit == Exit::Unavailable
            && !failure.message.contains("--tls-client-cert")
        {
            failure.message +=
                "; it may want a client certificate: name one with --tls-client-cert and --tls-client-key";
        }
        failure
    }
}

/// What a refusal of the scheduler means to a person and to the shell.
fn failure(address: &Address, deadline: Duration, status: &Status) -> Failure {
    match status.code() {
        Code::DeadlineExceeded if status.message().is_empty() => Failure::new(
            Exit::Timeout,
            format!("the scheduler at {address} did not answer within {deadline:?}"),
        ),
        Code::DeadlineExceeded => Failure::new(Exit::Timeout, status.message()),
        Code::FailedPrecondition | Code::InvalidArgument | Code::Unimplemented => {
            Failure::new(Exit::Refused, refusal(status).unwrap_or_else(|| status.message().to_owned()))
        }
        Code::Unavailable | Code::Cancelled | Code::Unknown => Failure::unavailable(format!(
            "the scheduler at {address} broke off: {}",
            match (status.source(), status.message()) {
                (Some(_), _) => explain(status),
                (None, "") => "the connection ended".to_owned(),
                (None, message) => message.to_owned(),
            }
        )),
        // Not a word of the scheduler's own: what came back is not HTTP/2.
        Code::Internal if status.source().is_some() => Failure::unavailable(format!(
            "what answers at {address} does not speak gRPC without TLS ({}): if it is the scheduler's TLS port, name \
             the CA with --tls-ca",
            explain(status)
        )),
        code => {
            Failure::failed(format!("the scheduler at {address} answered {code:?}: {}", status.message()))
        }
    }
}

/// A name that is not known is refused like any other request that cannot be met.
pub(super) fn is_unknown(status: &Status) -> bool {
    matches!(status.code(), Code::FailedPrecondition | Code::NotFound)
}

/// The words of a refusal on behalf of an object's owner: whose it is, and on a line of its own how to take it over.
pub(crate) fn refusal(status: &Status) -> Option<String> {
    const REMEDY: &str = "To take it over";
    if status.code() != Code::FailedPrecondition || !status.message().contains("gantry adopt ") {
        return None;
    }
    Some(match status.message().split_once(REMEDY) {
        Some((whose, how)) => format!("{}\n{REMEDY}{how}", whose.trim_end()),
        None => status.message().to_owned(),
    })
}

/// Everything in a stream that ends.
pub(crate) async fn collect<T>(mut stream: Streaming<T>) -> Result<Vec<T>, Status> {
    let mut all = Vec::new();
    while let Some(one) = stream.message().await? {
        all.push(one);
    }
    Ok(all)
}

/// A subscription.
pub(crate) struct Changes<T> {
    scheduler: Scheduler,
    stream: Streaming<T>,
}

impl<T> Changes<T> {
    /// The next change. It has no deadline: nothing may happen for as long as it likes.
    pub(crate) async fn next(&mut self) -> Result<T, Failure> {
        match self.stream.message().await {
            Ok(Some(change)) => Ok(change),
            Ok(None) => Err(self.scheduler.failure(&Status::unavailable("it is stopping"))),
            Err(status) => Err(self.scheduler.failure(&status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_words_and_codes() {
        let address = Address::parse("h:1", 9004, "").unwrap();
        for (status, exit, says) in [
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
                "the scheduler at h:1 broke off: the connection ended",
            ),
            (
                Status::unknown("transport error"),
                Exit::Unavailable,
                "the scheduler at h:1 broke off: transport error",
            ),
            (Status::internal("x"), Exit::Failed, "the scheduler at h:1 answered Internal: x"),
        ] {
            let got = failure(&address, Duration::from_secs(5), &status);
            assert_eq!((got.exit, got.message.as_str()), (exit, says));
        }
    }
}
