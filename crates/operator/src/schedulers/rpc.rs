//! Mutating scheduler calls and the classification of their results.

use super::views::owner;
use crate::{cluster::Key, plan::SchedulerAction};
use gantry_proto::{
    gantry::{
        DeletePolicyRequest, ServiceName, rollouts_client::RolloutsClient, services_client::ServicesClient,
    },
    scheduler::{self as pb, scheduler_client::SchedulerClient},
};
use std::{future::Future, time::Duration};
use tonic::{Code, Request, Response, Status, metadata::MetadataValue, transport::Channel};

pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The generation that a load replaces; Seldon's scheduler ignores it.
const REPLACES: &str = "gantry-replaces-generation";
/// The owner on whose behalf an object is unloaded, where the request has no field for it; Seldon's scheduler ignores it.
const MANAGER: &str = "gantry-manager";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RpcOutcome {
    Accepted,
    /// Permanent until the object or the scheduler changes; with the reason.
    Rejected(String),
    /// Retryable; with the reason.
    Unavailable(String),
}

/// Sends a request for an object of a namespace. Unloading an unknown model is accepted.
pub(super) async fn send(
    channel: Channel,
    namespace: &str,
    action: SchedulerAction,
    limit: Duration,
) -> RpcOutcome {
    let client = &mut SchedulerClient::new(channel.clone());
    let mut rollouts = RolloutsClient::new(channel.clone());
    let mut services = ServicesClient::new(channel);
    match action {
        SchedulerAction::LoadModel { model, replaces } => {
            let request = replacing(pb::LoadModelRequest { model: Some(*model) }, replaces, limit);
            classify(client.load_model(request), limit).await
        }
        SchedulerAction::UnloadModel(request) => {
            classify(client.unload_model(with_timeout(request, limit)), limit).await
        }
        SchedulerAction::LoadPipeline { pipeline, replaces } => {
            let request = replacing(pb::LoadPipelineRequest { pipeline: Some(*pipeline) }, replaces, limit);
            classify(client.load_pipeline(request), limit).await
        }
        SchedulerAction::UnloadPipeline(name) => {
            let request = owned(pb::UnloadPipelineRequest { name }, namespace, limit);
            classify(client.unload_pipeline(request), limit).await
        }
        SchedulerAction::StartExperiment { experiment, replaces } => {
            let message = pb::StartExperimentRequest { experiment: Some(*experiment) };
            classify(client.start_experiment(replacing(message, replaces, limit)), limit).await
        }
        SchedulerAction::StopExperiment(name) => {
            let request = owned(pb::StopExperimentRequest { name }, namespace, limit);
            classify(client.stop_experiment(request), limit).await
        }
        SchedulerAction::PutPolicy(policy) => {
            let call = rollouts.put_policy(owned(*policy, namespace, limit));
            classify(async { call.await.map_err(without_rollouts) }, limit).await
        }
        SchedulerAction::DeletePolicy(name) => {
            let request = owned(DeletePolicyRequest { name }, namespace, limit);
            classify(rollouts.delete_policy(request), limit).await
        }
        SchedulerAction::NotifyServer(server) => notify(client, vec![server], false, limit).await,
        SchedulerAction::PutService { route, .. } => {
            classify(services.put_service(with_timeout(*route, limit)), limit).await
        }
        SchedulerAction::DeleteService { service: Key { namespace, name }, .. } => {
            let request = with_timeout(ServiceName { namespace, name }, limit);
            classify(services.delete_service(request), limit).await
        }
        SchedulerAction::AcknowledgeScaling => RpcOutcome::Accepted,
    }
}

/// Seldon's scheduler and earlier versions of Gantry's have no rollouts.
fn without_rollouts(status: Status) -> Status {
    if status.code() == Code::Unimplemented {
        return Status::unimplemented(
            "the scheduler has no rollouts: run Gantry's scheduler in this version",
        );
    }
    status
}

pub(super) async fn notify(
    client: &mut SchedulerClient<Channel>,
    servers: Vec<pb::ServerNotify>,
    is_first_sync: bool,
    limit: Duration,
) -> RpcOutcome {
    let request = with_timeout(pb::ServerNotifyRequest { servers, is_first_sync }, limit);
    classify(client.server_notify(request), limit).await
}

/// The scheduler ends the call at the same time.
fn with_timeout<T>(message: T, limit: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

fn replacing<T>(message: T, replaces: i64, limit: Duration) -> Request<T> {
    let mut request = with_timeout(message, limit);
    request.metadata_mut().insert(REPLACES, replaces.into());
    request
}

fn owned<T>(message: T, namespace: &str, limit: Duration) -> Request<T> {
    let mut request = with_timeout(message, limit);
    // Names of namespaces are ASCII.
    if let Ok(value) = MetadataValue::try_from(owner(namespace)) {
        request.metadata_mut().insert(MANAGER, value);
    }
    request
}

async fn classify<T>(call: impl Future<Output = Result<Response<T>, Status>>, limit: Duration) -> RpcOutcome {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(_)) => RpcOutcome::Accepted,
        Ok(Err(status)) => match status.code() {
            Code::FailedPrecondition
            | Code::Unimplemented
            | Code::InvalidArgument
            | Code::PermissionDenied => RpcOutcome::Rejected(status.message().to_owned()),
            _ => RpcOutcome::Unavailable(format!("scheduler error: {}", status.message())),
        },
        Err(_) => RpcOutcome::Unavailable(format!("scheduler request timed out after {} s", limit.as_secs())),
    }
}
