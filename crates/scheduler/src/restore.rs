//! The state as it was stored.

use crate::{convert, scheduler::StartError};
use gantry_core::scheduling::{Millis, State};
use gantry_proto::gantry::StoredServer;
use gantry_store::{Store, Table};
use prost::Message as _;
use std::sync::Arc;

/// A record in the store cannot be understood. It is named, and nothing is started on half a state.
#[derive(Debug, thiserror::Error)]
#[error("the record of {table} {key} in the store cannot be read: {reason}")]
pub struct RecordError {
    /// Which table it is in.
    pub table: &'static str,
    /// Its key.
    pub key: String,
    /// What is wrong.
    pub reason: String,
}

/// Reads everything.
pub(crate) fn state(store: &Store, now: Millis) -> Result<State, StartError> {
    let mut models = Vec::new();
    for (key, bytes) in store.read(Table::Models)? {
        match convert::restored(&bytes) {
            Ok(model) => models.push(model),
            Err(error) => {
                return Err(RecordError { table: "model", key, reason: error.to_string() }.into());
            }
        }
    }
    let mut servers = Vec::new();
    for (key, bytes) in store.read(Table::Servers)? {
        let broken = |reason: String| RecordError { table: "server", key: key.clone(), reason };
        let announced = StoredServer::decode(&*bytes)
            .map_err(|e| broken(e.to_string()))?
            .announced
            .ok_or_else(|| broken("it is empty".into()))?;
        let expected = convert::expectation(&announced).map_err(|e| broken(e.to_string()))?;
        let namespace = announced.kubernetes_meta.map(|k| k.namespace);
        servers.push((Arc::from(announced.name), expected, announced.shared, namespace));
    }
    Ok(State::restore(models, servers, now))
}
