//! Mirrors of experiments and of rollouts: copies of requests, sent in the background. The response of a mirror is dropped, or
//! compared with that of the request.
//!
//! A mirror has limits of its own, so that one that hangs takes nothing from the requests that it copies.

use super::{
    Worker,
    destination::Wanted,
    forward::{Call, Head, Target},
};
use crate::routes::{Candidate, Experiment, InFlightRequest, MirrorCopy, Selector};
use bytes::Bytes;
use gantry_oip::grpc::MODEL_INFER;
use gantry_transport::{
    Protocol,
    body::Payload,
    deadline,
    memory::{ConnectionMemory, Held, MemoryBudget},
};
use http::{HeaderMap, HeaderValue, Method, Uri};
use http_body_util::BodyExt as _;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// Copies in flight, of all mirrors.
const MAX_MIRRORED: usize = 256;
/// A larger body is copied on a blocking thread, so that the copy delays no other request; to wake that thread takes longer than
/// to copy a smaller one.
const SMALL_BODY: usize = 64 << 10;
/// Memory of the copies in flight.
const MAX_MIRRORED_BYTES: usize = 64 << 20;
/// From the start of a copy to its end.
pub(crate) const MIRROR_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Mirrors {
    in_flight: AtomicUsize,
    pub(crate) memory: Arc<ConnectionMemory>,
}

/// A copy in flight until dropped.
pub(crate) struct Mirrored {
    worker: Arc<Worker>,
    pub(crate) target: Arc<str>,
}

impl Mirrors {
    pub(crate) fn new() -> Self {
        let budget = Arc::new(MemoryBudget::new(MAX_MIRRORED_BYTES, MAX_MIRRORED_BYTES));
        Self { in_flight: AtomicUsize::new(0), memory: ConnectionMemory::new(&budget) }
    }
}

impl Drop for Mirrored {
    fn drop(&mut self) {
        self.worker.shared.mirrors.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An inference request to copy.
pub(super) struct Original<'a> {
    pub(super) protocol: Protocol,
    pub(super) headers: &'a HeaderMap,
    pub(super) request_id: &'a HeaderValue,
    pub(super) body: &'a Bytes,
}

impl Worker {
    /// Copies a share of the requests to the mirrors of an experiment and of a rollout.
    pub(super) fn mirror_all(self: &Arc<Self>, in_flight: &mut InFlightRequest, original: &Original<'_>) {
        if let Some(experiment) = in_flight.experiment.clone() {
            self.mirror(&experiment, original);
        }
        self.mirror_version(in_flight, original);
    }

    /// Copies a share of the requests to the experiment's mirror.
    fn mirror(self: &Arc<Self>, experiment: &Experiment, original: &Original<'_>) {
        if let Some((mirrored, held)) = self.mirrored(experiment, original.body.len()) {
            self.spawn_copy(mirrored, held, original, None);
        }
    }

    /// Copies a request to a version that is rolled out, if it is one of the mirrored share.
    fn mirror_version(self: &Arc<Self>, in_flight: &mut InFlightRequest, original: &Original<'_>) {
        let Some(copy) = in_flight.mirror.take() else { return };
        let model = Arc::clone(&in_flight.version.model);
        if let Some((mirrored, held)) = self.copy_in_flight(model, original.body.len()) {
            in_flight.comparison.clone_from(&copy.comparison);
            self.spawn_copy(mirrored, held, original, Some(*copy));
        }
    }

    fn spawn_copy(
        self: &Arc<Self>,
        mirrored: Mirrored,
        held: Option<Held>,
        original: &Original<'_>,
        version: Option<MirrorCopy>,
    ) {
        let worker = Arc::clone(self);
        let head = Head {
            method: Method::POST,
            headers: original.headers.clone(),
            request_id: original.request_id.clone(),
        };
        let (protocol, body) = (original.protocol, original.body.clone());
        tokio::spawn(async move {
            let started = Instant::now();
            let sending = worker.send_copy(&mirrored, version, protocol, head, body, started);
            let _ = tokio::time::timeout_at(deadline(started, MIRROR_TIMEOUT), sending).await;
            drop((held, mirrored));
        });
    }

    /// Counts a copy of this size in flight, if the request is one of the mirrored share.
    pub(crate) fn mirrored(
        self: &Arc<Self>,
        experiment: &Experiment,
        bytes: usize,
    ) -> Option<(Mirrored, Option<Held>)> {
        let target: &Candidate = experiment.mirror(fastrand::u64(..))?;
        let copy = self.copy_in_flight(Arc::clone(&target.name), bytes);
        let counter = if copy.is_some() { &target.metrics.mirrored } else { &target.metrics.dropped };
        counter.inc();
        copy
    }

    /// Counts a copy of this size in flight, within the limits of all mirrors.
    fn copy_in_flight(self: &Arc<Self>, target: Arc<str>, bytes: usize) -> Option<(Mirrored, Option<Held>)> {
        let mirrors = &self.shared.mirrors;
        let before = mirrors.in_flight.fetch_add(1, Ordering::Relaxed);
        let mirrored = Mirrored { worker: Arc::clone(self), target };
        let held = mirrors.memory.hold(bytes).ok().filter(|_| before < MAX_MIRRORED)?;
        Some((mirrored, held))
    }

    async fn send_copy(
        self: &Arc<Self>,
        mirrored: &Mirrored,
        version: Option<MirrorCopy>,
        protocol: Protocol,
        head: Head,
        body: Bytes,
        started: Instant,
    ) {
        let number = version.as_ref().map(|copy| copy.version);
        let in_flight = match version {
            None => self.acquire(Wanted::internal(&mirrored.target, true), None, protocol).ok(),
            Some(MirrorCopy { version, comparison }) => {
                let selector = Selector { version: Some(version), is_chosen: true, ..self.selector() };
                let selected = self.shared.routes.acquire(&mirrored.target, &selector).inspect_err(|error| {
                    error.record_unreachable();
                });
                selected.ok().map(|mut in_flight| {
                    in_flight.comparison = comparison;
                    in_flight
                })
            }
        };
        let Some(in_flight) = in_flight else { return };
        let Some(body) = copy(body).await else { return };
        let call = Call {
            model: Arc::clone(&in_flight.version.model),
            sticky: None,
            version: number,
            sequence: None,
            protocol,
            infer: true,
            started,
            deadline: deadline(started, MIRROR_TIMEOUT),
            trace: None,
            step: None,
            is_component: false,
        };
        let uri = Uri::from_static(MODEL_INFER);
        let target = match protocol {
            Protocol::Rest => Target::Rest { tail: "/infer", query: None, infer: true },
            Protocol::Grpc => Target::Grpc(&uri),
        };
        if let Ok(response) = self.forward(&call, in_flight, &target, head, Payload::Whole(body)).await {
            let mut body = response.into_body();
            while let Some(Ok(_)) = body.frame().await {}
        }
    }
}

/// The original is charged to the client's connection until its bytes are dropped.
async fn copy(body: Bytes) -> Option<Bytes> {
    if body.len() <= SMALL_BODY {
        return Some(Bytes::copy_from_slice(&body));
    }
    tokio::task::spawn_blocking(move || Bytes::copy_from_slice(&body)).await.ok()
}
