//! Restores the state from the store.

use crate::{encoding, scheduler::StartError};
use gantry_core::scheduling::{Millis, Policy, State};
use gantry_store::{Store, Table};
use std::{collections::BTreeSet, sync::Arc};

/// A stored record cannot be decoded. The scheduler does not start with partial state.
#[derive(Debug, thiserror::Error)]
#[error("stored record of {table} {key} is invalid: {reason}")]
pub struct RecordError {
    pub table: &'static str,
    pub key: String,
    pub reason: String,
}

pub(crate) struct Restored {
    pub(crate) state: State,
    /// Gateways that may still use routes from before the restart.
    pub(crate) gateways: BTreeSet<Arc<str>>,
}

pub(crate) fn load(store: &Store, policy: Policy, now: Millis) -> Result<Restored, StartError> {
    let models = read(store, Table::Models, "model", encoding::decode_model)?;
    let servers = read(store, Table::Servers, "server", encoding::decode_server)?;
    let gateways = store.read(Table::Gateways)?.into_iter().map(|(name, _)| name.into()).collect();
    Ok(Restored { state: State::restore(policy, models, servers, now), gateways })
}

fn read<T>(
    store: &Store,
    table: Table,
    kind: &'static str,
    record: fn(&[u8]) -> Result<T, crate::convert::Invalid>,
) -> Result<Vec<T>, StartError> {
    let records = store.read(table)?;
    let mut read = Vec::with_capacity(records.len());
    for (key, bytes) in records {
        match record(&bytes) {
            Ok(value) => read.push(value),
            Err(error) => return Err(RecordError { table: kind, key, reason: error.to_string() }.into()),
        }
    }
    Ok(read)
}
