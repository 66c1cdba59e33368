//! Plans: ordered actions, status, events, requeue delay.

use crate::{
    cluster::{DeleteTarget, Desired, EventDraft, Key},
    schedulers::Operation,
};
use gantry_proto::{
    gantry::{RolloutPolicy, ServiceRoute},
    scheduler as pb,
};
use std::{
    hash::{DefaultHasher, Hash, Hasher as _},
    time::Duration,
};

/// A fact from outside the API server. Unreadable is not the same as absent.
#[derive(Clone, Debug, PartialEq)]
pub enum Known<T> {
    /// The reason why it could not be read.
    Unknown(String),
    Absent,
    Present(T),
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Cluster(ClusterAction),
    Scheduler(SchedulerAction),
}

/// A write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum ClusterAction {
    /// Server-side apply of an owned object.
    Apply(Box<Desired>),
    Delete(DeleteTarget),
    AddFinalizer(&'static str),
    RemoveFinalizer(&'static str),
    /// Sets `spec.replicas` of the object itself.
    Scale(i32),
    /// Gives the field `spec.replicas` of a workload to another field manager, with its value.
    HandOverReplicas(Box<Desired>),
    /// Sets `spec.replicas` of a workload as that field manager.
    ScaleWorkload(Box<Desired>),
    /// An event that does not depend on a status write.
    Emit(EventDraft),
}

/// A request to the scheduler of the object's namespace, or to one that it names by namespace.
#[derive(Clone, Debug, PartialEq)]
pub enum SchedulerAction {
    LoadModel {
        model: Box<pb::Model>,
        /// The generation that the scheduler has, 0 for none: it refuses a request that arrives after a newer one.
        replaces: i64,
    },
    UnloadModel(pb::UnloadModelRequest),
    LoadPipeline {
        pipeline: Box<pb::Pipeline>,
        /// As for models.
        replaces: i64,
    },
    UnloadPipeline(String),
    StartExperiment {
        experiment: Box<pb::Experiment>,
        /// As for models.
        replaces: i64,
    },
    StopExperiment(String),
    PutPolicy(Box<RolloutPolicy>),
    DeletePolicy(String),
    NotifyServer(pb::ServerNotify),
    PutService {
        scheduler: String,
        route: Box<ServiceRoute>,
    },
    DeleteService {
        scheduler: String,
        service: Key,
    },
    /// Clears the scheduler's pending scaling request; nothing is sent.
    AcknowledgeScaling,
}

impl SchedulerAction {
    pub const fn operation(&self) -> Operation {
        match self {
            Self::LoadModel { .. }
            | Self::LoadPipeline { .. }
            | Self::StartExperiment { .. }
            | Self::PutPolicy(_)
            | Self::PutService { .. } => Operation::Load,
            Self::UnloadModel(_)
            | Self::UnloadPipeline(_)
            | Self::StopExperiment(_)
            | Self::DeletePolicy(_)
            | Self::DeleteService { .. } => Operation::Unload,
            Self::NotifyServer(_) | Self::AcknowledgeScaling => Operation::Notify,
        }
    }
}

impl SchedulerAction {
    /// See [`SchedulerRequest::variant`](crate::schedulers::SchedulerRequest).
    pub fn variant(&self) -> u64 {
        match self {
            Self::PutPolicy(policy) => variant_of(&policy.models),
            _ => 0,
        }
    }

    /// The namespace of the scheduler, where it is not that of the object.
    pub fn scheduler(&self) -> Option<&str> {
        match self {
            Self::PutService { scheduler, .. } | Self::DeleteService { scheduler, .. } => Some(scheduler),
            _ => None,
        }
    }
}

/// Digest of the names that a policy selects.
pub fn variant_of(names: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    names.hash(&mut hasher);
    hasher.finish()
}

impl From<ClusterAction> for Action {
    fn from(action: ClusterAction) -> Self {
        Self::Cluster(action)
    }
}

impl From<SchedulerAction> for Action {
    fn from(action: SchedulerAction) -> Self {
        Self::Scheduler(action)
    }
}

/// The outcome of planning one object: pure, total, and the same for the same snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<S> {
    /// Applied in this order; the first failure stops the plan.
    pub actions: Vec<Action>,
    /// The new status; `None` leaves the status as it is.
    pub status: Option<S>,
    /// Writes the status before the actions instead of after them: a step that is recorded first is repeated after a
    /// crash, and never skipped.
    pub status_first: bool,
    /// Emitted together with a status write.
    pub events: Vec<EventDraft>,
    pub requeue_after: Option<Duration>,
}

impl<S> Plan<S> {
    pub fn push(&mut self, action: impl Into<Action>) {
        self.actions.push(action.into());
    }

    /// Requeues after this delay, or sooner if the plan already requeues sooner.
    pub fn requeue_within(&mut self, delay: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(delay, |known| known.min(delay)));
    }
}

impl<S> Default for Plan<S> {
    fn default() -> Self {
        Self {
            actions: Vec::new(),
            status: None,
            status_first: false,
            events: Vec::new(),
            requeue_after: None,
        }
    }
}
