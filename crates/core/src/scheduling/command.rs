//! What goes into the state, and what comes out.

use super::{
    Millis,
    manager::{Kind, Manager},
    model::Definition,
    server::{Expectation, Replica, ReplicaId},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Somebody asks for a model.
    LoadModel {
        /// The model.
        definition: Box<Definition>,
        /// Who asks.
        by: Manager,
    },
    /// Somebody wants a model gone.
    UnloadModel {
        /// Its name.
        name: Arc<str>,
        /// Who asks.
        by: Manager,
    },
    /// Somebody takes a model over from whoever manages it.
    AdoptModel {
        /// Its name.
        name: Arc<str>,
        /// The new manager.
        by: Manager,
    },
    /// Somebody takes a server over from whoever manages it.
    AdoptServer {
        /// Its name.
        name: Arc<str>,
        /// The new manager.
        by: Manager,
    },
    /// Somebody announces a server.
    ExpectServer {
        /// Its name.
        name: Arc<str>,
        /// How many replicas are expected.
        expected: Expectation,
        /// Whether models that do not name it may be placed on it.
        shared: bool,
        /// Its Kubernetes namespace.
        namespace: Option<String>,
        /// Who announces it.
        by: Manager,
    },
    /// An agent subscribed.
    ReplicaJoined {
        /// Which replica it is.
        id: ReplicaId,
        /// What it offers.
        replica: Replica,
        /// Whether models that do not name the server may be placed on it.
        shared: bool,
        /// The model versions that it holds.
        loaded: Vec<(Arc<str>, u32)>,
    },
    /// The connection to an agent ended without a goodbye. Its replica keeps its routes for the time of grace, because
    /// requests reach it without us, but it does not count as available; after the grace it is lost.
    ReplicaSilent {
        /// Which replica it is.
        id: ReplicaId,
    },
    /// An agent said goodbye, or nothing can be there any more.
    ReplicaLost {
        /// Which replica it was.
        id: ReplicaId,
    },
    /// A replica is about to go: its models are served elsewhere first, then taken from it. The answer comes in
    /// [`Effects::drained`], now or later.
    DrainReplica {
        /// Which replica it is.
        id: ReplicaId,
    },
    /// An agent reports on a model.
    ReplicaReported {
        /// Which replica it is.
        id: ReplicaId,
        /// The model.
        model: Arc<str>,
        /// The version.
        version: u32,
        /// What happened.
        event: ReplicaEvent,
        /// Memory that is free now.
        memory_free: u64,
    },
    /// Every gateway has applied route changes up to a number, and is done with what was taken away up to another.
    RoutesSettled {
        /// Applied everywhere.
        applied: u64,
        /// Drained everywhere.
        drained: u64,
    },
    /// Somebody who watches a model's load asks for more or fewer replicas.
    ScaleModel {
        /// The model.
        name: Arc<str>,
        /// The version; a request for any but the latest changes nothing.
        version: u32,
        /// How many more; fewer when negative.
        change: i32,
    },
    /// What all gateways together see asked of a model.
    DemandSeen {
        /// The model.
        model: Arc<str>,
        /// Requests under way at once, in thousandths.
        in_flight_milli: u64,
        /// Requests answered since the last report.
        answered: u64,
        /// A request waits for a replica: a model that sleeps is to wake.
        waiting: bool,
    },
    /// Time passed.
    Tick,
}

/// What an agent says of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaEvent {
    /// It can serve.
    Loaded {
        /// How many times the model's memory it takes, when the runtime says so.
        multiplier: Option<u64>,
    },
    /// It could not be loaded.
    LoadFailed {
        /// Why.
        reason: String,
    },
    /// It could not be loaded because the memory was not there when it came to it.
    LoadFailedMemory {
        /// Why.
        reason: String,
    },
    /// It is gone.
    Unloaded,
    /// It could not be unloaded.
    UnloadFailed {
        /// Why.
        reason: String,
    },
}

/// What an agent is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// For which replica.
    pub replica: ReplicaId,
    /// The model.
    pub model: Arc<str>,
    /// The version.
    pub version: u32,
    /// The whole definition when it is to be loaded, `None` when it is to be unloaded.
    pub load: Option<Arc<[u8]>>,
    /// Whether its load decides how many replicas there are.
    pub autoscaled: bool,
}

/// What follows from a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Models whose stored record is out of date: must be durable before the command is acknowledged.
    pub store_models: BTreeSet<Arc<str>>,
    /// Servers whose stored record is out of date.
    pub store_servers: BTreeSet<Arc<str>>,
    /// What agents are to do, in this order.
    pub orders: Vec<Order>,
    /// Models whose status changed.
    pub models: BTreeSet<Arc<str>>,
    /// Servers whose status changed.
    pub servers: BTreeSet<Arc<str>>,
    /// Models whose route changed.
    pub routes: BTreeSet<Arc<str>>,
    /// Servers that are to have another number of replicas, and which.
    pub scale_servers: BTreeMap<Arc<str>, u32>,
    /// Answers to [`Command::DrainReplica`]: whether everything could be moved.
    pub drained: Vec<(ReplicaId, bool)>,
    /// When [`Command::Tick`] is next of use.
    pub wake_at: Option<Millis>,
}

impl Effects {
    /// Adds what followed from a later command.
    pub fn merge(&mut self, later: Self) {
        self.store_models.extend(later.store_models);
        self.store_servers.extend(later.store_servers);
        self.orders.extend(later.orders);
        self.models.extend(later.models);
        self.servers.extend(later.servers);
        self.routes.extend(later.routes);
        self.scale_servers.extend(later.scale_servers);
        self.drained.extend(later.drained);
        // The later command has seen everything that there is to wait for.
        self.wake_at = later.wake_at;
    }
}

/// Why a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such model.
    UnknownModel(Arc<str>),
    /// The model is being unloaded; a new one of that name has to wait until it is gone.
    StillTerminating(Arc<str>),
    /// There is no such server.
    UnknownServer(Arc<str>),
    /// The object belongs to somebody else.
    Owned {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: Arc<str>,
        /// Whose it is.
        owner: Manager,
        /// The object's generation in Kubernetes, when it comes from there.
        generation: Option<i64>,
        /// Whether it was to go, rather than to change.
        delete: bool,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownModel(name) => {
                write!(f, "model {name} is not known: `gantry get models` lists those that are")
            }
            Self::UnknownServer(name) => {
                write!(f, "server {name} is not known: `gantry get servers` lists those that are")
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
    owner: &Manager,
    generation: Option<i64>,
    delete: bool,
) -> fmt::Result {
    let verb = if delete { "delete" } else { "change" };
    match owner {
        Manager::File(path) if delete => write!(f, "{name} belongs to the file {path}: remove it there")?,
        Manager::File(path) => write!(f, "{name} belongs to the file {path}: change it there")?,
        Manager::Cli => write!(f, "{name} belongs to the command line: {verb} it with gantry {}", {
            if delete { format!("delete {kind}/{name}") } else { "apply".to_owned() }
        })?,
        Manager::Operator { namespace } => {
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
        // No object ever belongs to a gateway: it acts for the owner.
        Manager::Gateway => write!(f, "{name} belongs to somebody else")?,
        Manager::Other(word) => write!(f, "{name} belongs to {word}: {verb} it there")?,
    }
    write!(f, ".\nTo take it over on purpose: gantry adopt {kind}/{name}")
}

impl std::error::Error for Refusal {}
