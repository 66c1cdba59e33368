//! Whether a request that failed goes to another replica.

/// What is known of a failed try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Try {
    /// Bytes of the request reached the replica, or may have: it could have begun to work.
    pub sent: bool,
    /// The whole request is still here and can be sent again.
    pub replayable: bool,
    /// Tries so far, this one included.
    pub tries: u32,
}

/// The most tries of one request.
pub const MOST: u32 = 4;

/// Whether to try another replica: only where nothing was sent, so that no model runs twice for one request.
pub const fn again(failed: Try) -> bool {
    !failed.sent && failed.replayable && failed.tries < MOST
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_is_ever_sent_twice(sent in any::<bool>(), replayable in any::<bool>(), tries in 0u32..10) {
            if again(Try { sent, replayable, tries }) {
                prop_assert!(!sent && replayable && tries < MOST);
            } else {
                prop_assert!(sent || !replayable || tries >= MOST);
            }
        }
    }
}
