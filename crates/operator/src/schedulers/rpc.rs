//! Mutating scheduler calls and the classification of their results.

use gantry_proto::scheduler::{self as pb, scheduler_client::SchedulerClient};
use std::{future::Future, time::Duration};
use tonic::{Code, Request, Response, Status, transport::Channel};

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RpcOutcome {
    Accepted,
    /// Permanent until the object or the scheduler changes; with the reason.
    Rejected(String),
    /// Retryable; with the reason.
    Unavailable(String),
}

pub(super) async fn load(client: &mut SchedulerClient<Channel>, model: pb::Model) -> RpcOutcome {
    classify(client.load_model(with_timeout(pb::LoadModelRequest { model: Some(model) }))).await
}

/// Unloading an unknown model is accepted.
pub(super) async fn unload(
    client: &mut SchedulerClient<Channel>,
    request: pb::UnloadModelRequest,
) -> RpcOutcome {
    classify(client.unload_model(with_timeout(request))).await
}

pub(super) async fn notify(
    client: &mut SchedulerClient<Channel>,
    servers: Vec<pb::ServerNotify>,
    is_first_sync: bool,
) -> RpcOutcome {
    classify(client.server_notify(with_timeout(pb::ServerNotifyRequest { servers, is_first_sync }))).await
}

fn with_timeout<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

async fn classify<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> RpcOutcome {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(Ok(_)) => RpcOutcome::Accepted,
        Ok(Err(status)) => match status.code() {
            Code::FailedPrecondition
            | Code::Unimplemented
            | Code::InvalidArgument
            | Code::PermissionDenied => RpcOutcome::Rejected(status.message().to_owned()),
            _ => RpcOutcome::Unavailable(format!("scheduler error: {}", status.message())),
        },
        Err(_) => {
            RpcOutcome::Unavailable(format!("scheduler request timed out after {} s", CALL_TIMEOUT.as_secs()))
        }
    }
}
