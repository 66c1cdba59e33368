//! Pipelines: graphs of models. Validation, compilation and the decisions of one request, without IO or a clock.
//!
//! [`Graph::compile`] turns a valid [`Definition`] into a graph; [`Run`] is one request through it. The executor calls the
//! models.
//!
//! # Sources
//!
//! A step reads inputs and triggers, the output reads steps. A reference is `step` (its outputs), `step.inputs`,
//! `step.outputs`, either with `.tensor`, or the same of the pipeline itself, whose name alone means its inputs. Without
//! inputs a step reads the inputs of the pipeline, and so does an output without steps. References of one join to the
//! same inputs or outputs are one source; if one of them names a tensor, the source consists of the named tensors only.
//!
//! The inputs of the pipeline arrive with the request, the inputs of a step when it starts, as it receives them, and its
//! outputs when its model has answered. A source is absent if none of its tensors is in the data that arrived, or if its
//! step does not run. The outputs of the pipeline are always absent: they are complete after its steps.
//!
//! The tensors of a step keep the order of the data they come from, sources the order of their references. The tensor map
//! of a step or of the output renames `step.inputs|outputs.tensor` for this reader.
//!
//! # Joins
//!
//! - `inner` is complete when all sources have arrived. An absent source makes it impossible.
//! - `outer` is complete when each source has arrived or is absent, or when its window closes; one has arrived in each
//!   case. The window starts with the first arrival and lasts `joinWindowMs`, by default 60 s.
//! - `any` is complete with the first arrival, whose tensors are the only ones it passes on.
//!
//! A step runs when its inputs and its triggers are complete; the data of triggers is dropped. It does not run if one of
//! them is impossible, and its inputs and outputs are then absent for their readers, at once. The output is the response;
//! if it is impossible, the request ends with [`RunError::NoOutput`]. Steps that the response does not need run too.
//! Without an output the request has no response, and all steps run.
//!
//! # Cycles
//!
//! With `allowCycles`, steps on a cycle and steps after one run in rounds:
//!
//! - A run uses up the arrivals from steps on or after a cycle, and their next arrivals can complete the joins again. A
//!   newer arrival replaces one that has not been used. Sources before all cycles stay, so that each round joins them;
//!   only in an `any` join that also has sources on or after a cycle, they count once.
//! - An `inner` join whose sources have all arrived or are absent, with one absent, ends its round without a run.
//! - A source of an `outer` join that is absent in one round can arrive in another. When nothing is in flight, the join
//!   is complete with what has arrived; steps on cycles go first.
//! - A step runs at most `maxStepRevisits` times after its first run; the next time, the request ends with
//!   [`RunError::TooManyRevisits`].
//! - The output is complete once. When nothing is in flight and no step can run, the request has no output.

mod compile;
mod definition;
mod deliver;
pub mod draw;
mod external;
mod graph;
mod join;
mod reason;
mod reference;
mod run;
mod state;
mod topology;
mod validate;

pub use definition::{Batch, Definition, Input, Invalid, Join, Output, Step};
pub use external::{ExternalJoin, Externals};
pub use graph::{Graph, StepId};
pub use join::JoinStatus;
pub use reference::{External, ExternalKind};
pub use run::{Invocation, Run, RunError, Skipped, Tensor};
pub use validate::{MAX_STEP_REVISITS, MAX_STEPS, validate};

/// Of a join that has no `joinWindowMs`.
const DEFAULT_WINDOW_MS: u32 = 60_000;

#[cfg(test)]
mod tests;
