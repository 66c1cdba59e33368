//! Classes of request results in the statistics of rollouts.

use gantry_transport::Protocol;

/// How a request ended. Every request is in one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultClass {
    Success,
    /// A 4xx status, cancellations by the client included.
    ClientError,
    /// A 5xx status.
    ServerError,
    Timeout,
    /// The connection was refused or lost.
    NoResponse,
}

impl ResultClass {
    pub const COUNT: usize = 5;

    /// The class of a response. gRPC codes count as the HTTP status that they map to.
    pub const fn of(protocol: Protocol, code: u16) -> Self {
        match protocol {
            Protocol::Rest => match code {
                504 => Self::Timeout,
                400..=499 => Self::ClientError,
                500.. => Self::ServerError,
                _ => Self::Success,
            },
            Protocol::Grpc => match code {
                0 => Self::Success,
                // DEADLINE_EXCEEDED
                4 => Self::Timeout,
                // UNKNOWN, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS, and codes that gRPC does not define.
                2 | 12..=15 | 17.. => Self::ServerError,
                _ => Self::ClientError,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ResultClass::{ClientError, ServerError, Success, Timeout};

    #[test]
    fn codes_have_the_class_of_their_http_status() {
        for (protocol, codes, class) in [
            (Protocol::Rest, &[200, 204, 302][..], Success),
            (Protocol::Rest, &[400, 404, 422, 429, 499], ClientError),
            (Protocol::Rest, &[500, 501, 502, 503, 599], ServerError),
            (Protocol::Rest, &[504], Timeout),
            (Protocol::Grpc, &[0], Success),
            (Protocol::Grpc, &[1, 3, 5, 6, 7, 8, 9, 10, 11, 16], ClientError),
            (Protocol::Grpc, &[2, 12, 13, 14, 15, 17, 99], ServerError),
            (Protocol::Grpc, &[4], Timeout),
        ] {
            for code in codes {
                assert_eq!(ResultClass::of(protocol, *code), class, "{protocol:?} {code}");
            }
        }
    }
}
