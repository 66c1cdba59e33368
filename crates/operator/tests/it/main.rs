//! The operator, unchanged, in a world that breaks on purpose: a simulated API server and a real scheduler, in one
//! process, on virtual time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod crash;
mod faults;
mod leaders;
#[cfg(feature = "mutants")]
mod mutants;
mod quiet;
mod rights;
mod runtimes;
mod scenario;
mod scheduler;
mod servers;
mod strangers;
mod upgrade;
mod world;
