//! TLS over real sockets, with certificates that the tests make.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod authority;
mod handshakes;
mod reload;
mod world;
