//! What `gantry` can be when it is not a client.

pub mod log;
pub mod runtime;
pub mod signal;
