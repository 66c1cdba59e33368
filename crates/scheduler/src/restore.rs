//! Restores the state from the store.

use crate::{definitions::Definitions, encoding, scheduler::StartError};
use gantry_core::scheduling::{Millis, Policy, Records, State};
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
    pub(crate) definitions: Definitions,
    /// Gateways that may still use routes from before the restart.
    pub(crate) gateways: BTreeSet<Arc<str>>,
}

pub(crate) fn load(store: &Store, policy: Policy, now: Millis) -> Result<Restored, StartError> {
    let mut definitions = Definitions::default();
    let decode = |bytes: &[u8]| encoding::decode_model(bytes, &mut definitions);
    let models = read(store, Table::Models, "model", decode)?;
    let servers = read(store, Table::Servers, "server", encoding::decode_server)?;
    let decode = |bytes: &[u8]| encoding::decode_pipeline(bytes, &mut definitions);
    let pipelines = read(store, Table::Pipelines, "pipeline", decode)?;
    let decode = |bytes: &[u8]| encoding::decode_experiment(bytes, &mut definitions);
    let experiments = read(store, Table::Experiments, "experiment", decode)?;
    let services = read(store, Table::Services, "service", encoding::decode_service)?;
    let gateways = store.read(Table::Gateways)?.into_iter().map(|(name, _)| name.into()).collect();
    let rollout_policies = read(store, Table::Policies, "rollout policy", encoding::decode_policy)?;
    let records = Records { models, servers, pipelines, experiments, services, rollout_policies };
    Ok(Restored { state: State::restore(policy, records, now), definitions, gateways })
}

fn read<T>(
    store: &Store,
    table: Table,
    kind: &'static str,
    mut decode: impl FnMut(&[u8]) -> Result<T, crate::convert::Invalid>,
) -> Result<Vec<T>, StartError> {
    let records = store.read(table)?;
    let mut read = Vec::with_capacity(records.len());
    for (key, bytes) in records {
        match decode(&bytes) {
            Ok(value) => read.push(value),
            Err(error) => return Err(RecordError { table: kind, key, reason: error.to_string() }.into()),
        }
    }
    Ok(read)
}
