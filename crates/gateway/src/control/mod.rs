//! The gateway and the control plane: routes come from it, repository requests go to it.

mod demand;
mod follow;
mod scheduler;

pub use demand::report_demand;
pub use follow::{follow, follow_over};
pub use scheduler::SchedulerControl;

use futures::future::BoxFuture;
use gantry_oip::{Error, IndexEntry};

/// Who knows which models there are, and can load and unload them.
pub trait Control: Send + Sync {
    /// Every model with its state; only those that are ready, if so asked.
    fn index(&self, ready_only: bool) -> BoxFuture<'_, Result<Vec<IndexEntry>, Error>>;
    /// Loads a model that is known.
    fn load<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<(), Error>>;
    /// Unloads a model.
    fn unload<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<(), Error>>;
}
