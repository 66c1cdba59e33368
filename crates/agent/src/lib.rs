//! The agent: one beside each replica of an inference server.
//!
//! ```text
//! scheduler ──orders──▶ agent ──▶ worker for each model version: fetch the artifact ─▶ load it into the server
//!           ◀──events──                                          unload it, let go of the artifact
//! ```
//!
//! Beside a server of its own (`process`), requests go through the agent too:
//!
//! ```text
//! gateway ──▶ proxy ──▶ shelf (which models are in the server's memory) ──▶ MLServer, Triton, … (backend)
//! ```
//!
//! The agent subscribes to the scheduler, tells it what the server holds, carries out orders and reports. When the
//! connection breaks, what is loaded stays loaded, and the next subscription says so.

mod agent;
mod artifact;
mod backend;
mod connect;
mod endpoints;
mod inventory;
mod link;
mod metrics;
mod process;
mod proxy;
mod scaling;
mod server;
mod shelf;

#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;

pub use agent::{Agent, Config, Parts};
pub use artifact::{Artifacts, CONTENT, Files, Secrets, Source};
pub use backend::{Kind, Surroundings};
pub use connect::{Connect, Plain, tuned};
pub use process::{Addresses, Ports, Running, Settings, start};
pub use proxy::RequestLimits;
pub use scaling::Scaling;
pub use server::{Held, LoadOrder, Loaded, ModelServer, Observer, Silent};
pub use shelf::Limits;
