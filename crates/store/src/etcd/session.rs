//! Fenced writes of one leader, each with a definite outcome.

use super::batch::{self, delete, delete_range, put};
use super::client::Client;
use super::failure::{Failure, NO_SPACE};
use super::keys::{Keys, end_of};
use super::lease::Lease;
use super::wire::{
    Compare, RangeRequest, RangeResponse, RequestOp, TxnRequest, compare::CompareResult,
    compare::CompareTarget, compare::TargetUnion, request_op::Request, response_op::Response,
};
use crate::{Change, StoreError};
use prost::Message as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Of one transaction. A slow one is settled and repeated.
const TXN_TIMEOUT: Duration = Duration::from_secs(2);
/// Beyond this a write is rejected; beyond twice this an unknown outcome ends the leadership.
const WRITE_TIMEOUT: Duration = Duration::from_secs(6);
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The writer's place in etcd.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Arc<Client>,
    pub(super) keys: Keys,
    pub(super) lease: Arc<Lease>,
    /// Revision at which this process created the key `leader`.
    pub(super) fence: i64,
    pub(super) epoch: u64,
    /// ID of the last write; `None` if there was none.
    pub(super) last: Option<String>,
    /// Writes of this leader.
    pub(super) count: u64,
    /// Groups of a committed batch that are not in the records yet.
    pub(super) pending: Vec<Vec<RequestOp>>,
}

/// What the key `batch` holds when a transaction was not applied.
enum Found {
    Batch(Option<String>),
    /// Another process created the key `leader`, or none has it.
    OtherLeader(Option<String>),
}

