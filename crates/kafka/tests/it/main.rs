//! The engine against a real broker, with workers in processes of their own. `cargo xtask kafka` runs it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it counted"
)]

mod answers;
mod gantry;
mod groups;
mod inspect;
mod joins;
mod kills;
mod security;
mod support;
