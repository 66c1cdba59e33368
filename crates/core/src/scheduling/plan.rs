//! What would happen if something were asked for now. Changes nothing.

use super::{Millis, command::Command, manager::Kind, state::State};
use std::sync::Arc;

/// What would become of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChange {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: Arc<str>,
    /// What would be done with it.
    pub action: Action,
    /// The version before; `None` when there is none.
    pub from_version: Option<u32>,
    /// The version after; `None` when there is none.
    pub to_version: Option<u32>,
    /// What would follow, a sentence each.
    pub effects: Vec<String>,
    /// Whether it would be served, as far as can be known before it is loaded.
    pub placed: bool,
}

/// What would be done with an object. The numbers are the contract's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Unchanged = 0,
    /// It is new.
    Create = 1,
    /// A new version beside the old one.
    Update = 2,
    /// The same version, in more or fewer replicas or with other settings.
    Adjust = 3,
    /// It would go.
    Delete = 4,
    /// It would be refused; the sentences say why.
    Refuse = 5,
}

/// What would become of the objects that the commands name, if they were given in this order.
pub fn plan(_state: &State, _commands: Vec<Command>, _now: Millis) -> Vec<PlannedChange> {
    Vec::new()
}
