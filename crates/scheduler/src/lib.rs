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

mod clock;
mod convert;
mod engine;
mod metrics;
mod outbox;
mod progress;
mod record;
mod restore;
mod scheduler;
mod server;
mod service;
mod status;
mod view;

pub use clock::{Clock, SystemClock};
pub use engine::{Engine, Thread};
pub use progress::Progress;
pub use restore::RecordError;
pub use scheduler::{Config, Scheduler, StartError, build};
pub use server::{Running, serve, start, tcp};
