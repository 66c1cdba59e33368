//! Leader election by a Lease: one operator writes, the others stand by.

use crate::{
    cluster::{ApiError, WriteFence},
    metrics::Metrics,
};
use gantry_core::leader_election::{LeaseRecord, Step, step};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// The Lease of Seldon's operator, so that only one of the two leads.
pub const LEASE: &str = "e98130ae.seldon.io";
/// Validity of a lease without renewal.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long a leader writes after its last renewal: shorter than the lease by more than clocks drift meanwhile.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Interval of the attempts, from start to start: a slow response does not delay the next one.
const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// Half of the deadline: a request that gets no response leaves time for another one.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

pub struct Election {
    api: Api<Lease>,
    identity: String,
    fence: WriteFence,
    metrics: Arc<Metrics>,
    clock: crate::context::Clock,
    seen: Option<(LeaseRecord, Instant)>,
    /// The lease as this operator wrote it last: the next renewal needs no read.
    held: Option<Lease>,
}

impl std::fmt::Debug for Election {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Election").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Election {
    /// The identity must be unique.
    pub fn new(
        client: Client,
        namespace: &str,
        identity: String,
        fence: WriteFence,
        metrics: Arc<Metrics>,
        clock: crate::context::Clock,
    ) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            identity,
            fence,
            metrics,
            clock,
            seen: None,
            held: None,
        }
    }

    /// Waits until this operator leads.
    pub async fn acquire(&mut self) {
        let mut last_holder = String::new();
        loop {
            match self.try_once().await {
                Ok(None) => {
                    tracing::info!(identity = %self.identity, "became the leader");
                    self.metrics.set_leading(true);
                    return;
                }
                Ok(Some(holder)) if holder != last_holder => {
                    tracing::info!(leader = %holder, "not the leader; standing by");
                    last_holder = holder;
                }
                Ok(Some(_)) => {}
                Err(why) => tracing::warn!("failed to acquire lease: {why}"),
            }
            tokio::time::sleep(RETRY_PERIOD).await;
        }
    }

    /// Renews the lease; returns why it is lost.
    pub async fn renew(&mut self) -> String {
        let mut why = String::new();
        let mut attempts = interval(RETRY_PERIOD);
        attempts.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is immediate, and the lease is new.
        attempts.tick().await;
        loop {
            attempts.tick().await;
            match self.try_once().await {
                Ok(None) => why.clear(),
                Ok(Some(holder)) => {
                    self.lose();
                    return format!("{holder} is the leader");
                }
                Err(error) => why = error,
            }
            if self.fence.remaining().is_none() {
                self.lose();
                return format!(
                    "the lease could not be renewed within {} s: {why}",
                    RENEW_DEADLINE.as_secs()
                );
            }
        }
    }

    fn lose(&self) {
        self.fence.close();
        self.metrics.set_leading(false);
    }

    /// Releases the lease, so that a standby takes over at once. Call it after the last write.
    pub async fn release(&mut self) {
        self.lose();
        let Ok(Some(lease)) = self.read().await else { return };
        let spec_before = lease.spec.clone().unwrap_or_default();
        if spec_before.holder_identity.as_deref() != Some(self.identity.as_str()) {
            return;
        }
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            ..spec_before
        };
        if let Err(why) = self.write(Lease { spec: Some(spec), ..lease }).await {
            tracing::debug!("lease not released: {why}");
        }
    }

    /// Acquires or renews the lease if possible; otherwise returns the current holder.
    async fn try_once(&mut self) -> Result<Option<String>, String> {
        if let Some(lease) = self.held.clone() {
            match self.hold(Some(lease), None).await {
                Ok(()) => return Ok(None),
                // Another operator wrote it, or an own write had an effect without a response.
                Err(ApiError::Conflict | ApiError::NotFound) => self.held = None,
                Err(error) => return Err(error.to_string()),
            }
        }
        let lease = self.read().await.map_err(|error| error.to_string())?;
        let record = lease.as_ref().map(record_of);
        let unchanged = self.unchanged(record.as_ref());
        let transitions = match step(&self.identity, record.as_ref(), unchanged) {
            Step::Standby(_) => return Ok(Some(record.map(|r| r.holder).unwrap_or_default())),
            Step::Acquire { transitions } => Some(transitions),
            Step::Renew => None,
        };
        self.hold(lease, transitions).await.map(|()| None).map_err(|error| error.to_string())
    }

    /// Writes the lease as held by this operator from now on. With `transitions` it is a new term.
    async fn hold(&mut self, lease: Option<Lease>, transitions: Option<u32>) -> Result<(), ApiError> {
        let now = MicroTime((self.clock)());
        let old = lease.as_ref().and_then(|l| l.spec.clone()).unwrap_or_default();
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            renew_time: Some(now.clone()),
            acquire_time: if transitions.is_some() { Some(now) } else { old.acquire_time.clone() },
            lease_transitions: transitions.and_then(|t| i32::try_from(t).ok()).or(old.lease_transitions),
            ..old
        };
        let metadata = lease
            .map_or_else(|| ObjectMeta { name: Some(LEASE.into()), ..ObjectMeta::default() }, |l| l.metadata);
        let sent = Instant::now();
        // The resource version makes this a compare-and-swap.
        let written = self.write(Lease { metadata, spec: Some(spec) }).await?;
        self.seen = Some((record_of(&written), sent));
        self.held = Some(written);
        self.fence.extend(sent + RENEW_DEADLINE);
        Ok(())
    }

    /// Time since the record last changed, by the local clock.
    fn unchanged(&mut self, record: Option<&LeaseRecord>) -> Duration {
        let Some(record) = record else { return Duration::ZERO };
        match &self.seen {
            Some((known, since)) if known == record => since.elapsed(),
            _ => {
                self.seen = Some((record.clone(), Instant::now()));
                Duration::ZERO
            }
        }
    }

    async fn read(&self) -> Result<Option<Lease>, ApiError> {
        self.limited(self.api.get_opt(LEASE)).await
    }

    async fn write(&self, lease: Lease) -> Result<Lease, ApiError> {
        let params = PostParams::default();
        if lease.metadata.resource_version.is_some() {
            self.limited(self.api.replace(LEASE, &params, &lease)).await
        } else {
            self.limited(self.api.create(&params, &lease)).await
        }
    }

    /// A leader waits no longer than it leads.
    async fn limited<T>(&self, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ApiError> {
        let limit = self.fence.remaining().map_or(CALL_TIMEOUT, |left| left.min(CALL_TIMEOUT));
        match tokio::time::timeout(limit, call).await {
            Ok(outcome) => outcome.map_err(ApiError::from),
            Err(_) => Err(ApiError::Transient(format!("no response within {:.1} s", limit.as_secs_f64()))),
        }
    }
}

fn record_of(lease: &Lease) -> LeaseRecord {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds =
        spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(LEASE_DURATION.as_secs());
    LeaseRecord {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(seconds),
        renewal: format!("{:?} {:?}", spec.renew_time.map(|t| t.0), lease.metadata.resource_version),
        transitions: spec.lease_transitions.and_then(|t| u32::try_from(t).ok()).unwrap_or(0),
    }
}
