//! Leads, or waits to lead: by a Lease, so that of several operators one writes and the others are ready to.

use crate::{cluster::WriteFence, metrics::Metrics};
use gantry_core::leader_election::{LeaseRecord, Step, step};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// The Lease of Seldon's operator: while one of the two leads, the other waits.
pub const LEASE: &str = "e98130ae.seldon.io";
/// For how long a record stands that nobody renews.
const TERM: Duration = Duration::from_secs(15);
/// For how long a leader acts on its last renewal. It is shorter than the term by more than clocks differ in that time.
const RIGHT: Duration = Duration::from_secs(10);
/// How often the record is looked at or renewed.
const PERIOD: Duration = Duration::from_secs(2);
/// How long one call may take.
const CALL_TIME: Duration = Duration::from_secs(2);

/// One operator among several.
pub struct Election {
    api: Api<Lease>,
    me: String,
    fence: WriteFence,
    metrics: Arc<Metrics>,
    clock: crate::context::Clock,
    seen: Option<(LeaseRecord, Instant)>,
}

impl std::fmt::Debug for Election {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Election").field("me", &self.me).finish_non_exhaustive()
    }
}

impl Election {
    /// Wants to lead, under a name that no other operator has.
    pub fn new(
        client: Client,
        namespace: &str,
        me: String,
        fence: WriteFence,
        metrics: Arc<Metrics>,
        clock: crate::context::Clock,
    ) -> Self {
        Self { api: Api::namespaced(client, namespace), me, fence, metrics, clock, seen: None }
    }

    /// Waits until this operator leads.
    pub async fn win(&mut self) {
        let mut told = String::new();
        loop {
            match self.try_once().await {
                Ok(None) => {
                    tracing::info!(me = %self.me, "leads");
                    self.metrics.leads(true);
                    return;
                }
                Ok(Some(holder)) if holder != told => {
                    tracing::info!(leader = %holder, "waits: another operator leads");
                    told = holder;
                }
                Ok(Some(_)) => {}
                Err(why) => tracing::warn!("the lease cannot be had: {why}"),
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Keeps leading; returns why it does not any more.
    pub async fn hold(&mut self) -> String {
        let mut why = String::new();
        loop {
            tokio::time::sleep(PERIOD).await;
            match self.try_once().await {
                Ok(None) => why.clear(),
                Ok(Some(holder)) => {
                    self.lose();
                    return format!("{holder} leads now");
                }
                Err(error) => why = error,
            }
            if self.fence.remaining().is_none() {
                self.lose();
                return format!("the lease could not be renewed within {} s: {why}", RIGHT.as_secs());
            }
        }
    }

    fn lose(&self) {
        self.fence.close();
        self.metrics.leads(false);
    }

    /// Gives the lease up, so that another need not wait for its end. Call it when nothing is written any more.
    pub async fn resign(&mut self) {
        self.lose();
        let Ok(Some(lease)) = self.read().await else { return };
        let held = lease.spec.clone().unwrap_or_default();
        if held.holder_identity.as_deref() != Some(self.me.as_str()) {
            return;
        }
        let spec =
            LeaseSpec { holder_identity: Some(String::new()), lease_duration_seconds: Some(1), ..held };
        if let Err(why) = self.write(Lease { spec: Some(spec), ..lease }).await {
            tracing::debug!("the lease was not given up: {why}");
        }
    }

    /// Looks once, and takes or renews the lease where that is right. `Some` names who leads instead.
    async fn try_once(&mut self) -> Result<Option<String>, String> {
        let lease = self.read().await?;
        let record = lease.as_ref().map(record_of);
        let unchanged = self.unchanged(record.as_ref());
        let transitions = match step(&self.me, record.as_ref(), unchanged) {
            Step::Standby(_) => return Ok(Some(record.map(|r| r.holder).unwrap_or_default())),
            Step::Acquire { transitions } => Some(transitions),
            Step::Renew => None,
        };
        let now = MicroTime((self.clock)());
        let old = lease.as_ref().and_then(|l| l.spec.clone()).unwrap_or_default();
        let spec = LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: i32::try_from(TERM.as_secs()).ok(),
            renew_time: Some(now.clone()),
            acquire_time: if transitions.is_some() { Some(now) } else { old.acquire_time.clone() },
            lease_transitions: transitions.and_then(|t| i32::try_from(t).ok()).or(old.lease_transitions),
            ..old
        };
        let metadata = lease
            .map_or_else(|| ObjectMeta { name: Some(LEASE.into()), ..ObjectMeta::default() }, |l| l.metadata);
        let sent = Instant::now();
        // The version in the metadata makes this a test as well: of two who take it, one is refused.
        let written = self.write(Lease { metadata, spec: Some(spec) }).await?;
        let record = record_of(&written);
        self.seen = Some((record, sent));
        self.fence.extend(sent + RIGHT);
        Ok(None)
    }

    /// How long the record has stood as it is, as seen from here.
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
        timed(self.api.get_opt(LEASE)).await
    }

    async fn write(&self, lease: Lease) -> Result<Lease, String> {
        let params = PostParams::default();
        if lease.metadata.resource_version.is_some() {
            timed(self.api.replace(LEASE, &params, &lease)).await
        } else {
            timed(self.api.create(&params, &lease)).await
        }
    }
}

async fn timed<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match tokio::time::timeout(CALL_TIME, call).await {
        Ok(outcome) => outcome.map_err(|e| crate::cluster::ApiError::from(e).to_string()),
        Err(_) => Err(format!("no answer within {} s", CALL_TIME.as_secs())),
    }
}

fn record_of(lease: &Lease) -> LeaseRecord {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(TERM.as_secs());
    LeaseRecord {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(seconds),
        renewal: format!("{:?} {:?}", spec.renew_time.map(|t| t.0), lease.metadata.resource_version),
        transitions: spec.lease_transitions.and_then(|t| u32::try_from(t).ok()).unwrap_or(0),
    }
}
