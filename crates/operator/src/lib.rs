//! Gantry on Kubernetes: reconciles custom resources into workloads and scheduler requests.
//!
//! ```text
//! API server ──watches──▶ caches ◀──streams── schedulers
//!                           │
//!                        snapshot                            caches only
//!                           │
//!                         plan                               pure: actions, status, events, requeue delay
//!                           │
//! API server ◀──writes─── apply ───calls──▶ schedulers       one action at a time; the status last
//! ```
//!
//! The operator has no state of its own: every decision follows from the API server and the schedulers. A kind is a
//! folder in [`controllers`] with `snapshot`, `plan` and `status`, and one line in its registry. [`admission`] reviews
//! changes while they are written.

#![allow(missing_docs, reason = "internal crate: names state what a doc comment would repeat")]

pub mod admission;
mod apply_plan;
mod caches;
pub mod certificates;
mod client;
pub mod cluster;
pub mod conditions;
mod connections;
mod context;
mod controller;
pub mod controllers;
mod election;
pub mod evidence;
pub mod external_metrics;
mod health;
mod https;
mod inputs;
mod metrics;
mod operator;
pub mod plan;
mod recent_failures;
mod reconcile;
pub mod schedulers;
mod settings;
mod triggers;
pub mod workload;
mod workqueue;

pub use caches::Caches;
pub use client::connect;
pub use context::Clock;
pub use controller::{Controller, SchedulerRole};
pub use election::{Election, LEASE};
pub use health::{Health, SyncChange, WatchReport};
pub use inputs::{InputRef, Inputs};
pub use metrics::Metrics;
pub use operator::{NAMESPACES_PER_CLIENT, Operator, RunError};
pub use settings::{Scope, Settings};
pub use triggers::Relation;
