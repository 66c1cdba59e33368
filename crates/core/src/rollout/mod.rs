//! Progressive delivery: a new revision receives traffic in steps, is judged by evidence, and is promoted or rolled back.
//!
//! [`step`] is pure. It returns a [`Decision`], whose state must be stored before its weights can be read.
//!
//! ```text
//!                          ready                    desired changes
//!   Deploying ──────────────────────▶ Running ─────────────────────────▶ Progressing
//!   (no revision served yet)          │  ▲  ▲                            waiting, then stage by stage
//!                      bake or drift  │  │  │      promoted                     │
//!                      fails, undo    │  │  └───────────────────────────────────┤
//!                                     ▼  │ weights applied                      │ harm, deadline, abort,
//!                             Reverting ─┴─▶ RollingBack ◀──────────────────────┘ desired changes
//!                             (previous revision becomes ready)  (weight 0, still loaded)
//! ```
//!
//! `policy` has the rules and `evidence` the observations. `analysis` turns evidence into a `verdict`: by the sequential
//! tests of `comparison` and `sequential`, or by fixed `thresholds`. `watch` continues after promotion. `state` is what is
//! stored, and `step` moves it. `assessment` and `replica_ratio` are rules of Argo Rollouts for analyses and for traffic
//! split by the number of pods. `simulate` replays a policy against a revision with given properties.

mod analysis;
pub mod assessment;
mod command;
mod comparison;
mod distribution;
mod evidence;
mod histogram;
mod policy;
pub mod replica_ratio;
mod sequential;
mod simulate;
mod state;
mod step;
mod thresholds;
mod verdict;
mod watch;

#[cfg(test)]
mod tests;

pub use analysis::{Analysis, BaselineHealth, Method, Provider, Totals};
pub use command::{Command, CommandRejection, Event, Request};
pub use comparison::{Block, Comparison, LatencyCut, Reference, SequentialState};
pub use distribution::{
    Distribution, bin_of, bin_of_text, kolmogorov_smirnov, kolmogorov_smirnov_critical,
    population_stability_index,
};
pub use evidence::{DriftScore, Errors, Evidence, ObservationId, Readiness, Revision, Stats, Window};
pub use histogram::{BUCKETS, Bucket, LatencyHistogram};
pub use policy::{
    CanarySteps, DriftMeasure, DriftRules, Exposure, InvalidPolicy, LatencyComparison, LatencyObjective,
    MAX_STEPS, Margins, Objectives, ObservedTensor, Percent, Ratio, RolloutPolicy, Rules, SequentialRules,
    Stage, Step, Strategy, ThresholdRules,
};
pub use sequential::{ALTERNATIVES, Baseline, FitnessTest, HarmTest, Sample};
pub use simulate::{Behaviour, Scenario, Simulation, simulate};
pub use state::{
    Candidate, Clock, FailedRevision, HistoryEntry, MAX_FAILED, MAX_HISTORY, Outcome, Pause, Phase, Progress,
    Rollout, Stable, Weights,
};
pub use step::{Decision, Durability, Input, Stored, step};
pub use thresholds::{Tally, ThresholdState};
pub use verdict::{Finding, Reason, Verdict};
pub use watch::{Bake, DriftState, Watch};
