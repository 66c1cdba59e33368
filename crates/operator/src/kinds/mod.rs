//! One folder for each kind: what is looked at, what is decided, what is reported.

pub mod alone;
mod checked;
pub mod config;
pub mod later;
pub mod model;
pub mod runtime;
pub mod server;

pub(crate) use checked::Checked;
