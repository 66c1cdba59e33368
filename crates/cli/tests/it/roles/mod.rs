//! Scheduler, gateway, agent and runtime as separate processes over mutual TLS.

mod access;
mod certificates;
mod inspect;
mod multi_process;
pub(crate) mod process;
mod replicated;
mod single_role;
mod tracing;
