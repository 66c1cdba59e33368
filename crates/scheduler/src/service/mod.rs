//! The gRPC services: they turn requests into engine commands, and the read model into responses.

mod agent;
mod control;
mod experiments;
mod health;
mod identity;
mod models;
mod pipelines;
mod rollouts;
mod routing;
mod services;
mod subscribe;

pub(crate) use agent::Agents;
pub(crate) use control::Control;
pub(crate) use health::Health;
pub(crate) use models::Models;
pub(crate) use rollouts::Rollouts;
pub(crate) use routing::Gateways;
pub(crate) use services::Services;

use crate::engine::CommandError;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

/// A subscriber that receives nothing for this long is dropped.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
const DEADLINE: Duration = Duration::from_secs(30);
/// Messages buffered per subscriber.
const WINDOW: usize = 64;

pub(crate) type Stream<T> = ReceiverStream<Result<T, Status>>;

/// `false` when the subscriber is gone or does not read.
async fn deliver<T>(to: &mpsc::Sender<Result<T, Status>>, message: T) -> bool {
    matches!(tokio::time::timeout(SEND_TIMEOUT, to.send(Ok(message))).await, Ok(Ok(())))
}

impl From<CommandError> for Status {
    fn from(error: CommandError) -> Self {
        let code = match &error {
            CommandError::Rejected(_) => Code::FailedPrecondition,
            CommandError::NotStored { full: true, .. } => Code::ResourceExhausted,
            CommandError::NotStored { full: false, .. }
            | CommandError::Lost { .. }
            | CommandError::Stopping => Code::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}

impl From<crate::convert::Invalid> for Status {
    fn from(invalid: crate::convert::Invalid) -> Self {
        Self::failed_precondition(invalid.to_string())
    }
}

async fn within_deadline(command: impl Future<Output = Result<(), CommandError>>) -> Result<(), Status> {
    match tokio::time::timeout(DEADLINE, command).await {
        Ok(result) => result.map_err(Status::from),
        Err(_) => Err(Status::deadline_exceeded(
            "the scheduler did not commit in time; the change may still be applied",
        )),
    }
}

async fn answer<T>(query: impl Future<Output = Result<T, CommandError>>) -> Result<T, Status> {
    match tokio::time::timeout(DEADLINE, query).await {
        Ok(result) => result.map_err(Status::from),
        Err(_) => Err(Status::deadline_exceeded("the scheduler did not respond in time")),
    }
}
