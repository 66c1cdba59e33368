//! Kinds that a scheduler runs: desired state from the API server, observed state from the scheduler of the namespace.

mod plan;
mod snapshot;
#[cfg(test)]
mod tests;

pub(super) use plan::{plan, plan_absent, report};
pub use snapshot::Snapshot;

use crate::{
    caches::Caches,
    cluster::{Custom, CustomKind, EventDraft, Key},
    conditions::{ConditionUpdate, Progress},
    plan::SchedulerAction,
    schedulers::LoadedView,
};
use gantry_api::Condition;
use k8s_openapi::jiff::Timestamp;
use std::{fmt::Debug, time::Duration};

/// A kind whose objects are loaded into the scheduler of their namespace.
pub trait Scheduled: CustomKind {
    /// An object as its scheduler has it.
    type View: LoadedView<Kind = Self>;
    /// An object as the scheduler gets it.
    type Definition;
    /// Facts from other objects.
    type Facts: Clone + Debug + Default + Send + Sync;
    /// Holds an object until its scheduler has unloaded it. The name is Seldon's: either operator can release the other's.
    const FINALIZER: &'static str;
    const WORDS: Words;

    /// Reads caches only.
    fn facts(_: &Caches, _: &Key) -> Self::Facts {
        Self::Facts::default()
    }

    fn definition(object: &Custom<Self>, spec: &Self::Spec, facts: &Self::Facts) -> Self::Definition;

    /// Digest of the facts in a definition: a change of them is no new generation.
    fn variant(_: &Self::Facts) -> u64 {
        0
    }

    /// Why a changed object is not sent to a scheduler that has an earlier version of it.
    fn hold(_: &Self::Facts) -> Option<ConditionUpdate> {
        None
    }

    /// `replaces` is the generation that the scheduler has, 0 for none.
    fn load(definition: Self::Definition, replaces: i64) -> SchedulerAction;

    fn unload(key: &Key, generation: i64) -> SchedulerAction;

    /// Whether the scheduler has this generation with this definition.
    fn is_current(view: &Self::View, desired: &Self::Definition) -> bool;

    /// `Ready` of an object as its scheduler has it.
    fn ready(spec: &Self::Spec, view: &Self::View, facts: &Self::Facts) -> ConditionUpdate;

    /// Whether the object may be ready in a moment, so that its status waits for the result.
    fn is_loading(_: &Self::View, ready: &ConditionUpdate) -> bool {
        ready.progress == Progress::InProgress
    }

    fn build_status(
        object: &Custom<Self>,
        ready: &ConditionUpdate,
        view: Option<&Self::View>,
        facts: &Self::Facts,
        now: Timestamp,
    ) -> Self::Status;

    /// The status of an object whose scheduler is unreachable.
    fn build_unreachable_status(
        object: &Custom<Self>,
        ready: &ConditionUpdate,
        now: Timestamp,
    ) -> Self::Status {
        Self::build_status(object, ready, None, &Self::Facts::default(), now)
    }

    /// Events since the last status, in addition to those of `Ready`.
    fn events(_before: Option<&Self::Status>, _: &Self::Facts) -> Vec<EventDraft> {
        Vec::new()
    }

    /// The shortest time between two status writes with this difference.
    fn write_interval(_before: &Self::Status, _after: &Self::Status) -> Duration {
        Duration::ZERO
    }

    /// When the status has to be built again without a change that enqueues the object.
    fn refresh_after(_: &Self::Facts) -> Option<Duration> {
        None
    }

    /// Observed generation and conditions.
    fn observed(status: &Self::Status) -> (Option<i64>, &[Condition]);
}

/// The words of a kind in reasons, messages and events.
#[derive(Debug)]
pub struct Words {
    pub noun: &'static str,
    pub loaded: &'static str,
    pub unloaded: &'static str,
    /// What the scheduler waits for when it unloads an object.
    pub confirmed_by: &'static str,
    pub progressing: &'static str,
    pub terminating: &'static str,
    pub ready: &'static str,
    pub not_ready: &'static str,
}
