//! End-to-end tests of the `gantry` binary: help, output, errors and exit codes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod admin;
mod auth;
mod basics;
mod batch;
mod docs;
mod explain_diff_adopt;
mod fetch;
mod graphs;
mod harness;
mod help;
mod infer;
mod lint;
mod objects;
mod python_models;
mod roles;
mod rollouts;
mod runtime;
mod seldon;
mod servers;
mod state;
mod up;
mod waiting;
