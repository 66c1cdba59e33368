//! What has to last over a restart.

use super::{
    manager::Manager,
    model::Definition,
    server::{Expectation, Replica},
};
use std::sync::Arc;

/// What has to last of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRecord {
    /// Whether it was deleted.
    pub deleted: bool,
    /// Who manages it.
    pub manager: Option<Manager>,
    /// Its versions, oldest first; the last one is what was asked for last.
    pub versions: Vec<VersionRecord>,
}

/// What has to last of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionRecord {
    /// Its number.
    pub number: u32,
    /// What was asked.
    pub definition: Arc<Definition>,
    /// Whether it ever served.
    pub served: bool,
    /// How many replicas its demand called for, when that is not what was asked.
    pub scaled: Option<u32>,
    /// The server that it was placed on.
    pub server: Option<Arc<str>>,
    /// The replicas of that server that it was routed to.
    pub replicas: Vec<u32>,
}

/// What has to last of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRecord {
    /// Its name.
    pub name: Arc<str>,
    /// What was announced; `None` when its replicas joined unannounced.
    pub expected: Option<Expectation>,
    /// Whether models that do not name it may be placed on it.
    pub shared: bool,
    /// Its Kubernetes namespace.
    pub namespace: Option<String>,
    /// Who manages it.
    pub manager: Option<Manager>,
    /// Its replicas as they were last known, with their endpoints.
    pub replicas: Vec<(u32, Replica)>,
}
