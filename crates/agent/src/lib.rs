//! The agent: one beside each replica of an inference server.
//!
//! ```text
//! scheduler ──orders──▶ agent ──▶ worker for each model version: fetch the artifact ─▶ load it into the server
//!           ◀──events──                                          unload it, let go of the artifact
//! ```
//!
//! The agent subscribes to the scheduler, tells it what the server holds, carries out orders and reports. When the
//! connection breaks, what is loaded stays loaded, and the next subscription says so.

mod agent;
mod artifact;
#[allow(dead_code, unused_imports, reason = "the process around it is the next step")]
mod backend;
mod connect;
mod inventory;
mod link;
#[allow(dead_code, unused_imports, reason = "the process around it is the next step")]
mod metrics;
mod server;
#[allow(dead_code, unused_imports, reason = "the process around it is the next step")]
mod shelf;

#[cfg(test)]
mod tests;

pub use agent::{Agent, Config, Parts};
pub use artifact::{Artifacts, CONTENT, Files, Secrets, Source};
pub use backend::{Kind, Surroundings};
pub use connect::{Connect, Plain, tuned};
pub use server::{Held, LoadOrder, Loaded, ModelServer, Observer, Silent};
pub use shelf::Limits;
