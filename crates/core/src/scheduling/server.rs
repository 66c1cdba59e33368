//! Servers and their replicas.

use super::{Millis, manager::Manager};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// One replica of a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId {
    /// The server's name.
    pub server: Arc<str>,
    /// The replica's index, from 0.
    pub index: u32,
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.server, self.index)
    }
}

/// Where a replica takes requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Host name or address.
    pub host: String,
    /// Port for REST.
    pub http_port: u16,
    /// Port for gRPC.
    pub grpc_port: u16,
}

/// A replica that has joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replica {
    /// Where it takes requests.
    pub endpoint: Endpoint,
    /// What it can run.
    pub capabilities: Vec<String>,
    /// Memory for models, over-commit included.
    pub memory_total: u64,
    /// Memory that its agent last reported as free.
    pub memory_free: u64,
    /// How much more than its memory it promises, in percent.
    pub over_commit: u32,
    /// Since when its agent has not been heard of; `None` while it is connected.
    pub silent_since: Option<Millis>,
    /// Whether it is about to go.
    pub draining: bool,
    /// Whether whoever asked to drain it waits for the answer.
    pub owes_answer: bool,
    /// Whether it is only drained so that the server can do without it.
    pub packed: bool,
    /// When its grace ends, in time that passed.
    pub due: Option<Millis>,
}

impl Replica {
    /// Whether new models may be placed on it.
    pub const fn takes_models(&self) -> bool {
        self.silent_since.is_none() && !self.draining
    }

    /// Memory without over-commit.
    pub fn memory_real(&self) -> u64 {
        let percent = 100 + u128::from(self.over_commit);
        u64::try_from(u128::from(self.memory_total) * 100 / percent).unwrap_or(self.memory_total)
    }

    /// Whether what has to last of it is the same.
    pub(super) fn lasts_as(&self, other: &Self) -> bool {
        self.endpoint == other.endpoint
            && self.capabilities == other.capabilities
            && self.memory_total == other.memory_total
            && self.over_commit == other.over_commit
    }
}

/// How many replicas of a server are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// Expected; 0 means that the server is going away.
    pub replicas: u32,
    /// Fewest.
    pub min: u32,
    /// Most; 0 for no bound.
    pub max: u32,
    /// The object's generation in Kubernetes.
    pub generation: Option<i64>,
}

/// A server: what is expected of it, and the replicas that have joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// What was announced; `None` when replicas joined unannounced.
    pub expected: Option<Expectation>,
    /// Its Kubernetes namespace.
    pub namespace: Option<String>,
    /// Whether models that do not name it may be placed on it.
    pub shared: bool,
    /// Whether its replicas say so.
    pub(super) joined_shared: bool,
    /// Who manages it; nobody when its replicas joined unannounced.
    pub manager: Option<Manager>,
    /// How many replicas it was last asked to have; `None` when what was announced is right.
    pub asked: Option<u32>,
    /// The replicas that have joined.
    pub replicas: BTreeMap<u32, Replica>,
    /// When it last changed.
    pub since: Millis,
    /// When it was last asked to have more replicas, in time that passed.
    pub(super) asked_at: Millis,
    /// When to look whether it has too many replicas, in time that passed.
    pub(super) due: Option<Millis>,
    /// How often its models could have been packed.
    pub(super) packable: u32,
}

impl Server {
    /// Whether it is going away.
    pub fn is_leaving(&self) -> bool {
        self.expected.is_some_and(|e| e.replicas == 0)
    }

    /// How many of its replicas are connected.
    pub fn present(&self) -> usize {
        self.replicas.values().filter(|r| r.silent_since.is_none()).count()
    }

    /// Whether none of its replicas is about to go.
    pub(super) fn nothing_goes(&self) -> bool {
        !self.is_leaving() && !self.replicas.values().any(|r| r.draining)
    }

    /// Whether a replica of it is about to go, or gone.
    pub(super) fn goes(&self, index: u32) -> bool {
        self.is_leaving() || self.replicas.get(&index).is_none_or(|r| r.draining)
    }
}
