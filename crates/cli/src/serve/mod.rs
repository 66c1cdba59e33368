//! The long-running roles of the `gantry` binary, each as a process of its own.

pub(crate) mod agent;
pub(crate) mod gateway;
pub(crate) mod operator;
pub(crate) mod runtime;
pub(crate) mod scheduler;
