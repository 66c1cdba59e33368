//! Request body reading: bounded in size, time, memory, and number of incomplete bodies.

pub(super) use gantry_transport::body::too_large;

use super::{Worker, client::Client, grpc::message_length};
use bytes::Bytes;
use gantry_oip::{Code, Error, grpc::PREFIX};
use gantry_transport::{Protocol, body::read_more, memory::Reservation};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};
use tokio::time::Instant;

/// Responses up to this size are buffered. This much of a request body must arrive within the body timeout.
pub(crate) const SMALL: usize = 64 << 10;

/// How long a rejected request's body is read, so that its connection can be kept.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// What a body is read for.
pub(super) struct BodyLimits<'a> {
    pub(super) client: &'a Arc<Client>,
    pub(super) protocol: Protocol,
    pub(super) max: usize,
    pub(super) deadline: Instant,
}

impl Worker {
    /// Reads a whole body. A body that has not arrived yet counts as incomplete; it holds no slot of a replica.
    pub(super) async fn read_body(
        &self,
        body: &mut Incoming,
        limits: &BodyLimits<'_>,
    ) -> Result<Bytes, Error> {
        if body.size_hint().lower() > limits.max as u64 {
            return Err(too_large(limits.max));
        }
        let mut memory = Reservation::new(&limits.client.memory);
        let mut incomplete = None;
        let (first, wanted) = {
            let charge = |total| memory.grow_to(total).map_err(|_| memory_exhausted(limits.protocol));
            let mut reading = pin!(first_part(body, limits, charge));
            if let Poll::Ready(read) = futures::poll!(reading.as_mut()) {
                read?
            } else {
                incomplete = Some(self.incomplete(limits.client, limits.protocol)?);
                let deadline = limits.deadline.min(Instant::now() + self.shared.config.body_timeout);
                tokio::time::timeout_at(deadline, reading).await.map_err(|_| late())??
            }
        };
        if first.len() >= wanted {
            return Ok(memory.attach(first));
        }
        if incomplete.is_none() {
            incomplete = Some(self.incomplete(limits.client, limits.protocol)?);
        }
        let charge = |total| memory.grow_to(total).map_err(|_| memory_exhausted(limits.protocol));
        let reading = read_more(body, first, wanted, limits.max, charge);
        let (whole, _) = tokio::time::timeout_at(limits.deadline, reading).await.map_err(|_| late())??;
        drop(incomplete);
        Ok(memory.attach(whole))
    }

    /// Counts a body as incomplete. Each connection may have one; more are limited, for the connection and in total.
    pub(super) fn incomplete(&self, client: &Arc<Client>, protocol: Protocol) -> Result<Incomplete, Error> {
        let config = &self.shared.config;
        let total = self.shared.metrics.incomplete_bodies.inc();
        let own = client.incomplete.fetch_add(1, Ordering::Relaxed);
        let counted =
            Incomplete { client: Arc::clone(client), total: self.shared.metrics.incomplete_bodies.clone() };
        let total_reached = usize::try_from(total).unwrap_or(0) >= config.max_incomplete;
        if own >= config.max_incomplete_per_connection || (own > 0 && total_reached) {
            self.shared.metrics.shed.inc();
            return Err(overloaded(protocol, "too many requests with incomplete bodies: retry in 1 s"));
        }
        Ok(counted)
    }
}

/// The body if small, else its first part, and the size to read.
async fn first_part(
    body: &mut Incoming,
    limits: &BodyLimits<'_>,
    mut charge: impl FnMut(usize) -> Result<(), Error>,
) -> Result<(Bytes, usize), Error> {
    if limits.protocol == Protocol::Rest {
        let (first, ended) = read_more(body, Bytes::new(), SMALL, limits.max, &mut charge).await?;
        let wanted = if ended { first.len() } else { usize::MAX };
        return Ok((first, wanted));
    }
    let (first, _) = read_more(body, Bytes::new(), PREFIX, limits.max, &mut charge).await?;
    let Some(length) = message_length(&first) else {
        return Err(Error::invalid(format!("a gRPC body of {} bytes has no message", first.len())));
    };
    if length > limits.max {
        return Err(too_large(limits.max));
    }
    let wanted = PREFIX + length;
    let (first, _) = read_more(body, first, wanted.min(SMALL), limits.max, &mut charge).await?;
    Ok((first, wanted))
}

/// A body that has not arrived completely, until dropped.
pub(super) struct Incomplete {
    client: Arc<Client>,
    total: prometheus_client::metrics::gauge::Gauge,
}

impl Drop for Incomplete {
    fn drop(&mut self) {
        self.client.incomplete.fetch_sub(1, Ordering::Relaxed);
        self.total.dec();
    }
}

/// Reads the rest of a small body and discards it; returns whether it ended.
pub(super) async fn drain(body: &mut Incoming) -> bool {
    let draining = async {
        let mut left = SMALL;
        loop {
            match body.frame().await {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(frame)) => {
                    let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else {
                        return false;
                    };
                    left = rest;
                }
            }
        }
    };
    tokio::time::timeout(DRAIN_TIMEOUT, draining).await.unwrap_or(false)
}

fn late() -> Error {
    Error::new(Code::DeadlineExceeded, "the body did not arrive in time")
}

pub(crate) fn memory_exhausted(protocol: Protocol) -> Error {
    overloaded(protocol, "the gateway is at its memory limit: retry in 1 s")
}

fn overloaded(protocol: Protocol, message: &str) -> Error {
    let code = match protocol {
        Protocol::Rest => Code::Unavailable,
        Protocol::Grpc => Code::ResourceExhausted,
    };
    Error { retry_after: Some(1), ..Error::new(code, message) }
}
