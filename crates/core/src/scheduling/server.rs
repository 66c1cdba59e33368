//! Servers and their replicas.

use super::{Millis, owner::Owner};
use std::{collections::BTreeMap, fmt, sync::Arc};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId {
    pub server: Arc<str>,
    pub index: u32,
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.server, self.index)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    pub host: String,
    pub http_port: u16,
    pub grpc_port: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replica {
    pub endpoint: Endpoint,
    pub capabilities: Vec<String>,
    pub memory_total: u64,
    /// As last reported by the agent.
    pub memory_free: u64,
    /// Memory over-commit, in percent.
    pub over_commit: u32,
    /// `None` while the agent is connected.
    pub disconnected_since: Option<Millis>,
    pub draining: bool,
    /// Whether a drain request awaits its result.
    pub drain_pending: bool,
    /// Whether it is drained only to scale the server down.
    pub packed: bool,
    /// End of its grace period, in logical time.
    pub due: Option<Millis>,
}

impl Replica {
    pub const fn takes_models(&self) -> bool {
        self.disconnected_since.is_none() && !self.draining
    }

    pub fn memory_real(&self) -> u64 {
        let percent = 100 + u128::from(self.over_commit);
        u64::try_from(u128::from(self.memory_total) * 100 / percent).unwrap_or(self.memory_total)
    }

    /// Whether the durable record is the same.
    pub(super) fn same_record(&self, other: &Self) -> bool {
        self.endpoint == other.endpoint
            && self.capabilities == other.capabilities
            && self.memory_total == other.memory_total
            && self.over_commit == other.over_commit
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedReplicas {
    /// 0: the server is terminating.
    pub replicas: u32,
    pub min: u32,
    /// 0: unbounded.
    pub max: u32,
    pub generation: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// `None` when replicas joined without a server notification.
    pub expected: Option<ExpectedReplicas>,
    pub namespace: Option<String>,
    /// Whether models without an explicit `spec.server` may be placed on it.
    pub shared: bool,
    /// Whether its agents report `shared`.
    pub(super) joined_shared: bool,
    pub owner: Option<Owner>,
    /// Replicas last requested by autoscaling; `None` when the expected number is right.
    pub requested_replicas: Option<u32>,
    pub replicas: BTreeMap<u32, Replica>,
    pub since: Millis,
    /// When a scale-up was last requested, in logical time.
    pub(super) requested_at: Millis,
    /// When to check for surplus replicas, in logical time.
    pub(super) due: Option<Millis>,
    /// Number of packing opportunities so far.
    pub(super) packable: u32,
}

impl Server {
    pub fn is_terminating(&self) -> bool {
        self.expected.is_some_and(|e| e.replicas == 0)
    }

    /// Connected replicas.
    pub fn present(&self) -> usize {
        self.replicas.values().filter(|r| r.disconnected_since.is_none()).count()
    }

    pub(super) fn nothing_draining(&self) -> bool {
        !self.is_terminating() && !self.replicas.values().any(|r| r.draining)
    }

    /// Whether a replica is draining or gone.
    pub(super) fn is_draining(&self, index: u32) -> bool {
        self.is_terminating() || self.replicas.get(&index).is_none_or(|r| r.draining)
    }
}
