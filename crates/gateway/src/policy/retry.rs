//! Retry policy.

/// A failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Bytes may have reached the replica, so the model may have run.
    pub sent: bool,
    /// The request is fully buffered.
    pub replayable: bool,
    /// Attempts so far, including this one.
    pub attempts: u32,
}

pub const MAX_ATTEMPTS: u32 = 4;

/// Retries only what was never sent, so that no request runs twice.
pub const fn should_retry(failed: Attempt) -> bool {
    !failed.sent && failed.replayable && failed.attempts < MAX_ATTEMPTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sent_request_is_never_retried(sent in any::<bool>(), replayable in any::<bool>(), attempts in 0u32..10) {
            if should_retry(Attempt { sent, replayable, attempts }) {
                prop_assert!(!sent && replayable && attempts < MAX_ATTEMPTS);
            } else {
                prop_assert!(sent || !replayable || attempts >= MAX_ATTEMPTS);
            }
        }
    }
}
