//! A Kubernetes API server in memory: the operator's own client, watches and reflectors run against it unchanged.
//!
//! [`State`] is the server as a value: requests and the time go in, answers come out, and nothing else has a say.
//! [`Server`] puts a virtual clock, a plan of faults and a trace around it and hands out clients. Its answers are
//! compared with those that a real API server gave (`tests/k8s/conformance`).
//!
//! A test makes a [`Server`] on paused tokio time with [`Registry::with_gantry`], spawns the operator with
//! [`Server::client`] and, where the world must move, [`Server::run`] with [`Controllers`]. It starts a [`Plan`] of
//! faults, crashes the operator in [`Server::after_write`], and judges the end by [`Server::trace`] and [`Server::with`].
//!
//! Not there: admission webhooks, authorization, conversion between versions, strategic merge patches, YAML bodies,
//! CEL rules and patterns of schemas.

pub mod apply;
pub mod builtin;
pub mod conformance;
mod create;
mod defaults;
mod delete;
mod discovery;
mod failure;
mod faults;
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
mod shape;
mod shapes;
mod state;
mod structural;
#[cfg(test)]
mod tests;
mod trace;
mod watch;
mod write;

pub use builtin::{Controllers, Workloads};
pub use failure::{Cause, Failure};
pub use faults::{Fault, On, Plan, Rule};
pub use registry::{Generation, Kind, Registry, Scale};
pub use request::{Raw, Request, Subresource, Verb};
pub use server::Server;
pub use service::Front;
pub use shape::{ListKind, Shape};
pub use state::{Change, Key, Reply, State, Switches};
pub use structural::Schema;
pub use trace::{Entry, Tally, Trace};
pub use watch::Watch;
