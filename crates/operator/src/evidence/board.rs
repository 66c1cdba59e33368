//! The latest evidence of each Algorithm, in memory. Safe to lose: the next measurement replaces it.

use super::{EvidenceRequest, Figures};
use crate::cluster::Key;
use gantry_core::rollout::Evidence;
use k8s_openapi::jiff::Timestamp;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Evidence and the request that it answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    pub request: EvidenceRequest,
    pub at: Timestamp,
    pub evidence: Evidence,
    pub figures: Figures,
}

/// At most one observation per Algorithm.
#[derive(Debug, Default)]
pub struct EvidenceBoard(Mutex<BTreeMap<Key, Arc<Observation>>>);

impl EvidenceBoard {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<Observation>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn latest(&self, key: &Key) -> Option<Arc<Observation>> {
        self.lock().get(key).cloned()
    }

    pub fn put(&self, observation: Observation) {
        self.lock().insert(observation.request.key.clone(), Arc::new(observation));
    }

    pub fn remove(&self, key: &Key) {
        self.lock().remove(key);
    }
}
