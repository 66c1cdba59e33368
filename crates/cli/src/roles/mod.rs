//! What `gantry` can be when it is not a client.

pub(crate) mod log;
pub(crate) mod runtime;
pub(crate) mod signal;
