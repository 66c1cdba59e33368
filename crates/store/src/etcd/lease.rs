//! How long this process leads, on a monotonic clock.

use super::client::Client;
use super::failure::Failure;
use crate::StoreError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A renewal that is not answered goes to the next member.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Times of a lease. etcd counts from the arrival of the last renewal, so its sender may lead for less than that from the
/// moment of sending: the rest is for clocks that differ in speed, and for orders that are on their way to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) ttl: Duration,
    /// How long the holder leads without another renewal.
    pub(super) valid: Duration,
    pub(super) interval: Duration,
}

impl Times {
    pub(super) fn of(ttl: Duration) -> Self {
        Self { ttl, valid: ttl * 4 / 5, interval: ttl / 8 }
    }
}

/// The lease of the leader. Once lost, it stays lost.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) id: i64,
    times: Times,
    valid_until: Mutex<Instant>,
    lost: watch::Sender<Option<String>>,
}

impl Lease {
    /// `sent` is the time before the request that granted it.
    pub(super) fn new(id: i64, times: Times, sent: Instant) -> Arc<Self> {
        let valid_until = Mutex::new(sent + times.valid);
        Arc::new(Self { id, times, valid_until, lost: watch::Sender::new(None) })
    }

    fn valid_until(&self) -> Instant {
        *self.valid_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renewed(&self, sent: Instant) {
        *self.valid_until.lock().unwrap_or_else(PoisonError::into_inner) = sent + self.times.valid;
    }

    /// The first reason counts.
    pub(super) fn lose(&self, reason: impl Into<String>) {
        self.lost.send_if_modified(|lost| {
            let first = lost.is_none();
            if first {
                *lost = Some(reason.into());
            }
            first
        });
    }

    /// Time that is left, or why there is none. The clock decides: a process that was suspended past the deadline finds
    /// the lease lost at its first look.
    pub(super) fn left(&self) -> Result<Duration, StoreError> {
        let left = self.valid_until().saturating_duration_since(Instant::now());
        if left.is_zero() {
            self.lose(format!("its lease was not renewed for {:?}", self.times.valid));
        }
        match self.lost.borrow().clone() {
            Some(reason) => Err(StoreError::Lost { reason, unknown: false }),
            None => Ok(left),
        }
    }

    /// Waits until it is lost, and returns the reason.
    pub(super) async fn ended(&self) -> String {
        let mut lost = self.lost.subscribe();
        loop {
            match self.left() {
                Err(StoreError::Lost { reason, .. }) => return reason,
                Err(other) => return other.to_string(),
                // A renewal may extend it meanwhile.
                Ok(left) => {
                    let _ = tokio::time::timeout(left, lost.wait_for(Option::is_some)).await;
                }
            }
        }
    }

    /// Renews it until it is lost.
    pub(super) async fn keep(self: Arc<Self>, client: Arc<Client>) {
        let mut failure = None;
        loop {
            let wait = if failure.is_some() { RETRY_DELAY } else { self.times.interval };
            tokio::time::sleep(wait).await;
            let Ok(left) = self.left() else { return };
            let sent = Instant::now();
            match client.keep_alive(self.id, left.min(RENEWAL_TIMEOUT)).await {
                Ok(0) => self.lose("etcd has no such lease any more: it expired or was revoked"),
                Ok(_) => {
                    self.renewed(sent);
                    if failure.take().is_some() {
                        tracing::info!("lease renewed again");
                    }
                }
                Err(error) => {
                    let reason = Failure::reason(&error);
                    if failure.is_none() {
                        tracing::warn!(%reason, "the lease could not be renewed; retrying");
                    }
                    if self.left().is_err() {
                        return;
                    }
                    let until = self.valid_until();
                    if Instant::now() + RETRY_DELAY >= until {
                        self.lose(format!(
                            "its lease could not be renewed for {:?}: {reason}",
                            self.times.valid
                        ));
                    }
                    failure = Some(reason);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_stops_before_etcd_gives_the_lease_away() {
        let times = Times::of(Duration::from_secs(5));
        assert!(times.valid + RENEWAL_TIMEOUT <= times.ttl, "a call that is under way ends before, too");
        assert!(times.interval * 3 < times.valid);
    }

    #[tokio::test(start_paused = true)]
    async fn lease_is_lost_by_the_clock_alone_and_stays_lost() {
        let times = Times::of(Duration::from_secs(5));
        let sent = Instant::now();
        let lease = Lease::new(1, times, sent);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(lease.left().unwrap(), Duration::from_secs(1));
        lease.renewed(Instant::now());
        tokio::time::advance(Duration::from_millis(3999)).await;
        assert!(lease.left().is_ok());
        tokio::time::advance(Duration::from_millis(1)).await;
        let error = lease.left().unwrap_err();
        assert!(error.is_lost() && error.to_string().contains("not renewed for 4s"), "{error}");
        // An answer that arrives late.
        lease.renewed(Instant::now());
        lease.lose("another reason");
        assert!(lease.left().unwrap_err().to_string().contains("not renewed for 4s"));
        assert!(lease.ended().await.contains("not renewed for 4s"));
    }
}
