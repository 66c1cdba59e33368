//! Calls of the scheduler, each with a deadline.

use gantry_proto::{
    gantry::{
        self as own, ExplainRequest, Explanation, ListPoliciesRequest, RolloutPolicy,
        control_client::ControlClient, rollouts_client::RolloutsClient,
    },
    scheduler::{
        ExperimentStatusRequest, ExperimentStatusResponse, ModelReference, ModelStatusRequest,
        ModelStatusResponse, PipelineStatusRequest, PipelineStatusResponse, ServerStatusRequest,
        ServerStatusResponse, scheduler_client::SchedulerClient,
    },
};
use std::{future::Future, time::Duration};
use tonic::{Code, Request, Status, Streaming, metadata::MetadataValue, transport::Channel};

const TIMEOUT: Duration = Duration::from_secs(10);
/// The status of a server lists its replicas.
const MAX_MESSAGE: usize = 64 << 20;
pub(crate) const SUBSCRIBER: &str = "dashboard";

#[derive(Clone, Debug)]
pub(crate) struct Scheduler {
    channel: Channel,
}

impl Scheduler {
    pub(crate) const fn new(channel: Channel) -> Self {
        Self { channel }
    }

    pub(crate) fn client(&self) -> SchedulerClient<Channel> {
        SchedulerClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub(crate) fn control(&self) -> ControlClient<Channel> {
        ControlClient::new(self.channel.clone())
    }

    pub(crate) fn rollouts(&self) -> RolloutsClient<Channel> {
        RolloutsClient::new(self.channel.clone())
    }

    pub(crate) async fn models(
        &self,
        name: Option<&str>,
        all_versions: bool,
    ) -> Result<Vec<ModelStatusResponse>, Status> {
        let model = name.map(|name| ModelReference { name: name.to_owned(), version: None });
        let request = ModelStatusRequest { subscriber_name: SUBSCRIBER.into(), model, all_versions };
        let mut client = self.client();
        within(async { collect(client.model_status(request).await?.into_inner()).await }).await
    }

    pub(crate) async fn servers(&self, name: Option<&str>) -> Result<Vec<ServerStatusResponse>, Status> {
        let name = name.map(str::to_owned);
        let request = ServerStatusRequest { subscriber_name: SUBSCRIBER.into(), name };
        let mut client = self.client();
        within(async { collect(client.server_status(request).await?.into_inner()).await }).await
    }

    pub(crate) async fn pipelines(
        &self,
        name: Option<&str>,
        all_versions: bool,
    ) -> Result<Vec<PipelineStatusResponse>, Status> {
        let name = name.map(str::to_owned);
        let request = PipelineStatusRequest { subscriber_name: SUBSCRIBER.into(), name, all_versions };
        let mut client = self.client();
        within(async { collect(client.pipeline_status(request).await?.into_inner()).await }).await
    }

    pub(crate) async fn experiments(
        &self,
        name: Option<&str>,
    ) -> Result<Vec<ExperimentStatusResponse>, Status> {
        let name = name.map(str::to_owned);
        let request = ExperimentStatusRequest { subscriber_name: SUBSCRIBER.into(), name };
        let mut client = self.client();
        within(async { collect(client.experiment_status(request).await?.into_inner()).await }).await
    }

    pub(crate) async fn policies(&self) -> Result<Vec<RolloutPolicy>, Status> {
        let mut client = self.rollouts();
        let listed = within(client.list_policies(ListPoliciesRequest {})).await;
        optional(listed.map(|response| response.into_inner().policies))
    }

    /// `None` if the scheduler does not explain: it is another one than Gantry's, or this process may not read it.
    pub(crate) async fn explain(&self, kind: &str, name: &str) -> Result<Option<Explanation>, Status> {
        let request = ExplainRequest { kind: kind.to_owned(), name: name.to_owned() };
        let mut client = self.control();
        let explained = within(client.explain(request)).await;
        optional(explained.map(|response| Some(response.into_inner())))
    }

    pub(crate) async fn plan(&self, request: own::PlanRequest) -> Result<Vec<own::PlannedChange>, Status> {
        let mut client = self.control();
        within(client.plan(as_cli(request))).await.map(|response| response.into_inner().changes)
    }
}

/// On behalf of the owner of the commands: objects that a page applies can be changed by commands, and the other way round.
pub(crate) fn as_cli<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(TIMEOUT);
    request.metadata_mut().insert("gantry-manager", MetadataValue::from_static("cli"));
    request
}

/// Whether an error is that of a name that is not known.
pub(crate) fn is_unknown(status: &Status) -> bool {
    matches!(status.code(), Code::FailedPrecondition | Code::NotFound)
}

/// Whether a call is not available in this set-up, rather than failed.
pub(crate) fn is_missing(status: &Status) -> bool {
    matches!(status.code(), Code::Unimplemented | Code::PermissionDenied)
}

fn optional<T: Default>(result: Result<T, Status>) -> Result<T, Status> {
    match result {
        Err(status) if is_missing(&status) => Ok(T::default()),
        other => other,
    }
}

pub(crate) async fn within<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let expired =
        |_| Err(Status::deadline_exceeded(format!("the scheduler did not answer within {TIMEOUT:?}")));
    tokio::time::timeout(TIMEOUT, call).await.unwrap_or_else(expired)
}

async fn collect<T>(mut stream: Streaming<T>) -> Result<Vec<T>, Status> {
    let mut all = Vec::new();
    while let Some(message) = stream.message().await? {
        all.push(message);
    }
    Ok(all)
}
