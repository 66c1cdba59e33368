//! TLS over real sockets, with generated certificates.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod authority;
mod handshakes;
mod harness;
mod reload;
