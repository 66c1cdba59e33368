//! Placement of model versions on server replicas, and the routes that follow from it.
//!
//! [`State::apply`] takes one [`Command`] and the time, changes the state, and returns the [`Effects`]: records to store,
//! orders for agents, changed statuses and routes. It never blocks; an invalid command returns a [`Rejection`] and changes
//! nothing.
//!
//! ```text
//! replica of a version
//!
//!   LoadRequested ◀─▶ Loading ──▶ Loaded ──▶ Available ──▶ UnloadEnvoyRequested ──▶ Unloading ◀─▶ UnloadRequested
//!   (disconnected)      │         routed   acknowledged by    out of the route     drained by       (disconnected)
//!                       ▼           │  ▲   every gateway             ▲             every gateway         │
//!                   LoadFailed      ▼  │                             │                 │                 ▼
//!                    retried     LoadedUnavailable   Draining ───────┘             UnloadFailed        removed
//!                                (disconnected)   until others serve                 retried
//! ```
//!
//! `pipeline` and `experiment` follow the models that they need, through the index in `dependants`; their routes share
//! the numbering of the models' routes, so that a gateway knows a model before a pipeline that calls it. `service` has
//! routes to pods that the scheduler does not place.
//!
//! `commands` and `replica_events` handle requests and agent reports; `reconcile` moves a model towards its desired state
//! through a `model_context`, which keeps the `index` consistent; `placement` selects replicas and `unschedulable` states
//! why there are none; `scaling` sets the number of replicas; `timers` handles the passage of time. Read only:
//! `model_status`, `route`, `explain`, `dry_run`. Durability: `persisted` and `undo_log`.

mod command;
mod commands;
mod dependants;
pub mod dry_run;
mod experiment;
pub mod explain;
mod index;
mod logical_clock;
mod model;
mod model_context;
mod model_status;
mod owner;
mod persisted;
mod pipeline;
mod placement;
mod policy;
mod reason;
mod reconcile;
mod replica_events;
mod rollout;
mod route;
mod scaling;
mod server;
mod service;
mod state;
mod timers;
mod undo_log;
mod unschedulable;

#[cfg(test)]
mod tests;

pub use command::{Command, Effects, LoadedVersion, Order, Rejection, ReplicaEvent};
pub use dependants::Unready;
pub use dry_run::{Action, PlannedChange};
pub use experiment::{Experiment, ExperimentDefinition, ExperimentStatus, InvalidExperiment, Resource};
pub use explain::{Explanation, Fact};
pub use model::{
    Definition, Digest, Model, ModelState, Needs, ReplicaState, ReplicaStatus, Scaling, Version,
};
pub use model_status::VersionStatus;
pub use owner::{Kind, Owner};
pub use persisted::{
    ExperimentRecord, ModelRecord, PipelineRecord, PipelineVersionRecord, Records, ServerRecord,
    VersionRecord,
};
pub use pipeline::{Pipeline, PipelineDefinition, PipelineState, PipelineStatus, PipelineVersion};
pub use policy::Policy;
pub use reason::Reason;
pub use rollout::{
    DeliveredVersion, Delivery, ObjectRollout, Obstacle, PolicyRecord, RolloutKind, RolloutRecord,
    RolloutTarget, Steer, Traffic,
};
pub use route::{Mirror, Removal, Route, RouteVersion};
pub use server::{Endpoint, ExpectedReplicas, Replica, ReplicaId, Server};
pub use service::{NO_GATEWAY, Service, ServiceRecord};
pub use state::State;
pub use unschedulable::Unschedulable;

/// Milliseconds since 1970, as the caller's clock has them.
pub type Millis = u64;
