//! Models as files, through the public interface.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::float_cmp,
    clippy::print_stdout,
    reason = "a test fails by panicking, and equal means equal"
)]

mod cancel;
mod fuse;
mod golden;
mod hostile;
mod interface;
mod operators;
mod runtime;
mod subprocess;
mod support;
