//! Why something is as it is, as a word that a program can match.

use std::fmt;

/// The cause of a state. Displayed as its own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Nothing is wrong.
    Ready,
    /// No server has joined.
    NoServer,
    /// The server that the model names has not joined.
    UnknownServer,
    /// Every server that could take it is dedicated to models that name it.
    NotShared,
    /// The server that could take it is going away.
    ServerLeaving,
    /// No server offers what the model requires.
    NoCapability,
    /// No replica has the memory.
    NoMemory,
    /// Fewer replicas can take it than are wanted.
    TooFewReplicas,
    /// A replica could not load it.
    LoadFailed,
    /// A replica had too little memory when it came to load it.
    LoadFailedMemory,
    /// A replica could not unload it.
    UnloadFailed,
    /// A replica that holds it, or could, does not answer.
    Silent,
    /// A replica that holds it is being drained.
    Draining,
    /// It is being loaded.
    Loading,
    /// It is loaded, and some gateway does not route to it yet.
    Routing,
    /// It sleeps until somebody asks for it.
    Sleeping,
    /// No replica is wanted.
    ScaledDown,
    /// It is being unloaded.
    Terminating,
    /// It was deleted.
    Deleted,
    /// A newer version has its place.
    Superseded,
    /// Fewer replicas of the server have joined than are expected.
    ReplicasMissing,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
