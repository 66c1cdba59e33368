//! Rollout progress of a workload.

use crate::{
    cluster::{OwnedObject, ResourceKind},
    conditions::{ConditionUpdate, Progress},
};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    kind: ResourceKind,
    /// Desired replicas.
    pub desired: i64,
    /// Existing pods.
    pub pods: i64,
    ready: i64,
    updated: i64,
    /// Whether the status describes the latest generation; `None` without an object.
    is_observed: Option<bool>,
    /// Failure reported by Kubernetes.
    failure: Option<String>,
}

impl Rollout {
    pub fn of(kind: ResourceKind, live: Option<&OwnedObject>, desired: i64) -> Self {
        let number = |at| live.map_or(0, |live| live.number(at));
        let generation = live.and_then(|live| live.metadata.generation).unwrap_or_default();
        Self {
            kind,
            desired,
            pods: number("/status/replicas"),
            ready: number("/status/readyReplicas"),
            updated: number("/status/updatedReplicas"),
            is_observed: live.map(|_| number("/status/observedGeneration") >= generation),
            failure: live.and_then(failure),
        }
    }

    /// Whether all desired replicas are updated and ready.
    pub fn is_done(&self) -> bool {
        self.is_observed == Some(true) && self.ready_updated() >= self.desired && self.updated >= self.desired
    }

    /// Whether the status describes the latest generation.
    pub fn is_observed(&self) -> bool {
        self.is_observed == Some(true)
    }

    /// Whether a pod of the latest generation is ready.
    pub fn has_ready_updated(&self) -> bool {
        self.is_observed() && self.ready_updated() >= 1
    }

    /// Whether no pod of an older generation exists.
    pub const fn is_replaced(&self) -> bool {
        self.pods <= self.updated
    }

    /// Updated pods that are certainly ready: old ones, which stay until new ones are ready, may be among the ready ones.
    fn ready_updated(&self) -> i64 {
        self.ready - (self.pods - self.updated).max(0)
    }

    pub fn condition(&self, namespace: &str, selector: &str) -> ConditionUpdate {
        let (kind, desired) = (self.kind, self.desired);
        if self.is_done() {
            let message = match desired {
                0 => "scaled to zero".to_owned(),
                _ => format!("{desired} of {desired} pods ready"),
            };
            return ConditionUpdate::new(true, format!("{kind}Ready"), message, Progress::Settled);
        }
        let message = match self.is_observed {
            // One message for both saves a status write.
            None | Some(false) => format!("{kind} is being rolled out"),
            Some(true) => {
                let (count, state) = if self.ready < desired {
                    (self.ready, "ready")
                } else if self.updated < desired {
                    (self.updated, "updated")
                } else {
                    (self.ready_updated().max(0), "updated and ready")
                };
                let details = self
                    .failure
                    .clone()
                    .unwrap_or_else(|| format!("check kubectl describe pods -n {namespace} -l {selector}"));
                format!("{count} of {desired} pods {state}: {details}")
            }
        };
        ConditionUpdate::new(false, "Progressing", message, Progress::InProgress)
    }
}

/// The message of a `ReplicaFailure` or failed `Progressing` condition.
fn failure(live: &OwnedObject) -> Option<String> {
    let conditions = live.data.pointer("/status/conditions").and_then(Value::as_array)?;
    let is = |condition: &Value, name: &str, status: &str| {
        condition.get("type").and_then(Value::as_str) == Some(name)
            && condition.get("status").and_then(Value::as_str) == Some(status)
    };
    let found = conditions.iter().find(|c| is(c, "ReplicaFailure", "True"));
    let found = found.or_else(|| conditions.iter().find(|c| is(c, "Progressing", "False")))?;
    found.get("message").and_then(Value::as_str).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn live(generation: i64, status: &Value) -> OwnedObject {
        let whole = json!({"metadata": {"name": "a", "generation": generation}, "status": status});
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn condition_describes_every_stage() {
        let status = |seen, ready, updated| json!({"observedGeneration": seen, "replicas": 3, "readyReplicas": ready, "updatedReplicas": updated});
        let failing = json!({
            "observedGeneration": 2, "readyReplicas": 1, "updatedReplicas": 3,
            "conditions": [{"type": "ReplicaFailure", "status": "True", "message": "violates PodSecurity"}],
        });
        for (live_status, desired, done, expected) in [
            (None, 3, false, "is being rolled out"),
            (Some(status(1, 3, 3)), 3, false, "is being rolled out"),
            (Some(status(2, 1, 3)), 3, false, "1 of 3 pods ready: check kubectl"),
            (Some(status(2, 3, 2)), 3, false, "2 of 3 pods updated"),
            (Some(status(2, 3, 3)), 3, true, "3 of 3 pods ready"),
            // The ready pods are the old ones.
            (Some(status(2, 1, 1)), 1, false, "0 of 1 pods updated and ready"),
            (Some(status(2, 3, 2)), 2, true, "2 of 2 pods ready"),
            // Surplus pods are terminating and do not matter.
            (Some(status(2, 3, 3)), 2, true, "2 of 2 pods ready"),
            (Some(json!({"observedGeneration": 2})), 0, true, "scaled to zero"),
            (Some(failing), 3, false, "1 of 3 pods ready: violates PodSecurity"),
        ] {
            let live = live_status.map(|status| live(2, &status));
            let rollout = Rollout::of(ResourceKind::STATEFUL_SET, live.as_ref(), desired);
            let message = rollout.condition("ns", "a=b").message;
            assert_eq!(rollout.is_done(), done, "{message}");
            assert!(message.contains(expected), "{message}");
        }
    }
}
