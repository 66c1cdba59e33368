//! The control plane: one writer around `gantry_core::scheduling`, its gRPC, its subscriptions.
//!
//! ```text
//! gRPC (service/) ──▶ engine: one writer ──▶ core decides ──▶ store, then acknowledge
//!      ▲                                                  ├─▶ view: what is known, for everybody who reads
//!      └──────────────── reads ───────────────────────────┘
//!                                                         └─▶ outboxes of agents, gateways and subscribers
//! ```
//!
//! Messages that came while the disk was busy share the next write. If it fails, what must last is taken back and
//! refused, and the rest goes on. Readers see what is durable, and never wait for the disk.
//!
//! An outbox holds what its reader has not seen yet and is bounded by what exists, not by how slow the reader is: see
//! the module `outbox`.
//!
//! [`start`] serves it over TCP, [`build`] gives the parts to serve elsewhere: see `Running::serve_clients` for a
//! listener with TLS, and `tests/it/world.rs` for a world without sockets, threads or a clock.

mod clock;
mod convert;
mod engine;
mod metrics;
mod outbox;
mod liveness;
mod encoding;
mod restore;
mod scheduler;
mod server;
mod service;
mod status;
mod read_model;

pub use clock::{Clock, SystemClock};
pub use engine::{Engine, Thread};
pub use liveness::Liveness;
pub use restore::RecordError;
pub use scheduler::{Config, Scheduler, StartError, build};
pub use server::{Running, serve, start, tcp};
