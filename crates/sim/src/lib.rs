//! What tests of other crates use of the simulator: an API server that fails as a plan says.
//!
//! The simulated world of the scheduler is the program beside this library (`main.rs`).

pub mod kube;
