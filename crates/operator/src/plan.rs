//! What a plan is made of: actions in their order, the status, what is worth telling, and when to look again.

use crate::cluster::{Desired, Doomed, Happening};
use gantry_proto::scheduler as pb;
use std::time::Duration;

/// A fact from outside the API server: whether it is known at all matters.
#[derive(Clone, Debug, PartialEq)]
pub enum Known<T> {
    /// It could not be asked: why.
    Unknown(String),
    /// It is known not to be.
    Absent,
    /// It is known.
    Present(T),
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make an object as it is to be.
    Ensure(Box<Desired>),
    /// Take an object away.
    Delete(Doomed),
    /// Hold the object itself until its end is dealt with.
    AddFinalizer(&'static str),
    /// Let the object itself go.
    RemoveFinalizer(&'static str),
    /// Ask the scheduler to serve a model.
    Load(Box<pb::Model>),
    /// Ask the scheduler to stop serving one.
    Unload(pb::UnloadModelRequest),
    /// Tell the scheduler about a server.
    Notify(pb::ServerNotify),
    /// Set the object's own replicas, as its scheduler asked.
    Scale(i32),
    /// Leave them as they are: the scheduler's wish is dealt with. Whoever looks at the object is told why, where there
    /// is something to tell.
    Decline(Option<Happening>),
    /// Give the replicas of a workload to somebody else, as they are.
    HandOver(Box<Desired>),
}

/// What is to be done about one object. It is made without asking anybody, and always.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<S> {
    /// In this order; the first failure ends it.
    pub actions: Vec<Action>,
    /// The status after that; `None` when there is nothing to say, or not yet.
    pub status: Option<S>,
    /// For whoever looks at the object.
    pub events: Vec<Happening>,
    /// Look again after this long, if nothing happens before.
    pub wake: Option<Duration>,
}

impl<S> Default for Plan<S> {
    fn default() -> Self {
        Self { actions: Vec::new(), status: None, events: Vec::new(), wake: None }
    }
}
