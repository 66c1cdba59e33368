//! Policies, the objects that they select, and commands and statistics of these.

use super::{
    ObjectRollout, RolloutKind, RolloutRecord, RolloutTarget, Steer, Traffic, pipeline::PipelineInput,
};
use crate::{
    rollout::{CommandRejection, Rollout, RolloutPolicy},
    scheduling::{
        Millis,
        command::{Effects, Rejection},
        model::Model,
        pipeline::Pipeline,
        state::State,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A policy, and the objects that it selects.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyRecord {
    pub name: Arc<str>,
    pub targets: BTreeSet<RolloutTarget>,
    pub policy: Arc<RolloutPolicy>,
    /// As it was put, encoded by the caller.
    pub content: Arc<[u8]>,
}

/// Sets or removes the policy of an object; `first` is its state when it had none. Returns whether something changed.
pub(super) fn assign(
    rollout: &mut Option<Box<ObjectRollout>>,
    policy: Option<(Arc<str>, Arc<RolloutPolicy>)>,
    first: Option<Rollout>,
    target: &RolloutTarget,
    effects: &mut Effects,
) -> bool {
    match (policy, &mut *rollout, first) {
        (Some((policy, rules)), Some(known), _) => (known.policy, known.rules) = (policy, rules),
        (Some((policy, rules)), None, Some(first)) => {
            *rollout = Some(Box::new(ObjectRollout::new(policy, rules, first)));
        }
        (_, None, _) => return false,
        (None, Some(_), _) => *rollout = None,
    }
    effects.store_rollout(target);
    effects.rollouts.insert(target.clone());
    true
}

impl Effects {
    /// The record and the status of an object with a rollout changed.
    pub(super) fn store_rollout(&mut self, RolloutTarget { kind, name }: &RolloutTarget) {
        let (records, statuses) = match kind {
            RolloutKind::Model => (&mut self.store_models, &mut self.models),
            RolloutKind::Pipeline => (&mut self.store_pipelines, &mut self.pipelines),
            RolloutKind::Service => (&mut self.store_services, &mut self.services),
        };
        records.insert(name.clone());
        statuses.insert(name.clone());
    }
}

impl State {
    /// By name.
    pub const fn rollout_policies(&self) -> &BTreeMap<Arc<str>, PolicyRecord> {
        &self.rollout_policies
    }

    pub(in crate::scheduling) fn policy_for(
        &self,
        target: &RolloutTarget,
    ) -> Option<(Arc<str>, Arc<RolloutPolicy>)> {
        let policy = self.rollout_policies.values().find(|policy| policy.targets.contains(target))?;
        Some((policy.name.clone(), policy.policy.clone()))
    }

    /// Creates or updates a policy. Of several policies for an object, the first by name applies.
    pub(in crate::scheduling) fn put_rollout_policy(
        &mut self,
        record: PolicyRecord,
        now: Millis,
        effects: &mut Effects,
    ) {
        let before = self.rollout_policies.get(&record.name);
        if before.is_some_and(|before| before.content == record.content) {
            return;
        }
        let mut targets = record.targets.clone();
        targets.extend(before.iter().flat_map(|before| before.targets.iter().cloned()));
        self.save_rollout_policy(&record.name);
        effects.store_rollout_policies.insert(record.name.clone());
        self.rollout_policies.insert(record.name.clone(), record);
        self.assign_policies(&targets, now, effects);
    }

    pub(in crate::scheduling) fn delete_rollout_policy(
        &mut self,
        name: Arc<str>,
        now: Millis,
        effects: &mut Effects,
    ) {
        self.save_rollout_policy(&name);
        if let Some(policy) = self.rollout_policies.remove(&name) {
            effects.store_rollout_policies.insert(name);
            self.assign_policies(&policy.targets, now, effects);
        }
    }

    fn save_rollout_policy(&mut self, name: &Arc<str>) {
        if let Some(undo_log) = &mut self.undo_log {
            undo_log.save_rollout_policy(name, self.rollout_policies.get(name));
        }
    }

    fn assign_policies(&mut self, targets: &BTreeSet<RolloutTarget>, now: Millis, effects: &mut Effects) {
        for target in targets {
            let policy = self.policy_for(target);
            match target.kind {
                RolloutKind::Model => {
                    self.with(&target.name, now, effects, |ctx, model| {
                        ctx.assign_policy(model, policy);
                        ctx.reconcile(model, false);
                    });
                }
                RolloutKind::Pipeline => self.assign_pipeline_policy(&target.name, now, effects),
                // A service brings its policy.
                RolloutKind::Service => {}
            }
        }
    }

    /// Assigns the policy of a pipeline that was created, or whose policy changed.
    pub(in crate::scheduling) fn assign_pipeline_policy(
        &mut self,
        name: &Arc<str>,
        now: Millis,
        effects: &mut Effects,
    ) {
        let target = RolloutTarget::pipeline(name.clone());
        let policy = self.policy_for(&target);
        let mut assigned = Effects::default();
        self.with_pipeline(name, now, effects, |pipeline| {
            pipeline.assign_policy(policy, &target, &mut assigned);
        });
        effects.merge(Effects { wake_at: effects.wake_at, ..assigned });
    }

    pub(in crate::scheduling) fn steer_rollout(
        &mut self,
        target: RolloutTarget,
        steer: Steer,
        now: Millis,
        effects: &mut Effects,
    ) -> Result<(), Rejection> {
        let name = &target.name;
        let has_rollout = match target.kind {
            RolloutKind::Model => {
                let model = self.models.get(name).filter(|model| !model.deleted);
                model.ok_or_else(|| Rejection::UnknownModel(name.clone()))?.rollout.is_some()
            }
            RolloutKind::Pipeline => {
                let pipeline = self.pipelines.get(name).filter(|pipeline| !pipeline.deleted);
                pipeline.ok_or_else(|| Rejection::UnknownPipeline(name.clone()))?.rollout.is_some()
            }
            RolloutKind::Service => {
                let service = self.services.get(name);
                service.ok_or_else(|| Rejection::UnknownService(name.clone()))?.rollout.is_some()
            }
        };
        if !has_rollout {
            return Err(Rejection::NoRolloutPolicy(target));
        }
        let result = match target.kind {
            RolloutKind::Model => self.steer_model(name, steer, now, effects),
            RolloutKind::Pipeline => {
                let input = PipelineInput { steer: Some(steer), traffic: None };
                self.change_pipeline(name, now, effects, &input, |_| ()).unwrap_or(Ok(()))
            }
            RolloutKind::Service => self.step_service(name, None, Some(steer), now, effects),
        };
        result.map_err(|reason| Rejection::RolloutCommand { target, reason })
    }

    fn steer_model(
        &mut self,
        name: &Arc<str>,
        steer: Steer,
        now: Millis,
        effects: &mut Effects,
    ) -> Result<(), CommandRejection> {
        let result = self.with(name, now, effects, |ctx, model| {
            ctx.step_rollout(model, None, Some(steer))?;
            ctx.reconcile(model, false);
            Ok(())
        });
        result.unwrap_or(Ok(()))
    }

    pub(in crate::scheduling) fn traffic_observed(
        &mut self,
        target: &RolloutTarget,
        traffic: &Traffic,
        now: Millis,
        effects: &mut Effects,
    ) {
        let of_model = |model: &Model| model.rollout.is_some();
        let of_pipeline = |pipeline: &Pipeline| pipeline.rollout.is_some();
        match target.kind {
            RolloutKind::Model if self.models.get(&target.name).is_some_and(of_model) => {
                self.with(&target.name, now, effects, |ctx, model| {
                    let evidence = model.observe(traffic);
                    let _ = ctx.step_rollout(model, evidence.as_ref(), None);
                    ctx.reconcile(model, false);
                });
            }
            RolloutKind::Pipeline if self.pipelines.get(&target.name).is_some_and(of_pipeline) => {
                let input = PipelineInput { traffic: Some(traffic), steer: None };
                self.change_pipeline(&target.name, now, effects, &input, |_| ());
            }
            RolloutKind::Service => {
                // A report has no reply, and no command that could be rejected.
                let _ = self.step_service(&target.name, Some(traffic), None, now, effects);
            }
            RolloutKind::Model | RolloutKind::Pipeline => {}
        }
    }

    /// `None` if the policy is gone.
    pub(in crate::scheduling) fn restored_rollout(
        &self,
        record: Option<RolloutRecord>,
    ) -> Option<Box<ObjectRollout>> {
        let RolloutRecord { policy, state } = record?;
        let policy = self.rollout_policies.get(&policy)?;
        let (name, rules) = (policy.name.clone(), policy.policy.clone());
        Some(Box::new(ObjectRollout::new(name, rules, state)))
    }
}
