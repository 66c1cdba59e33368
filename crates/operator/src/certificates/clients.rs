//! The operator's own certificates: one connection setting for the scheduler of each namespace.

use gantry_tls::Client;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// How to connect to the scheduler of a namespace.
#[derive(Clone, Debug)]
pub enum SchedulerTls {
    /// Its pods have no certificates of the operator: Seldon's scheduler, or one before the upgrade.
    Plaintext,
    Mutual(Client),
}

/// Set by the issuer, read by connections. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct IssuedClients(Arc<Mutex<BTreeMap<String, SchedulerTls>>>);

impl IssuedClients {
    /// `None` until the issuer knows: a connection must not fall back to plaintext.
    pub fn get(&self, namespace: &str) -> Option<SchedulerTls> {
        self.with(|all| all.get(namespace).cloned())
    }

    pub fn set(&self, namespace: &str, tls: SchedulerTls) {
        self.with(|all| all.insert(namespace.to_owned(), tls));
    }

    /// Forgets namespaces that have no runtime any more.
    pub fn retain(&self, mut keep: impl FnMut(&str) -> bool) {
        self.with(|all| all.retain(|namespace, _| keep(namespace)));
    }

    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<String, SchedulerTls>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
