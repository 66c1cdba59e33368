//! A Kubernetes API server in memory, for the operator's unmodified client, watches and reflectors.
//!
//! [`State`] is the server as a deterministic value. [`Server`] adds a virtual clock, injected faults and a trace, and
//! creates clients. Its responses are compared with recordings of a real API server (`tests/k8s/conformance`).
//!
//! A test creates a [`Server`] on paused tokio time with [`Registry::with_gantry`] and spawns the operator with
//! [`Server::client`], and [`Server::run`] with [`Controllers`] where built-in controllers are needed. It starts a
//! [`FaultPlan`], crashes the operator in [`Server::after_write`], and asserts on [`Server::trace`] and [`Server::with`].
//!
//! Not implemented: admission webhooks, authorization, version conversion, strategic merge patches, YAML bodies, CEL
//! rules and schema patterns.
#![allow(missing_docs, reason = "a test helper")]

pub mod apply;
pub mod builtin;
mod builtin_merge_schemas;
pub mod conformance;
mod create;
mod defaults;
mod delete;
mod discovery;
mod failure;
mod faults;
mod merge_schema;
mod object;
mod patch;
mod read;
mod registry;
mod request;
mod rules;
mod scale;
mod selector;
mod server;
mod service;
mod state;
mod structural;
#[cfg(test)]
mod tests;
mod trace;
mod watch;
mod write;

pub use builtin::{Controllers, Workloads};
pub use failure::{Cause, Failure};
pub use faults::{Fault, FaultPlan, FaultRule, RequestMatch};
pub use merge_schema::{ListKind, MergeSchema};
pub use registry::{Generation, Kind, Registry, Scale};
pub use request::{HttpRequest, Request, Subresource, Verb};
pub use server::Server;
pub use service::HttpService;
pub use state::{Change, Key, Options, Reply, State};
pub use structural::Schema;
pub use trace::{Entry, ObjectCounts, Trace};
pub use watch::Watch;
