//! Routing decisions as pure functions: no clock, no randomness, no IO.

pub mod balance;
pub mod breaker;
pub mod result_class;
pub mod retry;
