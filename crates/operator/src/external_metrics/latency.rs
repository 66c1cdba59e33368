//! The latency of an Algorithm's stable revision, measured when an autoscaler asks.

use super::api::Failure;
use crate::{
    cluster::{Algorithm, Key},
    context::Context,
    controllers::algorithm::latency_request,
    evidence::{EvidenceProvider as _, EvidenceSources},
};
use http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::Semaphore, time::Instant};

/// Of all queries of a measurement.
const DEADLINE: Duration = Duration::from_secs(5);
/// Autoscalers ask every 15 seconds.
const KEPT_FOR: Duration = Duration::from_secs(5);
const MAX_IN_FLIGHT: usize = 16;

/// The result of a measurement.
#[derive(Clone, Copy)]
struct Kept {
    at: Instant,
    latency_ms: Option<f64>,
}

pub(super) struct Latencies {
    context: Arc<Context>,
    sources: EvidenceSources,
    kept: Mutex<BTreeMap<Key, Kept>>,
    slots: Semaphore,
}

impl Latencies {
    pub(super) fn new(context: Arc<Context>, sources: EvidenceSources) -> Self {
        Self { context, sources, kept: Mutex::default(), slots: Semaphore::new(MAX_IN_FLIGHT) }
    }

    pub(super) fn now(&self) -> Timestamp {
        (self.context.clock)()
    }

    /// In milliseconds: 0 when there were no requests, `None` when it is not known yet.
    pub(super) async fn of(&self, key: &Key) -> Result<Option<f64>, Failure> {
        let unavailable =
            |message: String| Failure::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message);
        if !self.context.may_write() {
            return Err(unavailable("this operator is not the leader".into()));
        }
        let Some(object) = self.context.caches.of::<Algorithm>().get(key) else {
            let message = format!("Algorithm {key} not found");
            return Err(Failure::new(StatusCode::NOT_FOUND, "NotFound", message));
        };
        // Without a stable revision, nothing serves.
        let Some(request) = latency_request(&object) else { return Ok(None) };
        if let Some(kept) = self.kept(key) {
            return Ok(kept.latency_ms);
        }
        let measured = async {
            let _slot = self.slots.acquire().await;
            self.sources.stable_latency(&request).await
        };
        let latency_ms = match tokio::time::timeout(DEADLINE, measured).await {
            Ok(latency) => latency.map_err(unavailable)?,
            Err(_) => {
                return Err(unavailable(format!("{} has not answered within {DEADLINE:?}", request.source)));
            }
        };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, kept| kept.at.elapsed() < KEPT_FOR);
        kept.insert(key.clone(), Kept { at: Instant::now(), latency_ms });
        Ok(latency_ms)
    }

    fn kept(&self, key: &Key) -> Option<Kept> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(key).filter(|kept| kept.at.elapsed() < KEPT_FOR).copied()
    }
}
