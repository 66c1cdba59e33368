//! Pipelines: versions, readiness, and the version that gateways execute.

use super::{
    Millis,
    command::Effects,
    dependants::{Unready, unready_model},
    index::Timer,
    model::{Digest, Model},
    owner::{Kind, Owner},
    rollout::{ObjectRollout, Obstacle, PipelineInput, RolloutTarget, Times},
    state::State,
};
use crate::rollout::{CommandRejection, ObservedTensor};
use std::{collections::BTreeMap, ops::Bound::Included, sync::Arc};

/// The desired state of a pipeline. The caller keeps the graph; scheduling needs the models of its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineDefinition {
    pub name: Arc<str>,
    /// Digest of what gateways execute; a change creates a new version.
    pub spec: Digest,
    /// Digest of the whole definition, which the caller keeps.
    pub content: Digest,
    /// Names of the steps, and so of their models, in the order of the definition.
    pub steps: Vec<Arc<str>>,
    /// Whether gateways keep the tensors of the last requests. No part of the spec: a change creates no version.
    pub keep_payloads: bool,
    /// `metadata.generation`, for objects of the operator.
    pub generation: Option<i64>,
    /// As of [`super::Definition::replaces`].
    pub replaces: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineVersion {
    pub number: u32,
    /// Another one for each version, also of a recreated pipeline.
    pub uid: Arc<str>,
    pub definition: Arc<PipelineDefinition>,
    /// Whether the models of all steps were available at some time. Gateways execute only such a version.
    pub was_ready: bool,
    /// The first step whose model is not available.
    pub unready: Option<Unready>,
    /// Whether every gateway knows it.
    pub created: bool,
    /// Why a gateway cannot execute it.
    pub failure: Option<String>,
    pub since: Millis,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// Oldest first, never empty; the last one is the desired state.
    pub versions: Vec<PipelineVersion>,
    /// With a rollout policy.
    pub rollout: Option<Box<ObjectRollout>>,
    pub deleted: bool,
    /// `None` after deletion.
    pub owner: Option<Owner>,
    /// Sequence number of its last route change.
    pub route_sequence: u64,
    pub(super) published: Option<PublishedPipeline>,
    /// The route sequence whose acknowledgement it waits for; 0: none.
    pub(super) awaits: u64,
    /// Its entry in `Index::timers`.
    pub(super) due: Option<Millis>,
    /// When the tombstone of a deleted pipeline expires, in logical time.
    pub(super) forget_at: Option<Millis>,
}

/// What was last published to gateways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PublishedPipeline {
    uid: Arc<str>,
    deleted: bool,
    executed: bool,
    keep_payloads: bool,
    unready: Option<Unready>,
    /// The version that is rolled out, with its percentage.
    candidate: Option<(Arc<str>, u32)>,
    rollout_generation: u64,
    observed: Option<ObservedTensor>,
}

/// State of a version. The numbers are those of the Seldon gRPC API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PipelineState {
    /// Not known to every gateway.
    Creating = 2,
    Ready = 3,
    Failed = 4,
    Terminating = 6,
    Terminated = 7,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineStatus {
    pub state: PipelineState,
    pub reason: String,
    /// Whether the models of all steps are available, and every gateway knows it.
    pub models_ready: bool,
    pub gateway_reason: String,
}

pub(super) const UNACKNOWLEDGED: &str = "a gateway has not acknowledged the route";

impl PipelineVersion {
    pub(super) fn new(number: u32, uid: Arc<str>, definition: Arc<PipelineDefinition>, now: Millis) -> Self {
        Self {
            number,
            uid,
            definition,
            was_ready: false,
            unready: None,
            created: false,
            failure: None,
            since: now,
        }
    }

    /// The step whose model is not available.
    pub fn unready_step(&self) -> Option<String> {
        self.unready.as_ref().map(|Unready { name, reason }| format!("step {name}: {reason}"))
    }
}

impl Pipeline {
    pub(super) fn new(versions: Vec<PipelineVersion>, owner: Option<Owner>) -> Self {
        Self {
            versions,
            rollout: None,
            deleted: false,
            owner,
            route_sequence: 0,
            published: None,
            awaits: 0,
            due: None,
            forget_at: None,
        }
    }

    /// The desired version.
    pub fn latest(&self) -> Option<&PipelineVersion> {
        self.versions.last()
    }

    /// The version that gateways execute: the newest one that was ready, or the stable one of a rollout.
    pub fn routed(&self) -> Option<&PipelineVersion> {
        self.split().first().map(|(version, _)| *version)
    }

    /// The version whose readiness gateways know: the routed one, or the desired one until then.
    pub fn shown(&self) -> Option<&PipelineVersion> {
        self.routed().or_else(|| self.latest())
    }

