//! What a new leader does before it serves: it takes the next epoch, and completes a batch that its predecessor committed.

use super::batch::put;
use super::keys::{FORMAT, Keys, Meta, end_of};
use super::session::Session;
use super::wire::{RangeRequest, RequestOp, TxnRequest};
use crate::format::new_state_id;
use crate::{StoreError, Table, record};
use prost::Message as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// Keys per page of records.
const PAGE: i64 = 256;
/// Staged groups per page; each has up to a megabyte.
const STAGED_PAGE: i64 = 8;

impl Session {
    /// Takes the next epoch. From then on nothing of an earlier leader can be applied.
    pub(super) async fn start(&mut self) -> Result<Meta, StoreError> {
        let found = match self.get(self.keys.meta()).await? {
            None => None,
            Some(text) => {
                let unreadable = || self.unusable(format!("its key {}/meta is unreadable", self.keys.0));
                Some(Meta::decode(&text).ok_or_else(unreadable)?)
            }
        };
        if let Some(found) = found
            && found.format > FORMAT
        {
            let what = format!(
                "it has format {}, this version reads formats up to {FORMAT}: use a newer gantry",
                found.format
            );
            return Err(self.unusable(what));
        }
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let meta = Meta::next(found, seconds, new_state_id);
        self.epoch = meta.epoch;
        let last = self.get(self.keys.batch()).await?;
        self.last = last.map(|id| String::from_utf8_lossy(&id).into_owned());
        self.write(vec![put(self.keys.meta(), meta.encode())]).await?;
        self.complete().await?;
        Ok(meta)
    }

    /// Copies a committed batch to the records, or discards one that was not committed.
    async fn complete(&mut self) -> Result<(), StoreError> {
        let staged = self.keys.staged();
        if let Some(pending) = self.get(self.keys.pending()).await? {
            self.pending = self.staged_groups(&String::from_utf8_lossy(&pending)).await?;
            tracing::info!(groups = self.pending.len(), "completing a batch of the previous leader");
            return self.apply_pending().await;
        }
        let end = end_of(&staged);
        let (key, range_end) = (staged.clone().into(), end.clone().into());
        let any = RangeRequest { key, range_end, limit: 1, keys_only: true };
        if self.range(any).await?.kvs.is_empty() {
            return Ok(());
        }
        self.write(vec![super::batch::delete_range(staged, end)]).await
    }

    async fn staged_groups(&self, pending: &str) -> Result<Vec<Vec<RequestOp>>, StoreError> {
        let damaged = || self.unusable(format!("the batch `{pending}` that it committed is incomplete"));
        let (id, count) = pending.split_once(' ').ok_or_else(damaged)?;
        let mut groups = Vec::new();
        for (_, value) in self.pages(self.keys.staged_batch(id), STAGED_PAGE).await? {
            groups.push(TxnRequest::decode(&*value).map_err(|_| damaged())?.success);
        }
        if count.parse() == Ok(groups.len()) && !groups.is_empty() { Ok(groups) } else { Err(damaged()) }
    }

    /// All records of a table, by key.
    pub(super) async fn records(&self, table: Table) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let mut records = Vec::new();
        for (key, sealed) in self.pages(self.keys.table(table), PAGE).await? {
            let text = String::from_utf8_lossy(&key).into_owned();
            match record::decode(table, &text, &sealed) {
                Some(value) => records.push((text, value.to_vec())),
                None => return Err(self.unusable(record::mismatch(table, &text))),
            }
        }
        Ok(records)
    }

    /// Keys below a prefix, without it, and their values.
    async fn pages(&self, prefix: Vec<u8>, limit: i64) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StoreError> {
        let end = end_of(&prefix);
        let mut from = prefix.clone();
        let mut found = Vec::new();
        loop {
            let request = RangeRequest {
                key: from.clone().into(),
                range_end: end.clone().into(),
                limit,
                keys_only: false,
            };
            let page = self.range(request).await?;
            let Some(last) = page.kvs.last() else { return Ok(found) };
            from = last.key.to_vec();
            // The next key in order.
            from.push(0);
            for kv in page.kvs {
                let key = kv.key.strip_prefix(prefix.as_slice()).unwrap_or_default().to_vec();
                found.push((key, kv.value.to_vec()));
            }
            if !page.more {
                return Ok(found);
            }
        }
    }

    fn unusable(&self, reason: String) -> StoreError {
        let Keys(prefix) = &self.keys;
        StoreError::Unusable { endpoints: self.client.endpoints(), prefix: prefix.clone(), reason }
    }
}
