//! Decisions and the values they are made of: no IO, no clock, no randomness.
//!
//! Everything here is a pure function of its arguments, so that it can be tested by properties and replayed by
//! the simulator. What touches the world lives in the crates that depend on this one.

pub mod lease;
pub mod mutant;
pub mod quantity;
pub mod scheduling;
