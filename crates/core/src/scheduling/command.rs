//! Commands applied to the state, and their effects.

use super::{
    Millis,
    model::Definition,
    owner::{Kind, Owner},
    server::{ExpectedReplicas, Replica, ReplicaId},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

/// A request, a report or the passage of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Creates or updates a model.
    LoadModel {
        definition: Box<Definition>,
        by: Owner,
    },
    /// Deletes a model.
    UnloadModel {
        name: Arc<str>,
        by: Owner,
    },
    /// Transfers ownership of a model.
    AdoptModel {
        name: Arc<str>,
        by: Owner,
    },
    /// Transfers ownership of a server.
    AdoptServer {
        name: Arc<str>,
        by: Owner,
    },
    /// Creates or updates a server.
    UpsertServer {
        name: Arc<str>,
        expected: ExpectedReplicas,
        /// Whether models without an explicit `spec.server` may be placed on it.
        shared: bool,
        namespace: Option<String>,
        by: Owner,
    },
    ReplicaJoined {
        id: ReplicaId,
        replica: Replica,
        /// Whether models without an explicit `spec.server` may be placed on the server.
        shared: bool,
        /// Model versions in its memory.
        loaded: Vec<(Arc<str>, u32)>,
    },
    /// The connection to an agent ended without deregistration. The replica keeps its routes during the grace period,
    /// because requests do not pass through the scheduler, but is not available; afterwards it is lost.
    ReplicaDisconnected {
        id: ReplicaId,
    },
    /// An agent deregistered, or its grace period ended.
    ReplicaLost {
        id: ReplicaId,
    },
    /// A replica is about to terminate: its models are served elsewhere first, then unloaded. The result is reported in
    /// [`Effects::drained`], now or later.
    DrainReplica {
        id: ReplicaId,
    },
    ReplicaReported {
        id: ReplicaId,
        model: Arc<str>,
        version: u32,
        event: ReplicaEvent,
        memory_free: u64,
    },
    /// Every gateway has applied routes up to sequence `applied`, and has no requests in flight on routes removed up to
    /// sequence `drained`.
    RoutesAcknowledged {
        applied: u64,
        drained: u64,
    },
    /// An external autoscaling trigger changes the number of replicas.
    ScaleModel {
        name: Arc<str>,
        /// Ignored unless it is the latest version.
        version: u32,
        change: i32,
    },
    /// Request load of a model, summed over all gateways.
    DemandReported {
        model: Arc<str>,
        /// Mean requests in flight, times 1,000.
        in_flight_milli: u64,
        answered: u64,
        /// A request is queued for a model that is scaled to zero.
        waiting: bool,
    },
    Tick,
}

/// An agent's report about a model version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaEvent {
    Loaded {
        /// Memory multiplier reported by the runtime (one copy per worker).
        multiplier: Option<u64>,
    },
    LoadFailed {
        reason: String,
    },
    /// Loading failed for lack of memory.
    LoadFailedMemory {
        reason: String,
    },
    Unloaded,
    UnloadFailed {
        reason: String,
    },
}

/// A load or unload order for an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub replica: ReplicaId,
    pub model: Arc<str>,
    pub version: u32,
    /// The definition to load; `None` to unload.
    pub load: Option<Arc<Definition>>,
    /// Whether the agent may trigger autoscaling for it.
    pub autoscaled: bool,
}

/// Consequences of a command, to be carried out by the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Models whose stored record is out of date; it must be durable before the command is acknowledged.
    pub store_models: BTreeSet<Arc<str>>,
    /// Servers whose stored record is out of date.
    pub store_servers: BTreeSet<Arc<str>>,
    /// In the order in which agents must receive them.
    pub orders: Vec<Order>,
    /// Models whose status changed.
    pub models: BTreeSet<Arc<str>>,
    /// Servers whose status changed.
    pub servers: BTreeSet<Arc<str>>,
    /// Models whose route changed.
    pub routes: BTreeSet<Arc<str>>,
    /// Servers to scale, with the requested number of replicas.
    pub scale_servers: BTreeMap<Arc<str>, u32>,
    /// Results of [`Command::DrainReplica`]: whether every model was moved.
    pub drained: Vec<(ReplicaId, bool)>,
    /// When the next [`Command::Tick`] is due.
    pub wake_at: Option<Millis>,
}

impl Effects {
    /// Adds the effects of a later command.
    pub fn merge(&mut self, later: Self) {
        self.store_models.extend(later.store_models);
        self.store_servers.extend(later.store_servers);
        self.orders.extend(later.orders);
        self.models.extend(later.models);
        self.servers.extend(later.servers);
        self.routes.extend(later.routes);
        self.scale_servers.extend(later.scale_servers);
        self.drained.extend(later.drained);
        // The later command computed it over all timers.
        self.wake_at = later.wake_at;
    }
}

/// Why a command was rejected. A rejected command changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    UnknownModel(Arc<str>),
    /// The model is being unloaded; its name is free again when that is complete.
    StillTerminating(Arc<str>),
    UnknownServer(Arc<str>),
    /// The object has another owner.
    Owned {
        kind: Kind,
        name: Arc<str>,
        owner: Owner,
        /// `metadata.generation`, for objects of the operator.
        generation: Option<i64>,
        /// Whether the command was a deletion.
        delete: bool,
    },
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownModel(name) => {
                write!(f, "model {name} not found: `gantry get models` lists all")
            }
            Self::UnknownServer(name) => {
                write!(f, "server {name} not found: `gantry get servers` lists all")
            }
            Self::StillTerminating(name) => {
                write!(f, "model {name} is still being unloaded: load it again when it is gone")
            }
            Self::Owned { kind, name, owner, generation, delete } => {
                owned(f, *kind, name, owner, *generation, *delete)
            }
        }
    }
}

fn owned(
    f: &mut fmt::Formatter<'_>,
    kind: Kind,
    name: &str,
    owner: &Owner,
    generation: Option<i64>,
    delete: bool,
) -> fmt::Result {
    let verb = if delete { "delete" } else { "change" };
    match owner {
        Owner::File(path) if delete => write!(f, "{name} belongs to the file {path}: remove it there")?,
        Owner::File(path) => write!(f, "{name} belongs to the file {path}: change it there")?,
        Owner::Cli => write!(f, "{name} belongs to the command line: {verb} it with gantry {}", {
            if delete { format!("delete {kind}/{name}") } else { "apply".to_owned() }
        })?,
        Owner::Operator { namespace } => {
            let generation = generation.map(|g| format!(", generation {g}")).unwrap_or_default();
            let (place, flag) = if namespace.is_empty() {
                (String::new(), String::new())
            } else {
                (format!("namespace {namespace}"), format!(" -n {namespace}"))
            };
            let inner = format!("{place}{generation}");
            let inner = inner.trim_start_matches(", ");
            let inner = if inner.is_empty() { String::new() } else { format!(" ({inner})") };
            let with = if delete { "delete" } else { "edit" };
            write!(
                f,
                "{name} belongs to the operator{inner}: {verb} it there, with kubectl {with} {kind} {name}{flag}"
            )?;
        }
        // A gateway acts for the owner and never becomes one.
        Owner::Gateway => write!(f, "{name} has another owner")?,
        Owner::Other(word) => write!(f, "{name} belongs to {word}: {verb} it there")?,
    }
    write!(f, ".\nTo take it over on purpose: gantry adopt {kind}/{name}")
}

impl std::error::Error for Rejection {}
