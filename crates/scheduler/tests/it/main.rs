//! The scheduler over gRPC, with simulated agents and gateways.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod burst;
mod contract;
mod durability;
mod experiments;
mod harness;
mod in_memory;
mod lifecycle;
mod metrics;
mod ownership;
mod pipelines;
mod replicated;
mod rollouts;
mod route_states;
mod service_rollouts;
mod services;
mod subscriptions;
mod timeouts;
