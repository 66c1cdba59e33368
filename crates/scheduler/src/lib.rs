//! The scheduler: a single-writer control plane around `gantry_core::scheduling`, with gRPC services and subscriptions.
//!
//! ```text
//! gRPC (service/) ──▶ engine: single writer ──▶ core decides ──▶ commit to the store, then reply
//!      ▲                                                     ├─▶ read model: immutable snapshots
//!      └──────────────── reads ──────────────────────────────┘
//!                                                            └─▶ outboxes of agents, gateways and subscribers
//! ```
//!
//! Messages that arrive during a commit share the next one. If it fails, its commands are rolled back and rejected, and
//! reports still apply. Readers see durable state and never wait for the disk. Outboxes are bounded by the number of
//! objects, not by the reader's speed.
//!
//! [`start`] serves it over TCP; [`build`] returns the parts, for TLS (`Running::serve_clients`) or a simulation without
//! sockets and threads (`tests/it/in_memory.rs`).

#![allow(missing_docs, reason = "internal: names carry the meaning, comments only what names cannot")]

mod access;
mod audit;
mod clock;
mod convert;
mod definitions;
mod encoding;
mod engine;
mod limited;
mod liveness;
mod metrics;
mod notices;
mod outbox;
mod read_model;
mod restore;
mod rollout_metrics;
mod scheduler;
mod server;
mod service;
mod service_traffic;
mod status;

pub use access::{Grant, Guard, Identity, Role, Trust, UnmarkedCertificates};
pub use audit::{AuditLog, AuditSettings, AuditWriter};
pub use clock::{Clock, SystemClock};
pub use engine::{Engine, Thread};
pub use liveness::Liveness;
pub use notices::RolloutNotice;
pub use restore::RecordError;
pub use scheduler::{Config, Scheduler, StartError, build};
pub use server::{Running, serve, start, start_audited, tcp};
