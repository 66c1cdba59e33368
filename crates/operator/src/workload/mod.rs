//! What Servers and runtimes have in common: pods put together from a configuration and what lies over it, objects that
//! belong to somebody, how far a workload is, and what the API server would not take.

mod blueprint;
mod family;
mod follow;
mod mentions;
mod merge;
mod rollout;
mod refused;
mod scaled;

pub use blueprint::{Workload, budget, with_images};
pub use family::{Family, Owner};
pub use follow::Marks;
pub use mentions::{config_maps, digest_of_live, digest_of_wanted, mentioned};
pub use merge::merge;
pub use rollout::Rollout;
pub use refused::{Obstacle, Refused, Sorted, sort};
pub use scaled::{autoscalers, hand_over};