    /// Why requests cannot succeed; `None` when it serves.
    pub(super) fn obstacle(&self) -> Option<String> {
        self.shown().and_then(PipelineVersion::unready_step)
    }

    pub fn version_status(&self, version: &PipelineVersion) -> PipelineStatus {
        let status = |state, reason: String, gateway_reason: &str| PipelineStatus {
            state,
            reason,
            models_ready: version.unready.is_none() && (self.awaits == 0 || self.deleted),
            gateway_reason: gateway_reason.to_owned(),
        };
        if self.deleted {
            let reason = "pipeline removed".to_owned();
            return match self.awaits {
                0 => status(PipelineState::Terminated, reason, ""),
                _ => status(PipelineState::Terminating, reason, UNACKNOWLEDGED),
            };
        }
        let routed = self.routed().map(|v| v.number);
        if let Some(routed) = routed.filter(|routed| *routed > version.number) {
            return if self.is_kept(version) {
                let reason = format!("version {routed} serves; this one is kept for a rollback");
                status(PipelineState::Terminating, reason, "")
            } else {
                let reason = format!("version {routed} takes over");
                status(PipelineState::Terminating, reason, UNACKNOWLEDGED)
            };
        }
        let obstacle = self.rollout_obstacle(version);
        if let Some(rolled_back @ Obstacle::RolledBack(_)) = obstacle {
            return status(PipelineState::Failed, rolled_back.to_string(), "");
        }
        if let Some(failure) = &version.failure {
            return status(PipelineState::Failed, failure.clone(), failure);
        }
        let unready = version.unready_step();
        if let Some(obstacle) = obstacle.filter(|_| unready.is_none()) {
            return status(PipelineState::Creating, obstacle.to_string(), "");
        }
        match (version.created, unready, routed.filter(|routed| *routed != version.number)) {
            (false, Some(step), Some(older)) => {
                let reason = format!("{step}; version {older} serves");
                status(PipelineState::Creating, reason.clone(), &reason)
            }
            (false, ..) => status(PipelineState::Creating, UNACKNOWLEDGED.to_owned(), UNACKNOWLEDGED),
            (true, Some(step), _) => status(PipelineState::Ready, step, ""),
            (true, None, _) if self.awaits != 0 => {
                status(PipelineState::Ready, UNACKNOWLEDGED.to_owned(), UNACKNOWLEDGED)
            }
            (true, None, _) => status(PipelineState::Ready, "created pipeline".to_owned(), ""),
        }
    }

    /// Why the desired version does not have all requests, if the cause is its rollout.
    pub(super) fn rollout_obstacle(&self, version: &PipelineVersion) -> Option<Obstacle<'_>> {
        let is_latest = self.latest().is_some_and(|latest| latest.number == version.number);
        self.rollout.as_ref().filter(|_| is_latest)?.obstacle(&version.revision())
    }

    /// Updates readiness from the models.
    fn refresh(&mut self, models: &BTreeMap<Arc<str>, Model>) {
        if self.deleted {
            return;
        }
        for version in &mut self.versions {
            version.unready = version.definition.steps.iter().find_map(|step| unready_model(models, step));
        }
        if let Some(latest) = self.versions.last_mut() {
            latest.was_ready |= latest.unready.is_none();
        }
    }

    /// Publishes the route if it changed, under a new sequence number. Returns whether it did.
    fn publish(&mut self, sequence: &mut u64) -> bool {
        let executed = self.routed().is_some();
        let Some(shown) = self.shown() else { return false };
        let (uid, unready) = (shown.uid.clone(), shown.unready.clone().filter(|_| !self.deleted));
        let keep_payloads = shown.definition.keep_payloads;
        let candidate = self.split().get(1).map(|(version, percent)| (version.uid.clone(), *percent));
        let published = Some(PublishedPipeline {
            uid,
            deleted: self.deleted,
            executed,
            keep_payloads,
            unready,
            candidate,
            rollout_generation: self.rollout_generation(),
            observed: self.observed_tensor().cloned(),
        });
        if self.published == published {
            return false;
        }
        let earlier = std::mem::replace(&mut self.published, published);
        *sequence += 1;
        self.route_sequence = *sequence;
        // Gateways need not acknowledge that something does not serve.
        let awaited = match (&earlier, &self.published) {
            (Some(earlier), Some(now)) => {
                earlier.uid != now.uid
                    || earlier.deleted != now.deleted
                    || (earlier.unready.is_some() && now.unready.is_none())
            }
            _ => true,
        };
        if awaited {
            self.awaits = *sequence;
        }
        true
    }

    /// Every gateway has applied routes up to `applied`.
    pub(super) fn acknowledge(&mut self, applied: u64) {
        if self.awaits == 0 || self.awaits > applied {
            return;
        }
        self.awaits = 0;
        let shown = self.shown().map(|v| v.number);
        for version in self.versions.iter_mut().filter(|v| Some(v.number) == shown) {
            version.created = true;
        }
    }

    /// Drops versions that gateways neither execute nor will.
    fn prune(&mut self) {
        let (routed, latest) = (self.routed().map(|v| v.number), self.latest().map(|v| v.number));
        let (deleted, switching) = (self.deleted, self.awaits != 0);
        let kept = self.kept_versions();
        self.versions.retain(|v| {
            let executed = v.was_ready && (Some(v.number) == routed || switching);
            let kept = kept.contains(&v.number);
            Some(v.number) == latest || ((executed || kept) && !deleted)
        });
    }

    /// Whether the durable record is the same.
    fn same_record(&self, other: &Self) -> bool {
        self.deleted == other.deleted
            && self.owner == other.owner
            && self.versions.len() == other.versions.len()
            && self
                .versions
                .iter()
                .zip(&other.versions)
                .all(|(a, b)| (&a.uid, a.was_ready, &a.definition) == (&b.uid, b.was_ready, &b.definition))
    }

    fn statuses(&self) -> Vec<(u32, PipelineStatus)> {
        self.versions.iter().map(|v| (v.number, self.version_status(v))).collect()
    }
}

