//! What `gantry` can be when it is not a client.

pub(crate) mod agent;
pub(crate) mod gateway;
pub(crate) mod listen;
pub(crate) mod log;
pub(crate) mod network;
pub(crate) mod operator;
pub(crate) mod reach;
pub(crate) mod runtime;
pub(crate) mod scheduler;
pub(crate) mod signal;
pub(crate) mod threads;
pub(crate) mod trace;
