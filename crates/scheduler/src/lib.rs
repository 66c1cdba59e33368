//! The control plane: one writer around `gantry_core::scheduling`, its gRPC, its subscriptions.
//!
//! ```text
//! gRPC (service/) ──▶ engine (one thread) ──▶ core decides ──▶ store, then acknowledge
//!                        │                                 └─▶ outboxes of agents, gateways and subscribers
//!                        └── what it knows is read under a lock by the services that report it
//! ```
//!
//! An outbox holds what its reader has not seen yet and is bounded by what exists, not by how slow the reader is: see
//! the module `outbox`.

mod convert;
mod engine;
mod outbox;
mod server;
mod service;
mod status;

#[cfg(test)]
mod tests;

pub use server::{Config, Running, StartError, start};
