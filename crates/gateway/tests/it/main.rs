//! Integration tests: a gateway on a TCP port with real clients and fake replicas.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod access;
mod access_grpc;
mod balancing;
mod control;
mod demand;
mod experiments;
mod failover;
mod graph_failures;
mod graphs;
mod grpc;
#[cfg(feature = "kafka")]
mod kafka;
mod limits;
mod memory;
mod pipeline_batches;
mod pipeline_chains;
mod pipeline_faults;
mod pipeline_spans;
mod pipelines;
mod repository;
mod request_smuggling;
mod rest;
mod route_updates;
mod sequences;
mod service_deadlines;
mod service_pods;
mod service_updates;
mod services;
mod slow_clients;
mod streams;
mod support;
mod traffic;
mod traffic_reports;
mod v1;
mod versions;
