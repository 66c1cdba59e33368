//! The operator against a simulated API server and a real scheduler, in one process, on virtual time, with injected
//! faults.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod algorithm_routes;
mod algorithms;
mod caches;
mod certificates;
mod crash;
mod custom_kind;
mod faults;
mod foreign_objects;
mod harness;
mod http2;
mod inference_services;
mod inputs;
mod leader_election;
mod namespaces;
mod pipelines;
mod prometheus;
mod rbac;
mod registered;
mod rollouts;
mod runtimes;
mod scenario;
mod scheduler;
mod scheduler_outage;
mod seldon_objects;
mod servers;
mod service_modes;
mod service_rollouts;
mod steady_state;
mod tls;
mod upgrade;
