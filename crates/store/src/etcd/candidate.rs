//! A scheduler that wants to lead.

use super::backend::{Background, EtcdStore};
use super::client::Client;
use super::failure::Failure;
use super::keys::Keys;
use super::lease::{Lease, Times};
use super::metrics::Metrics;
use super::session::{Session, created_at};
use super::settings::Settings;
use super::wire::{PutRequest, RangeRequest, RequestOp, TxnRequest, request_op::Request};
use crate::{Store, StoreError};
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How often a standby looks for the leader.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// A standby with a connection to etcd.
#[derive(Debug)]
pub struct Candidate {
    background: Arc<Background>,
    client: Arc<Client>,
    keys: Keys,
    name: String,
    times: Times,
    /// Why it stands by.
    reason: watch::Sender<Standby>,
}

/// Why a process stands by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standby {
    /// The same for as long as the state of etcd is.
    summary: String,
    /// Of the last attempt.
    detail: String,
}

impl fmt::Display for Standby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.detail.is_empty() { "" } else { ": " };
        write!(f, "{}{separator}{}", self.summary, self.detail)
    }
}

impl From<String> for Standby {
    fn from(summary: String) -> Self {
        Self { summary, detail: String::new() }
    }
}

/// Why an attempt to lead failed.
enum Refusal {
    Leader(String),
    Unavailable(String),
}

/// Leadership over the records; ends when it is dropped, at the latest when its lease is not renewed any more.
#[derive(Debug)]
pub struct Leadership {
    lease: Arc<Lease>,
    client: Arc<Client>,
    /// Renews the lease until it is dropped.
    #[cfg_attr(not(feature = "faults"), allow(dead_code, reason = "its drop ends the renewals"))]
    keeper: std::sync::Mutex<JoinSet<()>>,
}

impl Candidate {
    pub fn start(settings: Settings) -> Result<Self, StoreError> {
        let (location, name) = (settings.location.clone(), settings.name.clone());
        let times = Times::of(settings.lease);
        let failed = |reason: String| StoreError::Unusable {
            endpoints: location.endpoints.join(", "),
            prefix: location.prefix.clone(),
            reason,
        };
        let background = Background::start().map_err(|e| failed(e.to_string()))?;
        let stopped = || failed("the process is stopping".into());
        let client = {
            let _context = background.handle().ok_or_else(stopped)?.enter();
            Arc::new(Client::new(settings, Arc::new(Metrics::new())).map_err(&failed)?)
        };
        let keys = Keys(location.prefix.clone());
        let reason = watch::Sender::new("not connected to etcd yet".to_owned().into());
        Ok(Self { background, client, keys, name, times, reason })
    }

