//! Which model version is loaded on which server replica, and who may send it traffic.
//!
//! [`State::apply`] takes one [`Command`] and the time, changes the state, and returns the [`Effects`]: what must be
//! stored, what agents are to do, whose status and whose route changed. It never waits and never fails: a command
//! that cannot be carried out is answered with a [`Refusal`] and changes nothing.
//!
//! ```text
//! replica of a version
//!
//!   LoadRequested ◀─▶ Loading ──▶ Loaded ──▶ Available ──▶ UnloadEnvoyRequested ──▶ Unloading ◀─▶ UnloadRequested
//!    (silent)           │         routed   every gateway      out of the route     every gateway      (silent)
//!                       ▼           │  ▲   has the route             ▲             is done with it       │
//!                   LoadFailed      ▼  │                             │                 │                 ▼
//!                  tried again   LoadedUnavailable   Draining ───────┘             UnloadFailed         gone
//!                                    (silent)     until others serve                tried again
//! ```
//!
//! One file, one subject: `asks` and `replicas` take what people and agents say; `settle` moves a model as far as it can
//! go, on a `desk` where every transition keeps the `index` in step; `placement` and `obstacle` decide where, and why not;
//! `scaling` how many; `time` what happens when nothing else does. What is asked of the state without changing it is in
//! `summary`, `route`, `explain` and `plan`; what outlives a restart in `record`, what can be taken back in `journal`.

mod asks;
mod clock;
mod command;
mod desk;
pub mod explain;
mod index;
mod journal;
mod manager;
mod model;
mod obstacle;
mod placement;
pub mod plan;
mod policy;
mod reason;
mod record;
mod replicas;
mod route;
mod scaling;
mod server;
mod settle;
mod state;
mod summary;
mod time;

#[cfg(test)]
mod tests;

pub use command::{Command, Effects, Order, Refusal, ReplicaEvent};
pub use explain::{Explanation, Fact};
pub use manager::{Kind, Manager};
pub use model::{Definition, Model, ModelState, Needs, ReplicaState, ReplicaStatus, Scaling, Version};
pub use obstacle::Obstacle;
pub use plan::{Action, PlannedChange};
pub use policy::Policy;
pub use reason::Reason;
pub use record::{ModelRecord, ServerRecord, VersionRecord};
pub use route::{Route, RouteVersion};
pub use server::{Endpoint, Expectation, Replica, ReplicaId, Server};
pub use state::State;
pub use summary::Summary;

/// Milliseconds since 1970, as the caller's clock has them.
pub type Millis = u64;
