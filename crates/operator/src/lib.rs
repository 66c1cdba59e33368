//! Gantry on Kubernetes: what people ask the API server for becomes workloads, and questions to schedulers.
//!
//! ```text
//! API server ──watches──▶ world ◀──streams── schedulers      what is known here
//!                           │
//!                        observe                             caches only
//!                           │
//!                         plan                               pure: actions, status, events, when to look again
//!                           │
//! API server ◀──writes─── apply ───calls──▶ schedulers       one thing after the other; the status last
//! ```
//!
//! The operator has no state of its own: everything it decides follows from what the API server and the schedulers say.
//! It translates; models belong to the scheduler. A folder in [`kinds`] for each kind holds the same files: `observe`,
//! `plan`, `status`. [`admission`] is beside all that: it says while an object is written what would come of it.

pub mod admission;
pub mod cluster;
pub mod conditions;
mod connect;
mod controller;
mod election;
mod health;
mod house;
pub mod kinds;
mod memory;
mod metrics;
mod operator;
pub mod plan;
mod queue;
mod queues;
pub mod schedulers;
mod settings;
pub mod workload;
mod world;

pub use connect::connect;
pub use controller::Controller;
pub use election::{Election, LEASE};
pub use health::{Health, WatchReport};
pub use house::Clock;
pub use metrics::Metrics;
pub use operator::{Ended, Operator};
pub use settings::{Scope, Settings};
pub use world::World;
