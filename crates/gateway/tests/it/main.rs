//! A gateway on a real port, between real clients and replicas that the tests control.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod attacks;
mod balancing;
mod control;
mod demand;
mod grpc;
mod limits;
mod rest;
mod support;
mod swap;
