//! HTTP/1.1 over TCP and TLS with the network policy applied to every connection.

mod body;
mod client;
mod connect;

pub(crate) use body::Body;
pub(crate) use client::{Client, Follow, Response, refusal};
pub use connect::{Resolve, SystemResolver};

use std::time::Duration;

/// How long to wait for a server.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Name resolution, TCP and TLS handshake together.
    pub connect: Duration,
    /// Without a response header or a byte of the body.
    pub idle: Duration,
    /// A body must bring at least this many bytes within each `idle` period, or it counts as stalled.
    pub min_bytes_per_idle: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(10), idle: Duration::from_secs(30), min_bytes_per_idle: 4096 }
    }
}
