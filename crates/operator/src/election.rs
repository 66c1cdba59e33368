//! Leader election by a Lease: one operator writes, the others stand by.

use crate::{cluster::WriteFence, metrics::Metrics};
use gantry_core::leader_election::{LeaseRecord, Step, step};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// The Lease of Seldon's operator, so that only one of the two leads.
pub const LEASE: &str = "e98130ae.seldon.io";
/// Validity of a lease without renewal.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long a leader writes after its last renewal: shorter than the lease by more than clocks drift meanwhile.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RETRY_PERIOD: Duration = Duration::from_secs(2);
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

pub struct Election {
    api: Api<Lease>,
    identity: String,
    fence: WriteFence,
    metrics: Arc<Metrics>,
    clock: crate::context::Clock,
    seen: Option<(LeaseRecord, Instant)>,
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
        Self { api: Api::namespaced(client, namespace), identity, fence, metrics, clock, seen: None }
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
        loop {
            tokio::time::sleep(RETRY_PERIOD).await;
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
        let lease = self.read().await?;
        let record = lease.as_ref().map(record_of);
        let unchanged = self.unchanged(record.as_ref());
        let transitions = match step(&self.identity, record.as_ref(), unchanged) {
            Step::Standby(_) => return Ok(Some(record.map(|r| r.holder).unwrap_or_default())),
            Step::Acquire { transitions } => Some(transitions),
            Step::Renew => None,
        };
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
        let record = record_of(&written);
        self.seen = Some((record, sent));
        self.fence.extend(sent + RENEW_DEADLINE);
        Ok(None)
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

    async fn read(&self) -> Result<Option<Lease>, String> {
        with_timeout(self.api.get_opt(LEASE)).await
    }

    async fn write(&self, lease: Lease) -> Result<Lease, String> {
        let params = PostParams::default();
        if lease.metadata.resource_version.is_some() {
            with_timeout(self.api.replace(LEASE, &params, &lease)).await
        } else {
            with_timeout(self.api.create(&params, &lease)).await
        }
    }
}

async fn with_timeout<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(outcome) => outcome.map_err(|e| crate::cluster::ApiError::from(e).to_string()),
        Err(_) => Err(format!("no response within {} s", CALL_TIMEOUT.as_secs())),
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