    /// Registers the metrics `gantry_scheduler_etcd_*`, `…_leader` and `…_leadership_changes_total`.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.client.metrics.register(registry);
    }

    /// Why this process does not lead: another one does, or etcd is not available. Changes with the summary.
    pub fn reason(&self) -> watch::Receiver<Standby> {
        self.reason.subscribe()
    }

    /// Waits until this process leads. Fails when the state cannot be used, not when etcd is unavailable.
    pub async fn campaign(&self) -> Result<(Store, Leadership), StoreError> {
        let mut failures = 0;
        loop {
            match self.elect().await {
                Ok((lease, fence)) => match self.lead(lease, fence).await {
                    Err(unusable @ StoreError::Unusable { .. }) => return Err(unusable),
                    Err(error) => self.stand_by(error.to_string().into()),
                    leads => return leads,
                },
                Err(Refusal::Leader(name)) => {
                    failures = 0;
                    self.stand_by(format!("{name} leads").into());
                }
                Err(Refusal::Unavailable(detail)) => {
                    failures += 1;
                    // One member may be down: the next attempt goes to another one.
                    if failures >= self.client.members() {
                        let summary = format!("etcd at {} is not available", self.client.endpoints());
                        self.stand_by(Standby { summary, detail });
                    }
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn stand_by(&self, reason: Standby) {
        self.reason.send_if_modified(|current| {
            let changed = current.summary != reason.summary;
            *current = reason;
            changed
        });
    }

    /// One attempt to create the key `leader`: the lease and the revision of the key, or why not.
    async fn elect(&self) -> Result<(Arc<Lease>, i64), Refusal> {
        let unavailable = |failure: Failure| Refusal::Unavailable(failure.reason());
        // A read first: an attempt is a write, whether it succeeds or not.
        let request = RangeRequest { key: self.keys.leader().into(), limit: 1, ..RangeRequest::default() };
        let found = self.client.range(request, CALL_TIMEOUT).await.map_err(unavailable)?;
        if let Some(leader) = found.kvs.first() {
            return Err(Refusal::Leader(String::from_utf8_lossy(&leader.value).into_owned()));
        }
        let sent = Instant::now();
        let id = self.client.grant(self.times.ttl, CALL_TIMEOUT).await.map_err(unavailable)?;
        let key = PutRequest { key: self.keys.leader().into(), value: self.name.clone().into(), lease: id };
        let request = TxnRequest {
            compare: vec![created_at(self.keys.leader(), 0)],
            success: vec![RequestOp { request: Some(Request::RequestPut(key)) }],
            failure: Vec::new(),
        };
        let reason = match self.client.txn(request, CALL_TIMEOUT).await {
            Ok(answer) if answer.succeeded => {
                let revision = answer.header.map_or(0, |header| header.revision);
                return Ok((Lease::new(id, self.times, sent), revision));
            }
            Ok(_) => Refusal::Leader("another scheduler".into()),
            Err(failure) => unavailable(failure),
        };
        // If it was created after all, it goes with its lease.
        let _ = self.client.revoke(id, CALL_TIMEOUT).await;
        Err(reason)
    }

    /// Takes over the records.
    async fn lead(&self, lease: Arc<Lease>, fence: i64) -> Result<(Store, Leadership), StoreError> {
        let mut keeper = JoinSet::new();
        if let Some(handle) = self.background.handle() {
            keeper.spawn_on(Arc::clone(&lease).keep(Arc::clone(&self.client)), handle);
        }
        let mut session = Session {
            client: Arc::clone(&self.client),
            keys: self.keys.clone(),
            lease: Arc::clone(&lease),
            fence,
            epoch: 0,
            last: None,
            count: 0,
            pending: Vec::new(),
        };
        let started = session.start().await;
        let leadership =
            Leadership { lease: Arc::clone(&lease), client: Arc::clone(&self.client), keeper: keeper.into() };
        match started {
            Ok(meta) => {
                self.client.metrics.leads.set(1);
                self.client.metrics.changes.inc();
                let store = Store::new(EtcdStore {
                    epoch: meta.epoch,
                    state_id: meta.state_id,
                    lease,
                    session: Arc::new(Mutex::new(session)),
                    background: Arc::clone(&self.background),
                });
                Ok((store, leadership))
            }
            Err(error) => {
                leadership.resign().await;
                Err(error)
            }
        }
    }
}

impl Leadership {
    /// Whether it has ended.
    pub fn is_lost(&self) -> bool {
        self.lease.left().is_err()
    }

    /// Waits until this process does not lead any more, and returns the reason.
    pub async fn ended(&self) -> String {
        self.lease.ended().await
    }

    /// Ends the renewals, as if the process was suspended.
    #[cfg(feature = "faults")]
    pub fn stop_renewing(&self) {
        self.keeper.lock().unwrap_or_else(std::sync::PoisonError::into_inner).abort_all();
    }

    /// Lets a standby lead at once. The store has to be closed: nothing can be written afterwards.
    pub async fn resign(self) {
        self.lease.lose("it resigned");
        // If etcd is unavailable, the lease expires.
        let _ = self.client.revoke(self.lease.id, CALL_TIMEOUT).await;
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.lease.lose("it resigned");
        if self.client.metrics.leads.set(0) == 1 {
            self.client.metrics.changes.inc();
        }
    }
}
