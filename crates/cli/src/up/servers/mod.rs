//! Servers that `gantry up` runs: a Server manifest names a command, and its replicas are started, watched, started again
//! and stopped.
//!
//! ```text
//! manifest ─▶ recipe (what to run) ─┐
//! scheduler ─▶ how many ────────────┴─▶ plan (pure) ─▶ supervisor ─▶ process (a group of its own)
//!                                          ▲               │  ├─▶ tail (what it says ─▶ gantry logs)
//!                                          └── observed ───┘  ├─▶ ledger (whose it is, after a restart)
//!                                                             └─▶ beside (an agent for each that answers)
//! ```

mod beside;
mod identity;
mod ledger;
mod plan;
mod probe;
mod process;
mod recipe;
mod replica;
mod report;
mod scaling;
mod supervisor;
mod tail;
mod wishes;
mod words;

pub(crate) use beside::agents;
pub(crate) use recipe::Recipe;
pub(crate) use report::{ReplicaReport, Report};
pub(crate) use scaling::follow as follow_scaling;
pub(crate) use supervisor::Supervisor;
pub(crate) use wishes::Wishes;
