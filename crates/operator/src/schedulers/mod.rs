//! Scheduler connections: one per namespace with a runtime.
//!
//! ```text
//! connect ─▶ announce servers ─▶ subscribe ─▶ list ─▶ synced ─▶ apply changes until disconnected
//!    ▲                                                                      │
//!    └───────────────── discard state, back off, reconnect ◀────────────────┘
//! ```

mod connection;
mod connector;
mod rollouts;
mod rpc;
mod scheduler_cache;
mod services;
mod views;

pub use connection::{ChangeEvent, SchedulerConnection};
pub use connector::{SchedulerConnector, ServiceConnector};
pub use rollouts::{is_under_way, target_name, target_of, targets_in};
pub use rpc::RpcOutcome;
pub use scheduler_cache::{LastRequest, NO_SCHEDULER, Operation, SchedulerCache, SchedulerRequest};
pub use services::{RouteKind, service_at};
pub use views::{
    ExperimentView, LoadedView, ModelView, PipelineView, PolicyView, SchedulerView, ServerView, ServiceView,
    ServingVersion,
};
