//! HTTP serving shared by the gateway, the agent's proxy and the runtime: listeners, bodies, headers, deadlines,
//! request IDs, inference and process metrics.

#![allow(missing_docs, reason = "internal crate: names document themselves")]

pub mod body;
pub mod headers;
pub mod memory;
pub mod metrics;
pub mod process_metrics;
pub mod request_id;

mod activity;
mod backoff;
mod client_io;
mod protocol;
mod server;

pub use backoff::Backoff;
pub use protocol::{Protocol, deadline};
pub use server::{Http, ServerOptions, accept, serve, serve_connection};

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
