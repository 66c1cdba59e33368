//! Answers that the gateway gives itself.

use crate::{body::ResponseBody, metrics::Protocol, routes::Refused};
use gantry_oip::{
    Code, Error,
    server::{self, Reply},
};
use http::Response;

/// Makes an answer of our own a response.
pub(super) fn own(response: Response<Reply>) -> Response<ResponseBody> {
    response.map(ResponseBody::Whole)
}

/// An error in the form of the protocol.
pub(super) fn error(error: &Error, protocol: Protocol) -> Response<ResponseBody> {
    own(match protocol {
        Protocol::Rest => server::rest_error(error),
        Protocol::Grpc => server::grpc_error(error),
    })
}

/// What a client is told when its model has no target.
pub(super) fn refused(refused: &Refused, model: &str, protocol: Protocol, nearest: Option<String>) -> Error {
    match refused {
        Refused::Unknown => {
            // The reference answers an unknown model so.
            let code = if protocol == Protocol::Grpc { Code::Unimplemented } else { Code::NotFound };
            let shown: String = model.chars().take(100).collect();
            let hint = nearest.map(|name| format!(": did you mean {name:?}?")).unwrap_or_default();
            Error::new(code, format!("there is no model {shown:?}{hint}"))
        }
        Refused::NoReplica { reason, .. } if reason.is_empty() => {
            Error::unavailable(format!("model {model} has no replica that serves it yet"), 1)
        }
        Refused::NoReplica { reason, .. } => {
            Error::unavailable(format!("model {model} is not served: {reason}"), 1)
        }
        Refused::AllOpen { replicas, wait } => {
            let seconds = u32::try_from(wait.div_ceil(1000)).unwrap_or(u32::MAX).max(1);
            Error::unavailable(
                format!("all replicas of model {model} ({replicas}) failed lately: try again in {seconds} s"),
                seconds,
            )
        }
        Refused::Full { replicas } => Error {
            retry_after: Some(1),
            ..Error::new(
                Code::ResourceExhausted,
                format!(
                    "all replicas of model {model} ({replicas}) have as many requests as they may: try again in 1 s"
                ),
            )
        },
    }
}
