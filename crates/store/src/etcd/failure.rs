//! What a failed call to etcd means for the change.

use tonic::{Code, Status};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Nothing was stored, and a repeated call fails too.
    Refused { reason: String, full: bool },
    /// The space quota is used up. etcd applies the transaction that exceeds it and answers with this error all the same:
    /// only a read shows whether it is stored.
    NoSpace,
    /// The call may have been applied, or may be applied later.
    Unknown(String),
    /// The token is not valid any more.
    Unauthenticated(String),
}

impl Failure {
    pub(super) fn of(status: &Status) -> Self {
        let text = status.message().trim_start_matches("etcdserver: ").to_owned();
        match status.code() {
            Code::ResourceExhausted if text.contains("database space exceeded") => Self::NoSpace,
            // Rejected before it is proposed.
            Code::ResourceExhausted
            | Code::InvalidArgument
            | Code::PermissionDenied
            | Code::Unimplemented => Self::Refused { reason: text, full: false },
            Code::Unauthenticated => Self::Unauthenticated(text),
            code => Self::Unknown(if text.is_empty() { code.to_string() } else { text }),
        }
    }

    pub(super) fn reason(&self) -> String {
        match self {
            Self::Refused { reason, .. } | Self::Unknown(reason) | Self::Unauthenticated(reason) => {
                reason.clone()
            }
            Self::NoSpace => NO_SPACE.into(),
        }
    }
}

/// The reason and the remedy.
pub(super) const NO_SPACE: &str = "its space quota is used up (alarm NOSPACE): compact and defragment it or raise \
                                   --quota-backend-bytes, then run `etcdctl alarm disarm`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_given_before_the_proposal_are_definite() {
        let refused = |reason: &str| Failure::Refused { reason: reason.into(), full: false };
        for (status, expected) in [
            (Status::invalid_argument("etcdserver: request is too large"), refused("request is too large")),
            (Status::resource_exhausted("etcdserver: too many requests"), refused("too many requests")),
            (Status::permission_denied("etcdserver: permission denied"), refused("permission denied")),
            (Status::resource_exhausted("etcdserver: mvcc: database space exceeded"), Failure::NoSpace),
            (
                Status::unavailable("etcdserver: request timed out"),
                Failure::Unknown("request timed out".into()),
            ),
            (
                Status::deadline_exceeded(""),
                Failure::Unknown("Deadline expired before operation could complete".into()),
            ),
            (Status::unknown("transport error"), Failure::Unknown("transport error".into())),
            (Status::internal("h2"), Failure::Unknown("h2".into())),
            (
                Status::unauthenticated("etcdserver: invalid auth token"),
                Failure::Unauthenticated("invalid auth token".into()),
            ),
        ] {
            assert_eq!(Failure::of(&status), expected, "{status:?}");
        }
    }
}
