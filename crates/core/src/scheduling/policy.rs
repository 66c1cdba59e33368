//! The numbers that decisions follow, and that an operator may set.

use super::Millis;

/// How long to wait, when to scale, and what is switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long a replica whose connection ended keeps its routes.
    pub grace: Millis,
    /// Requests at once that one replica of a model is meant to have.
    pub target_concurrency: u32,
    /// How long a model without a request stays loaded when it may sleep.
    pub idle: Millis,
    /// How long after a change of scale, and for how long of lower demand, before a scale goes down.
    pub cool_down: Millis,
    /// How long a report of demand counts when no other follows.
    pub demand_lasts: Millis,
    /// How long until a load that failed is tried again the first time; each failure after that doubles it.
    pub retry_first: Millis,
    /// The longest wait between two tries. There is no last try: what is missing may come back.
    pub retry_longest: Millis,
    /// How long a deleted model stays known.
    pub deleted_stays: Millis,
    /// The most time that passes between two commands, whatever the clock says: a jump of the clock expires nothing.
    /// Ticks that are further apart than this make waits longer.
    pub longest_step: Millis,
    /// How many models that wait are looked at again in one tick.
    pub batch: usize,
    /// Whether models with a smallest or largest number of replicas are scaled by demand.
    pub model_autoscaling: bool,
    /// Whether servers are asked to grow and to shrink.
    pub server_autoscaling: bool,
    /// Whether models are moved together to free the last replica of a server.
    pub packing: bool,
    /// At how many of a hundred opportunities that is tried.
    pub packing_percentage: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            grace: 10_000,
            target_concurrency: 30,
            idle: 600_000,
            cool_down: 60_000,
            demand_lasts: 30_000,
            retry_first: 1_000,
            retry_longest: 300_000,
            deleted_stays: 86_400_000,
            longest_step: 5_000,
            batch: 500,
            model_autoscaling: true,
            server_autoscaling: true,
            packing: false,
            packing_percentage: 25,
        }
    }
}
