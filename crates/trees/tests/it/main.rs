//! Integration tests: golden predictions of the real libraries, hostile files, and properties.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::float_cmp,
    reason = "helpers of tests may fail like tests do, and exact equality is what some of them are about"
)]

mod api;
mod golden;
mod hostile;
mod lightgbm_reference;
mod mutations;
mod onnx_reference;
mod random;
