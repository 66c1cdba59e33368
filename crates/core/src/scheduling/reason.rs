//! Machine-readable reasons. The names are part of the API.

use std::fmt;

/// Displayed as its own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    Ready,
    NoServer,
    /// The server named by the model has not joined.
    UnknownServer,
    /// Every suitable server is dedicated to models that name it.
    NotShared,
    /// Every suitable server is terminating.
    ServerLeaving,
    /// No server offers the required capabilities.
    NoCapability,
    /// No replica has enough free memory.
    NoMemory,
    /// Fewer replicas can be placed than desired.
    TooFewReplicas,
    LoadFailed,
    /// A load failed for lack of memory.
    LoadFailedMemory,
    UnloadFailed,
    /// A replica that holds it, or could, is disconnected.
    Silent,
    Draining,
    Loading,
    /// Loaded, but not acknowledged by every gateway.
    Routing,
    /// Scaled to zero until the next request.
    Sleeping,
    /// `replicas: 0`.
    ScaledDown,
    Terminating,
    Deleted,
    /// Replaced by a newer version.
    Superseded,
    /// A rollout has not given it all traffic yet.
    RollingOut,
    /// A rollout found it worse than the version that serves.
    RolledBack,
    /// Fewer server replicas have joined than expected.
    ReplicasMissing,
    /// A model that a pipeline or an experiment needs does not exist.
    UnknownModel,
    /// A pipeline that an experiment needs does not exist.
    UnknownPipeline,
    /// A gateway cannot execute a pipeline.
    NotExecutable,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
