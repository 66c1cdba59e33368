//! Codec tests: round trips, error messages, memory bounds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unnecessary_wraps,
    reason = "a test fails by panicking; its helpers are shaped by the tables that use them"
)]

mod allocations;
mod bad_bodies;
mod bad_messages;
mod good_bodies;
mod round_trip;
mod v1;
