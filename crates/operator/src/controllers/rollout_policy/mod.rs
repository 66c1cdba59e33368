//! Rollout policies.

mod plan;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;

use super::scheduled::{self, Scheduled, Words};
use crate::{
    admission::{AdmissionRequest, Decision, validate_kind},
    caches::Caches,
    cluster::{
        Change, Custom, CustomKind, EventDraft, InferenceService, Key, KindId, Model, Pipeline, RolloutPolicy,
    },
    conditions::ConditionUpdate,
    controller::{Controller, SchedulerRole},
    plan::{Plan, SchedulerAction, variant_of},
    schedulers::PolicyView,
    triggers::Relation,
};
use gantry_api::{Condition, RolloutPolicySpec, RolloutPolicyStatus, TargetKind};
use gantry_proto::gantry as pb;
use k8s_openapi::jiff::Timestamp;
use snapshot::target_kind;
pub(crate) use snapshot::{Conflict, Facts, awaited, policy_for};
pub(crate) use status::hold;
use std::time::Duration;

pub type Snapshot = scheduled::Snapshot<RolloutPolicy>;

#[derive(Clone, Copy, Debug)]
pub struct RolloutPolicyController;

impl Controller for RolloutPolicyController {
    type Kind = RolloutPolicy;
    type Snapshot = Snapshot;
    const NAME: &'static str = "rolloutpolicy";
    // Helm does not add CRDs in an upgrade.
    const OPTIONAL: bool = true;
    const SCHEDULER: SchedulerRole = SchedulerRole::Client;
    const PATCHES: bool = true;
    const PACED: bool = true;

    fn relations() -> Vec<Relation> {
        vec![
            Relation::to::<Model>(policies_by_labels),
            Relation::to::<Pipeline>(policies_by_labels),
            Relation::to::<InferenceService>(policies_by_condition),
            // The older of two policies applies to an object that both select.
            Relation::to::<RolloutPolicy>(|caches, change: &Change<Custom<RolloutPolicy>>| {
                let selection = |policy: &Custom<RolloutPolicy>| (policy.spec.clone(), policy.is_deleted());
                let (before, after) = (change.before.as_deref(), change.after.as_deref());
                if before.map(selection) == after.map(selection) {
                    return Vec::new();
                }
                let mut others = policies_in(caches, &change.key.namespace);
                others.retain(|key| *key != change.key);
                others
            }),
        ]
    }

    fn snapshot(caches: &Caches, key: &Key) -> Snapshot {
        Snapshot::take(caches, key)
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<RolloutPolicyStatus> {
        plan::plan(snapshot, now)
    }

    fn admit(request: &AdmissionRequest, caches: &Caches) -> Decision {
        validate_kind::<RolloutPolicy>(request, caches)
    }
}

/// Whether a change of a policy concerns objects of a kind: what it selects, or how these are rolled out.
pub(crate) fn concerns(change: &Change<Custom<RolloutPolicy>>, kind: TargetKind) -> bool {
    let of = |policy: &Custom<RolloutPolicy>| (policy.spec.clone(), policy.is_deleted());
    let (before, after) = (change.before.as_deref(), change.after.as_deref());
    let is_of_kind = |policy: &Custom<RolloutPolicy>| {
        policy.spec.as_ref().is_ok_and(|spec| target_kind(spec) == Some(kind))
    };
    before.map(of) != after.map(of) && before.into_iter().chain(after).any(is_of_kind)
}

/// The policies to reconcile after a change of labels, or of the set of objects.
fn policies_by_labels<K: CustomKind>(caches: &Caches, change: &Change<Custom<K>>) -> Vec<Key> {
    let labels = |object: &Custom<K>| object.metadata.labels.clone().unwrap_or_default();
    let is_same = change.before.as_deref().map(labels) == change.after.as_deref().map(labels);
    if is_same { Vec::new() } else { policies_in(caches, &change.key.namespace) }
}

/// Those by labels, and after a change of the condition that a policy acts on a service.
fn policies_by_condition(caches: &Caches, change: &Change<Custom<InferenceService>>) -> Vec<Key> {
    let condition = |object: &Custom<InferenceService>| snapshot::obstacle(object).map(str::to_owned);
    let is_same = change.before.as_deref().map(condition) == change.after.as_deref().map(condition);
    if is_same { policies_by_labels(caches, change) } else { policies_in(caches, &change.key.namespace) }
}

fn policies_in(caches: &Caches, namespace: &str) -> Vec<Key> {
    caches.keys_in(KindId::of::<RolloutPolicy>(), namespace)
}

impl Scheduled for RolloutPolicy {
    type View = PolicyView;
    type Definition = pb::RolloutPolicy;
    type Facts = Facts;
    const FINALIZER: &'static str = "gantry.dev/rollout-policy";
    const WORDS: Words = Words {
        noun: "rollout policy",
        loaded: "stored by the scheduler",
        unloaded: "deleted",
        confirmed_by: "scheduler",
        progressing: "PolicyProgressing",
        terminating: "PolicyTerminating",
        ready: "PolicyReady",
        not_ready: "PolicyNotReady",
    };

    fn facts(caches: &Caches, key: &Key) -> Facts {
        Facts::take(caches, key)
    }

    fn definition(object: &Custom<Self>, spec: &RolloutPolicySpec, facts: &Facts) -> pb::RolloutPolicy {
        let Key { namespace, name } = object.key();
        let of_kind = |kind| if target_kind(spec) == Some(kind) { facts.targets.clone() } else { Vec::new() };
        pb::RolloutPolicy {
            name,
            models: of_kind(TargetKind::Model),
            pipelines: of_kind(TargetKind::Pipeline),
            manager: format!("operator:{namespace}"),
            namespace,
            generation: object.generation(),
            spec: serde_json::to_vec(spec).unwrap_or_default(),
        }
    }

    fn variant(facts: &Facts) -> u64 {
        variant_of(&facts.targets)
    }

    fn load(policy: pb::RolloutPolicy, _: i64) -> SchedulerAction {
        SchedulerAction::PutPolicy(Box::new(policy))
    }

    fn unload(key: &Key, _: i64) -> SchedulerAction {
        SchedulerAction::DeletePolicy(key.name.clone())
    }

    fn is_current(view: &PolicyView, desired: &pb::RolloutPolicy) -> bool {
        view.policy == *desired
    }

    fn ready(_: &RolloutPolicySpec, _: &PolicyView, facts: &Facts) -> ConditionUpdate {
        status::ready(facts)
    }

    fn build_status(
        object: &Custom<Self>,
        ready: &ConditionUpdate,
        view: Option<&PolicyView>,
        facts: &Facts,
        now: Timestamp,
    ) -> RolloutPolicyStatus {
        status::build_status(object, ready, view, facts, now)
    }

    fn build_unreachable_status(
        object: &Custom<Self>,
        ready: &ConditionUpdate,
        now: Timestamp,
    ) -> RolloutPolicyStatus {
        status::unreachable(object, ready, now)
    }

    fn events(before: Option<&RolloutPolicyStatus>, facts: &Facts) -> Vec<EventDraft> {
        status::events(before, facts)
    }

    fn write_interval(before: &RolloutPolicyStatus, after: &RolloutPolicyStatus) -> Duration {
        status::write_interval(before, after)
    }

    fn refresh_after(facts: &Facts) -> Option<Duration> {
        status::refresh_after(facts)
    }

    fn observed(status: &RolloutPolicyStatus) -> (Option<i64>, &[Condition]) {
        (status.observed_generation, &status.conditions)
    }
}
