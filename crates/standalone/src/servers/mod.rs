//! Supervision of external model servers: a Server manifest with a command is run as local processes.
//!
//! ```text
//! manifest ─▶ launch_spec ──┐
//! scheduler ─▶ scaling ─────┴─▶ desired_servers ─▶ plan (pure) ─▶ supervisor ─▶ process (its own process group)
//!                                                     ▲               │  ├─▶ log_tail (output for `gantry logs`)
//!                                                     └── observed ───┘  ├─▶ process_registry (survives restarts)
//!                                                                        └─▶ agent_sidecar (per ready replica)
//! ```

mod agent_sidecar;
mod desired_servers;
mod launch_spec;
mod log_tail;
mod plan;
mod probe;
mod process;
mod process_identity;
mod process_registry;
mod replica;
mod report;
mod scaling;
mod supervisor;

pub(crate) use agent_sidecar::agents;
pub(crate) use desired_servers::DesiredServers;
pub(crate) use launch_spec::LaunchSpec;
pub use report::{ReplicaReport, Report};
pub(crate) use scaling::follow as follow_scaling;
pub(crate) use supervisor::Supervisor;
