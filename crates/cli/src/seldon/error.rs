//! Errors in the format of the Seldon CLI: `Error: `, the gRPC code if any, the message.

use crate::{
    client::ownership_refusal,
    error::{CommandError, Exit},
};
use tonic::{Code, Status};

pub(super) fn failed(message: impl std::fmt::Display) -> CommandError {
    CommandError::failed(format!("Error: {message}"))
}

pub(super) fn usage(message: impl std::fmt::Display) -> CommandError {
    CommandError::usage(format!("Error: {message}"))
}

/// Adds the `Error: ` prefix.
pub(super) fn other(error: CommandError) -> CommandError {
    if error.message.is_empty() || error.message.starts_with("Error: ") {
        return error;
    }
    CommandError::new(error.exit, format!("Error: {}", error.message))
}

/// A gRPC status. Started as `gantry`, an ownership conflict has the message of Gantry's own commands.
pub(super) fn status(status: &Status, as_seldon: bool) -> CommandError {
    let exit = match status.code() {
        Code::NotFound => Exit::NotFound,
        Code::Unavailable | Code::ResourceExhausted | Code::Unknown | Code::Cancelled => Exit::Unavailable,
        Code::DeadlineExceeded => Exit::Timeout,
        Code::FailedPrecondition | Code::InvalidArgument | Code::Unimplemented => Exit::Refused,
        _ => Exit::Failed,
    };
    if !as_seldon && let Some(message) = ownership_refusal(status) {
        return CommandError::new(exit, message);
    }
    CommandError::new(
        exit,
        format!("Error: rpc error: code = {} desc = {}", code(status.code()), status.message()),
    )
}

/// The code as grpc-go formats it.
fn code(code: Code) -> String {
    match code {
        Code::Ok => "OK".into(),
        Code::Cancelled => "Canceled".into(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_maps_to_go_format_and_exit_code() {
        let owned = "iris belongs to the operator. To take it over on purpose: gantry adopt model/iris";
        for (given, as_seldon, exit, message) in [
            (
                Status::failed_precondition("no"),
                false,
                Exit::Refused,
                "Error: rpc error: code = FailedPrecondition desc = no",
            ),
            (Status::cancelled("x"), true, Exit::Unavailable, "Error: rpc error: code = Canceled desc = x"),
            (
                Status::failed_precondition(owned),
                false,
                Exit::Refused,
                "iris belongs to the operator.\nTo take it over on purpose: gantry adopt model/iris",
            ),
            (
                Status::failed_precondition(owned),
                true,
                Exit::Refused,
                "Error: rpc error: code = FailedPrecondition desc = iris belongs to the operator. \
                 To take it over on purpose: gantry adopt model/iris",
            ),
        ] {
            let got = status(&given, as_seldon);
            assert_eq!((got.exit, got.message.as_str()), (exit, message));
        }
    }
}
