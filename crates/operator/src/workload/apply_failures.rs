//! Failed applies are not retried until the object or its surroundings change, or a retry interval has passed.

use super::{auto_update::keep_legacy_annotation, hpa::hand_over_replicas, owned_objects::OwnedObjects};
use crate::{
    cluster::{Desired, Key, ResourceKind},
    conditions::{ConditionUpdate, Progress},
    plan::{Action, ClusterAction},
};
use std::time::Duration;

/// Cluster policies may change without an event.
const REJECTED_RETRY_INTERVAL: Duration = Duration::from_mins(5);
/// Foreign objects are not watched.
const CONFLICT_RETRY_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// Rejected by the API server; with its message.
    Rejected(String),
    /// The name is used by an object of the previous owner with the same name; with that owner.
    PreviousOwner(String),
    /// The name is used by an object that is not ours; with its owner.
    Foreign(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct ApplyFailure {
    pub kind: ResourceKind,
    pub key: Key,
    /// Digest of the rejected object.
    pub digest: String,
    /// UID of the cached object with that name; empty when there was none.
    pub live_uid: String,
    pub cause: FailureCause,
    pub age: Duration,
}

impl ApplyFailure {
    /// Whether applying this object would fail again.
    fn applies_to(&self, desired: &Desired, owned: &OwnedObjects) -> bool {
        let live_uid = owned.live_uid(desired.kind, &desired.key.name);
        self.kind == desired.kind
            && self.key == desired.key
            && self.age < self.retry_interval()
            && self.live_uid == live_uid.unwrap_or_default()
            && self.digest == desired.digest()
    }

    const fn retry_interval(&self) -> Duration {
        match self.cause {
            FailureCause::Rejected(_) => REJECTED_RETRY_INTERVAL,
            FailureCause::PreviousOwner(_) | FailureCause::Foreign(_) => CONFLICT_RETRY_INTERVAL,
        }
    }

    pub fn condition(&self) -> ConditionUpdate {
        let (kind, name, namespace) = (self.kind, &self.key.name, &self.key.namespace);
        let lower = kind.kind.to_lowercase();
        match &self.cause {
            FailureCause::Rejected(reason) => {
                let remedy = self.remedy(reason);
                let reason = reason.trim_end_matches('.');
                let message = format!("the API server rejected {kind} {name}: {reason}; {remedy}");
                ConditionUpdate::new(false, "ApplyRefused", message, Progress::Stalled)
            }
            FailureCause::PreviousOwner(owner) => {
                let message = format!("waiting for deletion of {kind} {name}, owned by the previous {owner}");
                ConditionUpdate::new(false, "Progressing", message, Progress::InProgress)
            }
            FailureCause::Foreign(owner) => {
                let message = format!(
                    "cannot create {kind} {name} in namespace {namespace}: {owner}; rename one of the two, or delete it \
                     (kubectl delete {lower} {name} -n {namespace})"
                );
                ConditionUpdate::new(false, "NameTaken", message, Progress::Stalled)
            }
        }
    }

    fn remedy(&self, reason: &str) -> String {
        let (kind, name, namespace) = (self.kind, &self.key.name, &self.key.namespace);
        let lower = kind.kind.to_lowercase();
        if reason.contains("updates to statefulset spec") || reason.contains("field is immutable") {
            format!(
                "the change requires a new {kind}: run kubectl delete {lower} {name} -n {namespace} --cascade=orphan, which \
                 keeps the pods; the operator recreates the {kind}"
            )
        } else if reason.contains("exceeded quota") {
            "raise the quota of the namespace, or lower the requested resources".to_owned()
        } else if reason.contains("cannot ") {
            "grant the permission to the operator's service account".to_owned()
        } else {
            "change podSpec in the object or its configuration".to_owned()
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct ApplyActions {
    pub actions: Vec<Action>,
    /// Failures that still apply.
    pub failures: Vec<ApplyFailure>,
    pub retry_after: Option<Duration>,
}

/// Actions for all desired objects, except those that would fail again.
pub fn apply_actions(desired: &[Desired], owned: &OwnedObjects, failures: &[ApplyFailure]) -> ApplyActions {
    let mut result = ApplyActions::default();
    for desired in desired {
        let live = owned.get(desired.kind, &desired.key.name);
        let desired = keep_legacy_annotation(desired, live).adopted_from(live);
        if let Some(failure) = failures.iter().find(|failure| failure.applies_to(&desired, owned)) {
            let left = failure.retry_interval().saturating_sub(failure.age);
            result.retry_after = Some(result.retry_after.map_or(left, |known| known.min(left)));
            result.failures.push(failure.clone());
        } else {
            result.actions.extend(hand_over_replicas(live, &desired));
            result.actions.push(ClusterAction::Apply(Box::new(desired)).into());
        }
    }
    result
}
