//! Calls that change something in a scheduler, and what their answers mean.

use gantry_core::mutant;
use gantry_proto::scheduler::{self as pb, scheduler_client::SchedulerClient};
use std::{future::Future, time::Duration};
use tonic::{Code, Request, Response, Status, transport::Channel};

/// How long a call may take.
const CALL_TIME: Duration = Duration::from_secs(10);

/// What a scheduler made of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Done,
    /// It was refused, and will be until something changes: why.
    Refused(String),
    /// There was no answer, or one that may be another next time.
    Later(String),
}

/// Loads a model.
pub(super) async fn load(client: &mut SchedulerClient<Channel>, model: pb::Model) -> Answer {
    answer(client.load_model(timed(pb::LoadModelRequest { model: Some(model) }))).await
}

/// Unloads a model. One that is not there is as good as unloaded.
pub(super) async fn unload(client: &mut SchedulerClient<Channel>, request: pb::UnloadModelRequest) -> Answer {
    answer(client.unload_model(timed(request))).await
}

/// Announces servers.
pub(super) async fn notify(
    client: &mut SchedulerClient<Channel>,
    servers: Vec<pb::ServerNotify>,
    is_first_sync: bool,
) -> Answer {
    answer(client.server_notify(timed(pb::ServerNotifyRequest { servers, is_first_sync }))).await
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_TIME);
    request
}

async fn answer<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Answer {
    match tokio::time::timeout(CALL_TIME, call).await {
        Ok(Ok(_)) => Answer::Done,
        Ok(Err(status)) => match status.code() {
            Code::FailedPrecondition
            | Code::Unimplemented
            | Code::InvalidArgument
            | Code::PermissionDenied
                if !mutant::is("takes_refusals_for_silence") =>
            {
                Answer::Refused(status.message().to_owned())
            }
            _ => Answer::Later(format!("the scheduler answers: {}", status.message())),
        },
        Err(_) => Answer::Later(format!("the scheduler did not answer within {} s", CALL_TIME.as_secs())),
    }
}
