//! Failures in this dialect: `Error: `, then the code where one came, then our words.

use crate::{
    client::refusal,
    failure::{Exit, Failure},
};
use tonic::{Code, Status};

/// A failure without a code of its own.
pub(super) fn failed(message: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("Error: {message}"))
}

/// The command line, a file or data is wrong.
pub(super) fn usage(message: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("Error: {message}"))
}

/// The words of another failure, in this dialect.
pub(super) fn other(failure: Failure) -> Failure {
    if failure.message.is_empty() || failure.message.starts_with("Error: ") {
        return failure;
    }
    Failure::new(failure.exit, format!("Error: {}", failure.message))
}

/// What a gRPC peer refused. Under our own name, a refusal on behalf of an owner is told as our verbs tell it.
pub(super) fn status(status: &Status, as_seldon: bool) -> Failure {
    let exit = match status.code() {
        Code::NotFound => Exit::NotFound,
        Code::Unavailable | Code::ResourceExhausted | Code::Unknown | Code::Cancelled => Exit::Unavailable,
        Code::DeadlineExceeded => Exit::Timeout,
        Code::FailedPrecondition | Code::InvalidArgument | Code::Unimplemented => Exit::Refused,
        _ => Exit::Failed,
    };
    if !as_seldon && let Some(words) = refusal(status) {
        return Failure::new(exit, words);
    }
    Failure::new(
        exit,
        format!("Error: rpc error: code = {} desc = {}", code(status.code()), status.message()),
    )
}

/// A code as gRPC for Go spells it.
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
    fn shapes_and_codes() {
        let owned = "iris belongs to the operator. To take it over on purpose: gantry adopt model/iris";
        for (given, as_seldon, exit, says) in [
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
            assert_eq!((got.exit, got.message.as_str()), (exit, says));
        }
    }
}
