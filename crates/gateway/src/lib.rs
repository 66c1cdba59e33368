//! The data plane: one port for REST and gRPC, in front of the servers that have the models.
//!
//! [`Gateway::bind`] opens the port, [`Gateway::serve`] answers on it. Which replica serves which version of which
//! model stands in [`Routes`], which [`control::follow`] keeps as the scheduler says. A request takes its route
//! when it arrives and never waits for the control plane.

mod body;
mod config;
pub mod control;
pub mod decide;
mod gateway;
mod metrics;
mod routes;
mod serve;
mod upstream;

pub use config::Config;
pub use gateway::{BindError, Gateway};
pub use routes::{Demand, Removed, Routes, Visit};
