//! Control-plane clients: route subscription, demand and traffic reports, repository calls.

mod demand_reporter;
mod route_subscription;
mod scheduler;
mod stored_routes;
mod traffic_reporter;

pub use demand_reporter::report_demand;
pub use route_subscription::{subscribe_routes, subscribe_routes_with};
pub use scheduler::SchedulerControl;
pub use stored_routes::StoredRoutes;
pub use traffic_reporter::report_traffic;

use futures::future::BoxFuture;
use gantry_oip::{Error, IndexEntry};

/// The OIP model repository, as implemented by the control plane.
pub trait Control: Send + Sync {
    /// Models with their state.
    fn index(&self, ready_only: bool) -> BoxFuture<'_, Result<Vec<IndexEntry>, Error>>;
    /// Loads a model as it was applied, and resolves when it is available.
    fn load<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<(), Error>>;
    fn unload<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<(), Error>>;
}
