//! One memory budget for the request bodies and responses of all connections, with a share per connection.
//!
//! A body is charged before it is buffered; a response after it was computed, so that it is counted although it cannot be
//! refused any more. Both are released when the bytes are dropped, by whichever layer holds them last.

use bytes::Bytes;
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering::Relaxed},
};

/// Smaller buffers are not charged: the limits of requests and connections bound them.
pub const UNCHARGED: usize = 16 << 10;

pub struct MemoryBudget {
    limit: i64,
    limit_per_connection: i64,
    used: Gauge,
    refused: Counter,
}

impl MemoryBudget {
    /// A connection may use a quarter of the budget, but at least one buffer of `max_buffer` bytes.
    pub fn new(limit: usize, max_buffer: usize) -> Self {
        Self {
            limit: saturated(limit),
            limit_per_connection: saturated((limit / 4).max(max_buffer)),
            used: Gauge::default(),
            refused: Counter::default(),
        }
    }

    pub fn register(&self, registry: &mut Registry) {
        let limit: Gauge = Gauge::default();
        limit.set(self.limit);
        registry.register(
            "gantry_gateway_memory_limit_bytes",
            "Memory budget of request bodies and responses",
            limit,
        );
        registry.register(
            "gantry_gateway_memory_used_bytes",
            "Memory of request bodies and responses, charged to the budget",
            self.used.clone(),
        );
        registry.register(
            "gantry_gateway_memory_refused",
            "Requests rejected because the memory budget, or the share of their connection, is used up",
            self.refused.clone(),
        );
    }
}

/// The share of one connection.
pub struct ConnectionMemory {
    budget: Arc<MemoryBudget>,
    used: AtomicI64,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Exhausted;

impl ConnectionMemory {
    pub fn new(budget: &Arc<MemoryBudget>) -> Arc<Self> {
        Arc::new(Self { budget: Arc::clone(budget), used: AtomicI64::new(0) })
    }

    /// Refuses work while responses exceed the budget.
    pub fn check(&self) -> Result<(), Exhausted> {
        let budget = &self.budget;
        if budget.used.get() <= budget.limit && self.used.load(Relaxed) <= budget.limit_per_connection {
            return Ok(());
        }
        budget.refused.inc();
        Err(Exhausted)
    }

    /// Charges a response until its bytes are dropped.
    pub fn charge(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        if bytes.len() <= UNCHARGED {
            return bytes;
        }
        let amount = saturated(bytes.len());
        self.add(amount);
        Bytes::from_owner(Charged { bytes, _held: Held { memory: Arc::clone(self), amount } })
    }

    /// Charges a value until the result is dropped; `None` if it is small.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> Result<Option<Held>, Exhausted> {
        let mut reservation = Reservation::new(self);
        reservation.grow_to(bytes)?;
        Ok(reservation.into_held())
    }

    fn add(&self, bytes: i64) {
        self.used.fetch_add(bytes, Relaxed);
        self.budget.used.inc_by(bytes);
    }
}

/// Memory charged for one buffer; released on drop.
pub struct Reservation<'a> {
    memory: &'a Arc<ConnectionMemory>,
    bytes: i64,
}

impl<'a> Reservation<'a> {
    pub const fn new(memory: &'a Arc<ConnectionMemory>) -> Self {
        Self { memory, bytes: 0 }
    }

    /// Charges up to `total` bytes.
    pub fn grow_to(&mut self, total: usize) -> Result<(), Exhausted> {
        let more = saturated(total) - self.bytes;
        if total <= UNCHARGED || more <= 0 {
            return Ok(());
        }
        self.memory.add(more);
        let budget = &self.memory.budget;
        if budget.used.get() > budget.limit || self.memory.used.load(Relaxed) > budget.limit_per_connection {
            self.memory.add(-more);
            budget.refused.inc();
            return Err(Exhausted);
        }
        self.bytes += more;
        Ok(())
    }

    /// The charge lasts until the bytes are dropped.
    pub fn attach(self, bytes: Bytes) -> Bytes {
        match self.into_held() {
            None => bytes,
            Some(held) => Bytes::from_owner(Charged { bytes, _held: held }),
        }
    }

    fn into_held(mut self) -> Option<Held> {
        let amount = std::mem::take(&mut self.bytes);
        (amount != 0).then(|| Held { memory: Arc::clone(self.memory), amount })
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.bytes != 0 {
            self.memory.add(-self.bytes);
        }
    }
}

/// Memory charged for a value; released on drop.
pub struct Held {
    memory: Arc<ConnectionMemory>,
    amount: i64,
}

struct Charged {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.add(-self.amount);
    }
}

fn saturated(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn budget_is_shared_and_released() {
        let budget = Arc::new(MemoryBudget::new(4 * MIB, MIB));
        let connections: Vec<_> = (0..5).map(|_| ConnectionMemory::new(&budget)).collect();
        let mut held = Vec::new();
        for connection in connections.iter().take(4) {
            let mut reservation = Reservation::new(connection);
            assert_eq!(reservation.grow_to(MIB), Ok(()));
            assert_eq!(reservation.grow_to(MIB + 1), Err(Exhausted), "the share of a connection");
            held.push(reservation.attach(vec![0; MIB].into()));
        }
        let last = connections.last().unwrap();
        let mut refused = Reservation::new(last);
        assert_eq!(refused.grow_to(UNCHARGED), Ok(()), "small buffers are not charged");
        assert_eq!(refused.grow_to(MIB), Err(Exhausted), "the whole budget");
        assert_eq!(last.check(), Ok(()));
        let slice = held.pop().unwrap().slice(..10);
        assert_eq!(refused.grow_to(MIB), Err(Exhausted), "a slice keeps the buffer");
        drop(slice);
        assert_eq!(refused.grow_to(MIB), Ok(()));
        drop((held, refused));
        assert_eq!(budget.used.get(), 0);
    }

    #[test]
    fn held_value_is_charged_until_dropped() {
        let budget = Arc::new(MemoryBudget::new(2 * MIB, MIB));
        let connection = ConnectionMemory::new(&budget);
        assert!(connection.hold(UNCHARGED).is_ok_and(|held| held.is_none()));
        let held = connection.hold(MIB).unwrap_or_default();
        assert_eq!(budget.used.get(), 1 << 20);
        assert!(connection.hold(MIB).is_err());
        drop(held);
        assert_eq!(budget.used.get(), 0);
    }

    #[test]
    fn response_over_the_budget_is_charged() {
        let budget = Arc::new(MemoryBudget::new(MIB, MIB));
        let connection = ConnectionMemory::new(&budget);
        let response = connection.charge(vec![0; 2 * MIB].into());
        assert_eq!(connection.check(), Err(Exhausted));
        drop(response);
        assert_eq!(connection.check(), Ok(()));
    }
}
