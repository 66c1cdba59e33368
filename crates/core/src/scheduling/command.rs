//! What goes into the state, and what comes out.

use super::{
    model::Definition,
    server::{Expectation, Replica, ReplicaId},
};
use std::{collections::BTreeSet, fmt, sync::Arc};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Somebody asks for a model.
    LoadModel(Box<Definition>),
    /// Somebody wants a model gone.
    UnloadModel {
        /// Its name.
        name: Arc<str>,
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
    /// An agent is gone.
    ReplicaLost {
        /// Which replica it was.
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
}

/// Why a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such model.
    UnknownModel(Arc<str>),
    /// The model is being unloaded; a new one of that name has to wait until it is gone.
    StillTerminating(Arc<str>),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownModel(name) => {
                write!(f, "model {name} is not known: `gantry get models` lists those that are")
            }
            Self::StillTerminating(name) => {
                write!(f, "model {name} is still being unloaded: load it again when it is gone")
            }
        }
    }
}

impl std::error::Error for Refusal {}
