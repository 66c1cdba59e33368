//! The objects that a policy selects, and their rollouts.

use crate::{
    caches::Caches,
    cluster::{Custom, CustomKind, InferenceService, Key, Model, Pipeline, RolloutPolicy},
    controllers::inference_service::POLICY_ACCEPTED,
    plan::Known,
    schedulers::{LoadedView as _, ModelView, PipelineView, PolicyView, targets_in},
};
use gantry_api::{RolloutPolicySpec, TargetKind};
use gantry_proto::gantry::RolloutStatus;
use std::{collections::BTreeMap, sync::Arc};

type Labels = BTreeMap<String, String>;
type Policy = Arc<Custom<RolloutPolicy>>;

/// Facts from other objects.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Kind of the objects; `None` without a valid spec.
    pub kind: Option<TargetKind>,
    /// Names of the objects that the policy applies to.
    pub targets: Vec<String>,
    pub conflicts: Vec<Conflict>,
    /// Selected, but the scheduler has an object of that name with another owner.
    pub not_managed: Vec<String>,
    /// Selected, but of a form that policies do not act on: name and message.
    pub unsupported: Vec<(String, String)>,
    pub rollouts: Vec<RolloutStatus>,
    /// Whether those of services are known.
    pub knows_services: bool,
    /// Whether all policies are known: the CRD may be missing.
    pub is_listed: bool,
}

/// An object that an older policy selects, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub target: String,
    pub policy: String,
}

impl Facts {
    pub(super) fn take(caches: &Caches, key: &Key) -> Self {
        let policies = caches.of::<RolloutPolicy>();
        let is_listed = policies.is_listed([caches.settings.scope.of(&key.namespace)]);
        let object = policies.get(key);
        let facts = object.as_deref().map(|object| Self::of(caches, object)).unwrap_or_default();
        let knows_services = caches.schedulers.knows_rollouts_of_services(&key.namespace);
        Self { rollouts: caches.schedulers.rollouts_of(key), knows_services, is_listed, ..facts }
    }

    /// Without rollouts. Also of an object that is not in the cache yet.
    pub(crate) fn of(caches: &Caches, object: &Custom<RolloutPolicy>) -> Self {
        let Ok(spec) = &object.spec else { return Self::default() };
        let Some(kind) = target_kind(spec) else { return Self::default() };
        let Key { namespace, name } = object.key();
        let mut older = valid_policies(caches, &namespace);
        older.retain(|policy| policy.key().name != name && precedence(policy) < precedence(object));
        let mut facts = Self { kind: Some(kind), ..Self::default() };
        for (target, labels) in candidates(caches, &namespace, kind) {
            if !selects(spec, kind, &target, &labels) {
                continue;
            }
            let taken_by = |policy: &&Policy| {
                policy.spec.as_ref().is_ok_and(|spec| selects(spec, kind, &target, &labels))
            };
            if let Some(policy) = older.iter().find(taken_by) {
                facts.conflicts.push(Conflict { target, policy: policy.key().name });
            } else if has_foreign(caches, kind, &Key::new(namespace.clone(), target.clone())) {
                facts.not_managed.push(target);
            } else {
                let key = Key::new(namespace.clone(), target.clone());
                let service = caches.of::<InferenceService>().get(&key);
                let service = service.filter(|_| kind == TargetKind::InferenceService);
                match service.as_deref().and_then(obstacle) {
                    Some(message) => facts.unsupported.push((target, message.to_owned())),
                    None => facts.targets.push(target),
                }
            }
        }
        facts
    }
}

pub(super) fn target_kind(spec: &RolloutPolicySpec) -> Option<TargetKind> {
    let named = spec.target_ref.as_ref().map(|target| target.kind);
    named.or_else(|| spec.selector.as_ref().map(|selector| selector.kind))
}