impl State {
    pub const fn pipelines(&self) -> &BTreeMap<Arc<str>, Pipeline> {
        &self.pipelines
    }

    /// Runs `work` on one pipeline, then updates its readiness, route, index and effects. Returns whether it is known.
    pub(super) fn with_pipeline(
        &mut self,
        name: &str,
        now: Millis,
        effects: &mut Effects,
        work: impl FnOnce(&mut Pipeline),
    ) -> bool {
        self.change_pipeline(name, now, effects, &PipelineInput::default(), work).is_some()
    }

    /// As [`Self::with_pipeline`], with an input of its rollout. `None` if it is not known.
    pub(super) fn change_pipeline(
        &mut self,
        name: &str,
        now: Millis,
        effects: &mut Effects,
        input: &PipelineInput<'_>,
        work: impl FnOnce(&mut Pipeline),
    ) -> Option<Result<(), CommandRejection>> {
        let (name, pipeline) = self.pipelines.range_mut::<str, _>((Included(name), Included(name))).next()?;
        let before = pipeline.clone();
        if let Some(undo_log) = &mut self.undo_log {
            undo_log.save_pipeline(name, Some(&before));
        }
        work(pipeline);
        pipeline.refresh(&self.models);
        let times = Times { now, monotonic_now: self.clock.monotonic_now };
        let target = RolloutTarget::pipeline(name.clone());
        let result = pipeline.step_rollout(&target, input, times, effects);
        if pipeline.publish(&mut self.sequence) {
            effects.pipeline_routes.insert(name.clone());
            let sequence = self.sequence;
            let of_weights = pipeline.rollout.as_mut().is_some_and(|rollout| rollout.publish(sequence));
            if pipeline.awaits != before.awaits || of_weights {
                self.dependants.await_routes(sequence, Kind::Pipeline, name);
            }
        }
        pipeline.prune();
        let due = if pipeline.deleted && pipeline.awaits == 0 {
            let later = times.monotonic_now.saturating_add(self.policy.tombstone_ttl);
            Some(*pipeline.forget_at.get_or_insert(later))
        } else {
            pipeline.rollout.as_ref().and_then(|rollout| rollout.due)
        };
        self.index.set_timer(&mut pipeline.due, due, &Timer::Pipeline(name.clone()));
        self.dependants.pipeline_changed(name, Some(&before), Some(pipeline));
        if !pipeline.same_record(&before) {
            effects.store_pipelines.insert(name.clone());
        }
        let (shown, shown_before) = (pipeline.statuses(), before.statuses());
        if shown != shown_before || !pipeline.same_record(&before) {
            for (version, status) in pipeline.versions.iter_mut().zip(&shown) {
                if !shown_before.contains(status) {
                    version.since = now;
                }
            }
            effects.pipelines.insert(name.clone());
        }
        Some(result)
    }

    /// The tombstone of a deleted pipeline expires, or time may advance its rollout.
    pub(super) fn pipeline_due(&mut self, name: &Arc<str>, now: Millis, effects: &mut Effects) {
        if self.pipelines.get(name).is_some_and(|pipeline| !pipeline.deleted) {
            self.with_pipeline(name, now, effects, |_| ());
            return;
        }
        let Some(mut pipeline) = self.pipelines.remove(name) else { return };
        if let Some(undo_log) = &mut self.undo_log {
            undo_log.save_pipeline(name, Some(&pipeline));
        }
        self.index.set_timer(&mut pipeline.due, None, &Timer::Pipeline(name.clone()));
        effects.store_pipelines.insert(name.clone());
        effects.pipelines.insert(name.clone());
    }
}
