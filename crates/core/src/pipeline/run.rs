//! One request through a graph.

use super::{Graph, StepId, state::State};
use std::{fmt, sync::Arc};

/// A tensor as the executor keeps it. Cloning is cheap: a tensor that several steps read is cloned for each.
pub trait Tensor: Clone {
    fn name(&self) -> &str;
    #[must_use]
    fn renamed(self, name: &Arc<str>) -> Self;
}

/// A step to start now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation<T> {
    pub step: StepId,
    pub inputs: Vec<T>,
}

/// A step that did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub step: Arc<str>,
    /// Such as `tensor classify.uncertain is absent`.
    pub reason: String,
}

/// Why a request ends without a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    NoOutput { reason: String },
    TooManyRevisits { step: Arc<str>, limit: u32 },
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoOutput { reason } => write!(f, "no output for this request: {reason}"),
            Self::TooManyRevisits { step, limit } => {
                write!(f, "ERROR: Max step revisits ({limit}) exceeded in step {step}")
            }
        }
    }
}

impl std::error::Error for RunError {}

/// The state of one request. The executor starts the steps that [`Self::next`] returns, reports each response with
/// [`Self::complete`] and calls [`Self::tick`] at [`Self::wake_at`].
#[derive(Debug)]
pub struct Run<T: Tensor> {
    graph: Arc<Graph>,
    state: State<T>,
}

impl<T: Tensor> Run<T> {
    /// Starts a request with the pipeline's inputs. `now` is in milliseconds, on the clock of all later calls.
    pub fn start(graph: Arc<Graph>, inputs: Vec<T>, now: u64) -> Self {
        let state = State::start(&graph, inputs, now);
        Self { graph, state }
    }

    pub const fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// A step to start now; call until `None` after each other call. Steps that the response does not need are returned
    /// after the outcome too.
    #[allow(clippy::should_implement_trait, reason = "later calls can return more after `None`")]
    pub fn next(&mut self) -> Option<Invocation<T>> {
        self.state.ready.pop_front()
    }

    /// Records the response of a step's model. A step that is not in flight is ignored.
    pub fn complete(&mut self, step: StepId, outputs: Vec<T>, now: u64) {
        self.state.complete(&self.graph, step.0, outputs, now);
    }

    /// When to call [`Self::tick`]: the end of the next join window.
    pub fn wake_at(&self) -> Option<u64> {
        self.state.wake_at()
    }

    /// Closes join windows.
    pub fn tick(&mut self, now: u64) {
        self.state.tick(&self.graph, now);
    }

    /// The response or the error, once: `Some` as soon as it is decided, also while steps are in flight.
    pub fn outcome(&mut self) -> Option<Result<Vec<T>, RunError>> {
        self.state.outcome.take()
    }

    /// Steps that have started and not completed, including those that [`Self::next`] has not returned yet.
    pub fn in_flight(&self) -> impl Iterator<Item = &Arc<str>> {
        let steps = self.graph.steps().zip(&self.state.nodes);
        steps.filter(|(_, state)| state.in_flight > 0).map(|(name, _)| name)
    }

    /// Steps that did not run, with the reason.
    pub fn skipped(&self) -> Vec<Skipped> {
        self.state.skipped(&self.graph)
    }
}