/// Objects of a kind that schedulers have, by name.
fn candidates(caches: &Caches, namespace: &str, kind: TargetKind) -> Vec<(String, Labels)> {
    fn of<K: CustomKind>(caches: &Caches, namespace: &str) -> Vec<(String, Labels)> {
        let objects = caches.of::<K>().in_namespace(namespace);
        objects.iter().map(|o| (o.key().name, o.metadata.labels.clone().unwrap_or_default())).collect()
    }
    match kind {
        TargetKind::Model => of::<Model>(caches, namespace),
        TargetKind::Pipeline => of::<Pipeline>(caches, namespace),
        TargetKind::InferenceService => of::<InferenceService>(caches, namespace),
        TargetKind::Algorithm => Vec::new(),
    }
}

/// Why policies do not act on a service, as its controller found.
pub(super) fn obstacle(object: &Custom<InferenceService>) -> Option<&str> {
    let conditions = object.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let condition = conditions.iter().find(|c| c.r#type == POLICY_ACCEPTED && c.status == "False")?;
    condition.message.as_deref()
}

fn has_foreign(caches: &Caches, kind: TargetKind, object: &Key) -> bool {
    match kind {
        TargetKind::Model => caches.schedulers.has_foreign::<ModelView>(object),
        TargetKind::Pipeline => caches.schedulers.has_foreign::<PipelineView>(object),
        TargetKind::InferenceService | TargetKind::Algorithm => false,
    }
}

fn selects(spec: &RolloutPolicySpec, kind: TargetKind, name: &str, labels: &Labels) -> bool {
    let is_named = spec.target_ref.as_ref().is_some_and(|t| t.kind == kind && t.name == name);
    is_named || spec.selector.as_ref().is_some_and(|s| s.kind == kind && s.matches(labels))
}

/// Older first, then by name.
fn precedence(policy: &Custom<RolloutPolicy>) -> (bool, Option<k8s_openapi::jiff::Timestamp>, String) {
    let created = policy.metadata.creation_timestamp.as_ref().map(|time| time.0);
    // A policy that is not created yet is the newest.
    (created.is_none(), created, policy.key().name)
}

/// By precedence.
fn valid_policies(caches: &Caches, namespace: &str) -> Vec<Policy> {
    let mut policies = caches.of::<RolloutPolicy>().in_namespace(namespace);
    let is_valid = |policy: &Policy| {
        !policy.is_deleted() && policy.spec.as_ref().is_ok_and(|spec| policy.violations(spec).is_empty())
    };
    policies.retain(is_valid);
    policies.sort_by_cached_key(|policy| precedence(policy));
    policies
}

/// The policy that applies to an object: the oldest one that selects it.
pub(crate) fn policy_for<K: CustomKind>(
    caches: &Caches,
    kind: TargetKind,
    object: &Custom<K>,
) -> Option<Policy> {
    let Key { namespace, name } = object.key();
    let policies = valid_policies(caches, &namespace);
    let none = Labels::new();
    let labels = object.metadata.labels.as_ref().unwrap_or(&none);
    let is_of = |policy: &Policy| policy.spec.as_ref().is_ok_and(|spec| selects(spec, kind, &name, labels));
    policies.into_iter().find(is_of)
}

/// The policy that selects an object, as long as the scheduler does not apply it to the object.
pub(crate) fn awaited<K: CustomKind>(caches: &Caches, kind: TargetKind, object: &Key) -> Option<String> {
    let policy = policy_for(caches, kind, &*caches.of::<K>().get(object)?)?;
    let is_known = match caches.schedulers.get::<PolicyView>(&policy.key()) {
        Known::Present(view) => {
            view.is_from(&object.namespace) && targets_in(&view.policy, kind).contains(&object.name)
        }
        Known::Absent => false,
        Known::Unknown(_) => true,
    };
    let last = caches.schedulers.last_request::<RolloutPolicy>(&policy.key());
    let is_rejected = last.is_some_and(|(last, _)| last.rejection.is_some());
    (!is_known && !is_rejected && !has_foreign(caches, kind, object)).then(|| policy.key().name)
}
