//! Process set-up that the long-running roles share: flags, logging, signals, tokio runtime, listeners, channels,
//! traces, admin server.

pub mod access;
pub mod admin_dashboard;
pub mod admin_server;
pub mod args;
pub mod auth;
pub mod kafka;
pub mod listen;
pub mod log;
pub mod notifications;
pub mod paths;
pub mod scheduler_channel;
pub mod scheduler_server;
pub mod signal;
pub mod tokio_runtime;
pub mod trace;

pub use gantry_scheduler::Scheduler;
pub use gantry_trace::Tracer;
