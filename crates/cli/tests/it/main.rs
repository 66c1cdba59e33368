//! The binary `gantry` as a person or a script meets it: its words, its tables, its exit codes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod admin;
mod basics;
mod docs;
mod help;
mod infer;
mod lint;
mod objects;
mod roles;
mod seldon;
mod servers;
mod state;
mod waiting;
mod why;
mod world;
