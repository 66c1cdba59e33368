//! Tunable timeouts and autoscaling settings.

use super::Millis;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long a disconnected replica keeps its routes.
    pub grace: Millis,
    /// Target requests in flight per model replica.
    pub target_concurrency: u32,
    /// Time without a request after which a model may scale to zero.
    pub idle: Millis,
    /// Time since the last scaling, and of lower load, before scaling down.
    pub cool_down: Millis,
    /// How long a load report is valid.
    pub demand_ttl: Millis,
    /// Backoff after the first failed load; doubled by each further failure.
    pub backoff_min: Millis,
    /// Retries never stop: a missing artifact may appear later.
    pub backoff_max: Millis,
    /// How long a deleted model is kept as a tombstone.
    pub tombstone_ttl: Millis,
    /// Limit on one step of the logical clock, so that a jump of the wall clock expires nothing. Ticks further apart
    /// than this lengthen all timers.
    pub max_clock_step: Millis,
    /// Waiting models retried per tick.
    pub batch: usize,
    /// Whether models with `minReplicas` or `maxReplicas` are autoscaled.
    pub model_autoscaling: bool,
    pub server_autoscaling: bool,
    /// Whether models are packed to free the last replica of a server.
    pub packing: bool,
    /// Share of opportunities at which packing is attempted.
    pub packing_percentage: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            grace: 10_000,
            target_concurrency: 30,
            idle: 600_000,
            cool_down: 60_000,
            demand_ttl: 30_000,
            backoff_min: 1_000,
            backoff_max: 300_000,
            tombstone_ttl: 86_400_000,
            max_clock_step: 5_000,
            batch: 500,
            model_autoscaling: true,
            server_autoscaling: true,
            packing: false,
            packing_percentage: 25,
        }
    }
}
