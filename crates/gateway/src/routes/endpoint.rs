//! Replicas referenced by routes.

use crate::{
    metrics::{EndpointMetrics, Metrics},
    policy::{
        balance,
        breaker::{Breaker, Outcome},
    },
};
use arc_swap::ArcSwapOption;
use gantry_oip::server::InferenceServer;
use gantry_proto::gantry as pb;
use http::uri::Authority;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

/// An in-process server.
pub(crate) struct Local(pub(crate) Arc<dyn InferenceServer>);

/// A server replica, shared by all models on it.
pub(crate) struct Endpoint {
    /// Unique; workers key their connection pools by it.
    pub(crate) id: u64,
    pub(crate) server: String,
    pub(crate) replica: u32,
    pub(crate) host: String,
    pub(crate) http_port: u16,
    pub(crate) grpc_port: u16,
    pub(crate) grpc_authority: Option<Authority>,
    /// Hash of server and replica, the same in every gateway.
    pub(crate) key: u64,
    pub(crate) in_flight: AtomicUsize,
    /// Responses received over the network.
    responses: AtomicU64,
    pub(crate) metrics: EndpointMetrics,
    local: Arc<ArcSwapOption<Local>>,
    started: Instant,
    /// False while the breaker is in its initial state: spares healthy replicas the lock.
    breaker_active: AtomicBool,
    breaker: Mutex<Breaker>,
}

impl Endpoint {
    pub(crate) fn local(&self) -> Option<Arc<Local>> {
        self.local.load_full()
    }

    pub(crate) fn responses(&self) -> u64 {
        self.responses.load(Ordering::Relaxed)
    }

    pub(crate) fn on_response(&self) {
        self.responses.fetch_add(1, Ordering::Relaxed);
    }

    /// Milliseconds since the endpoint is known.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn usable(&self) -> bool {
        !self.breaker_active.load(Ordering::Acquire) || self.breaker().allows(self.now())
    }

    pub(crate) fn retry_after_ms(&self) -> u64 {
        self.breaker().retry_after().map_or(0, |at| at.saturating_sub(self.now()))
    }

    pub(super) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        if self.breaker_active.load(Ordering::Acquire) {
            let now = self.now();
            let mut breaker = self.breaker();
            *breaker = breaker.on_start(now);
        }
    }

    pub(super) fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Reports a request's outcome to the breaker.
    pub(crate) fn report(&self, outcome: Outcome) {
        let breaker_active = self.breaker_active.load(Ordering::Acquire);
        if !breaker_active && outcome != Outcome::Failed {
            return;
        }
        let now = self.now();
        let mut breaker = self.breaker();
        *breaker = breaker.on_end(outcome, now);
        self.breaker_active.store(*breaker != Breaker::default(), Ordering::Release);
        self.metrics.breaker_open.set(i64::from(breaker.next_probe().is_some()));
    }

    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type LocalServer = Arc<ArcSwapOption<Local>>;

/// Endpoints in use, and in-process servers.
#[derive(Default)]
pub(crate) struct Registry {
    next: AtomicU64,
    endpoints: Mutex<HashMap<(String, u32), Weak<Endpoint>>>,
    locals: Mutex<HashMap<(String, u32), LocalServer>>,
}

impl Registry {
    pub(crate) fn register_local(&self, server: &str, replica: u32, local: Arc<dyn InferenceServer>) {
        self.slot(server, replica).store(Some(Arc::new(Local(local))));
    }

    fn slot(&self, server: &str, replica: u32) -> LocalServer {
        let mut locals = self.locals.lock().unwrap_or_else(PoisonError::into_inner);
        // Of replicas that are gone.
        locals.retain(|_, local| Arc::strong_count(local) > 1 || local.load().is_some());
        Arc::clone(locals.entry((server.to_owned(), replica)).or_default())
    }

    /// The endpoint of a replica; a new one if its address changed.
    pub(crate) fn endpoint(&self, wanted: &pb::Endpoint, metrics: &Metrics) -> Arc<Endpoint> {
        let http_port = u16::try_from(wanted.http_port).unwrap_or(0);
        let grpc_port = u16::try_from(wanted.grpc_port).unwrap_or(0);
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (wanted.server.clone(), wanted.replica);
        if let Some(known) = endpoints.get(&key).and_then(Weak::upgrade)
            && known.host == wanted.host
            && known.http_port == http_port
            && known.grpc_port == grpc_port
        {
            return known;
        }
        endpoints.retain(|_, e| e.strong_count() > 0);
        let local = self.slot(&wanted.server, wanted.replica);
        let host = if wanted.host.contains(':') { format!("[{}]", wanted.host) } else { wanted.host.clone() };
        let endpoint = Arc::new(Endpoint {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            server: wanted.server.clone(),
            replica: wanted.replica,
            host: wanted.host.clone(),
            http_port,
            grpc_port,
            grpc_authority: format!("{host}:{grpc_port}").parse().ok(),
            key: balance::stable_hash(&[wanted.server.as_bytes(), &wanted.replica.to_be_bytes()]),
            in_flight: AtomicUsize::new(0),
            responses: AtomicU64::new(0),
            metrics: metrics.endpoint(&wanted.server, wanted.replica),
            local,
            started: Instant::now(),
            breaker_active: AtomicBool::new(false),
            breaker: Mutex::default(),
        });
        endpoints.insert(key, Arc::downgrade(&endpoint));
        endpoint
    }

    pub(crate) fn all(&self) -> Vec<Arc<Endpoint>> {
        let endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        endpoints.values().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_that_are_gone_leave_nothing_behind() {
        let (registry, metrics) = (Registry::default(), Metrics::new());
        let endpoint = |replica| {
            registry.endpoint(&pb::Endpoint { server: "s".into(), replica, ..Default::default() }, &metrics)
        };
        let kept = endpoint(0);
        for replica in 1..100 {
            drop(endpoint(replica));
        }
        let last = endpoint(100);
        let mut replicas: Vec<u32> =
            registry.locals.lock().unwrap().keys().map(|(_, replica)| *replica).collect();
        replicas.sort_unstable();
        assert_eq!(replicas, [kept.replica, last.replica]);
        assert_eq!(registry.endpoints.lock().unwrap().len(), 2);
    }
}