impl Session {
    /// Stores all changes or none of them, however many there are.
    pub(super) async fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.lease.left()?;
        self.apply_pending().await?;
        let groups = batch::groups(&self.keys, changes)
            .map_err(|too_large| self.refused(too_large.reason(), false))?;
        match groups.as_slice() {
            [] => Ok(()),
            [group] => self.write(group.clone()).await,
            _ => self.commit_staged(groups).await,
        }
    }

    /// Stores a batch of several groups: staged first, then committed by one key, then copied to the records.
    async fn commit_staged(&mut self, groups: Vec<Vec<RequestOp>>) -> Result<(), StoreError> {
        let id = self.next_id();
        for (number, group) in groups.iter().enumerate() {
            let staged = TxnRequest { success: group.clone(), ..TxnRequest::default() }.encode_to_vec();
            let written = self.write(vec![put(self.keys.staged_chunk(&id, number), staged)]).await;
            if let Err(error) = written {
                self.discard_staged(&error).await;
                return Err(error);
            }
        }
        let committed = format!("{id} {}", groups.len());
        if let Err(error) = self.write(vec![put(self.keys.pending(), committed)]).await {
            self.discard_staged(&error).await;
            return Err(error);
        }
        self.pending = groups;
        // Committed, so it is acknowledged; a copy that fails is completed before the next write.
        match self.apply_pending().await {
            Err(error) if error.is_lost() => Err(error),
            Err(error) => {
                tracing::warn!(%error, "a committed batch is not in all records yet; retrying with the next write");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Copies a committed batch to the records. No other write may come first: the next leader copies all of it again.
    pub(super) async fn apply_pending(&mut self) -> Result<(), StoreError> {
        while let Some(group) = self.pending.first() {
            let mut operations = group.clone();
            if self.pending.len() == 1 {
                let staged = self.keys.staged();
                operations.push(delete(self.keys.pending()));
                operations.push(delete_range(staged.clone(), end_of(&staged)));
            }
            self.write(operations).await?;
            self.pending.remove(0);
        }
        Ok(())
    }

    /// The next leader discards what this one cannot.
    async fn discard_staged(&mut self, error: &StoreError) {
        if !error.is_lost() {
            let staged = self.keys.staged();
            let _ = self.write(vec![delete_range(staged.clone(), end_of(&staged))]).await;
        }
    }

    /// One transaction, as the leader and after the last write. The outcome is definite, unless leadership is lost.
    pub(super) async fn write(&mut self, operations: Vec<RequestOp>) -> Result<(), StoreError> {
        let deadline = Instant::now() + WRITE_TIMEOUT;
        loop {
            let within = self.lease.left()?.min(TXN_TIMEOUT);
            let id = self.next_id();
            let mut success = operations.clone();
            success.push(put(self.keys.batch(), id.clone()));
            let reason = match self.client.txn(self.guarded(success), within).await {
                Ok(answer) if answer.succeeded => {
                    self.last = Some(id);
                    return Ok(());
                }
                Ok(answer) => match self.found(answer.responses) {
                    Found::Batch(Some(batch)) if batch == id => {
                        self.last = Some(id);
                        return Ok(());
                    }
                    found => return Err(self.lost(found, false)),
                },
                Err(Failure::Refused { reason, full }) => return Err(self.refused(reason, full)),
                Err(Failure::Unauthenticated(reason)) => return Err(self.refused(reason, false)),
                Err(Failure::NoSpace) => {
                    return if self.read_back(&id).await? {
                        Ok(())
                    } else {
                        Err(self.refused(NO_SPACE.into(), true))
                    };
                }
                Err(Failure::Unknown(reason)) => reason,
            };
            self.client.metrics.settled.inc();
            tracing::warn!(%reason, "outcome of a write is unknown; reading it back");
            if self.settle(&id, &reason).await? {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(self.refused(reason, false));
            }
        }
    }

    /// Settles a write whose outcome is unknown: whether it is stored. If not, it never will be.
    async fn settle(&mut self, id: &str, reason: &str) -> Result<bool, StoreError> {
        let marker = self.next_id();
        let deadline = Instant::now() + WRITE_TIMEOUT;
        loop {
            let Ok(left) = self.lease.left() else { return Err(self.unknown(reason)) };
            let request = self.guarded(vec![put(self.keys.batch(), marker.clone())]);
            match self.client.txn(request, left.min(TXN_TIMEOUT)).await {
                Ok(answer) if answer.succeeded => {
                    self.last = Some(marker);
                    return Ok(false);
                }
                Ok(answer) => match self.found(answer.responses) {
                    Found::Batch(Some(batch)) if batch == id => {
                        self.last = Some(batch);
                        return Ok(true);
                    }
                    // The answer to an earlier attempt was lost.
                    Found::Batch(Some(batch)) if batch == marker => {
                        self.last = Some(batch);
                        return Ok(false);
                    }
                    found => return Err(self.lost(found, true)),
                },
                Err(_) if Instant::now() < deadline => tokio::time::sleep(RETRY_DELAY).await,
                Err(_) => return Err(self.unknown(reason)),
            }
        }
    }

    /// Whether a write is stored to which etcd answered that it has no space. It is not under way any more.
    async fn read_back(&mut self, id: &str) -> Result<bool, StoreError> {
        let batch = self.get(self.keys.batch()).await.map_err(|error| match error {
            StoreError::Lost { .. } => self.unknown(NO_SPACE),
            other => other,
        })?;
        let batch = batch.as_deref().map(String::from_utf8_lossy);
        if batch.as_deref() == Some(id) {
            self.last = Some(id.to_owned());
            return Ok(true);
        }
        if batch.as_deref() == self.last.as_deref() {
            return Ok(false);
        }
        Err(self.lost(Found::Batch(batch.map(Into::into)), true))
    }

    /// The value of a key.
    pub(super) async fn get(&self, key: Vec<u8>) -> Result<Option<Vec<u8>>, StoreError> {
        let request = RangeRequest { key: key.into(), limit: 1, ..RangeRequest::default() };
        let found = self.range(request).await?;
        Ok(found.kvs.into_iter().next().map(|kv| kv.value.to_vec()))
    }

    /// One page, retried while this process leads.
    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        let deadline = Instant::now() + WRITE_TIMEOUT * 2;
        loop {
            let within = self.lease.left()?.min(TXN_TIMEOUT);
            match self.client.range(request.clone(), within).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Unknown(_)) if Instant::now() < deadline => {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(failure) => return Err(self.refused(failure.reason(), false)),
            }
        }
    }

    /// A transaction that is applied only while this process leads, and after the last write.
    fn guarded(&self, success: Vec<RequestOp>) -> TxnRequest {
        let previous = match &self.last {
            Some(last) => value_is(self.keys.batch(), last),
            None => created_at(self.keys.batch(), 0),
        };
        let compare = vec![created_at(self.keys.leader(), self.fence), previous];
        let failure = vec![read(self.keys.leader()), read(self.keys.batch())];
        TxnRequest { compare, success, failure }
    }

    fn found(&self, responses: Vec<super::wire::ResponseOp>) -> Found {
        let mut values = responses.into_iter().map(|op| match op.response {
            Some(Response::ResponseRange(range)) => range.kvs.into_iter().next(),
            _ => None,
        });
        let (leader, batch) = (values.next().flatten(), values.next().flatten());
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        match leader {
            Some(leader) if leader.create_revision == self.fence => {
                Found::Batch(batch.map(|batch| text(&batch.value)))
            }
            other => Found::OtherLeader(other.map(|leader| text(&leader.value))),
        }
    }

    fn lost(&self, found: Found, unknown: bool) -> StoreError {
        let reason = match found {
            Found::OtherLeader(Some(name)) => format!("{name} leads now"),
            Found::OtherLeader(None) => "its lease expired".into(),
            Found::Batch(batch) => format!(
                "the records under {} were changed by another program (last write {}, not {})",
                self.keys.0,
                batch.as_deref().unwrap_or("unknown"),
                self.last.as_deref().unwrap_or("none")
            ),
        };
        self.lease.lose(reason.clone());
        StoreError::Lost { reason, unknown }
    }

    /// The next leader reads what became of the write.
    fn unknown(&self, reason: &str) -> StoreError {
        let reason = format!("etcd at {} did not confirm a write: {reason}", self.client.endpoints());
        self.lease.lose(reason.clone());
        StoreError::Lost { reason, unknown: true }
    }

    pub(super) fn refused(&self, reason: String, full: bool) -> StoreError {
        StoreError::Refused { endpoints: self.client.endpoints(), reason, full }
    }

    fn next_id(&mut self) -> String {
        self.count += 1;
        format!("{}-{}", self.epoch, self.count)
    }
}

pub(super) fn created_at(key: Vec<u8>, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.into(),
        target_union: Some(TargetUnion::CreateRevision(revision)),
    }
}

pub(super) fn value_is(key: Vec<u8>, value: &str) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Value.into(),
        key: key.into(),
        target_union: Some(TargetUnion::Value(value.to_owned().into())),
    }
}

pub(super) fn read(key: Vec<u8>) -> RequestOp {
    let range = RangeRequest { key: key.into(), limit: 1, ..RangeRequest::default() };
    RequestOp { request: Some(Request::RequestRange(range)) }
}
