//! Integration tests: a gateway on a TCP port with real clients and fake replicas.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod balancing;
mod control;
mod demand;
mod grpc;
mod limits;
mod request_smuggling;
mod rest;
mod route_updates;
mod support;
