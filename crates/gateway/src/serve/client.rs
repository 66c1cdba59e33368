//! State of a client connection and of a request on it.

use super::{Shared, Worker, access::Access, request_body};
use gantry_oip::Error;
use gantry_transport::{
    Protocol,
    memory::{ConnectionMemory, MemoryBudget},
};
use std::sync::{Arc, atomic::AtomicUsize};

/// A client connection.
pub(crate) struct Client {
    pub(crate) memory: Arc<ConnectionMemory>,
    /// Requests whose body has not arrived completely.
    pub(super) incomplete: AtomicUsize,
}

impl Client {
    pub(super) fn new(budget: &Arc<MemoryBudget>) -> Arc<Self> {
        Arc::new(Self { memory: ConnectionMemory::new(budget), incomplete: AtomicUsize::new(0) })
    }
}

/// A request and what it holds until its response is written.
pub(super) struct Exchange {
    pub(super) client: Arc<Client>,
    pub(super) admitted: Option<Admitted>,
    pub(super) access: Access,
}

/// A request counted in flight until dropped.
pub(crate) struct Admitted {
    shared: Arc<Shared>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.shared.metrics.in_flight.dec();
    }
}

impl Worker {
    /// Counts a request in flight, or sheds it. Called when the body has arrived.
    pub(super) fn admit(&self, client: &Client, protocol: Protocol) -> Result<Admitted, Error> {
        let metrics = &self.shared.metrics;
        let before = metrics.in_flight.inc();
        let admitted = Admitted { shared: Arc::clone(&self.shared) };
        if usize::try_from(before).unwrap_or(0) >= self.shared.config.max_in_flight {
            metrics.shed.inc();
            return Err(Error::unavailable("the gateway is at its request limit: retry in 1 s", 1));
        }
        client.memory.check().map_err(|_| request_body::memory_exhausted(protocol))?;
        Ok(admitted)
    }
}
