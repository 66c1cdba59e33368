//! How far a workload is.

use crate::{
    cluster::{OwnedObject, ResourceKind},
    conditions::{Progress, ConditionUpdate},
};
use serde_json::Value;

/// Pods that are wanted, and what has come of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    kind: ResourceKind,
    /// Pods that are wanted.
    pub wanted: i64,
    /// Pods that there are.
    pub pods: i64,
    ready: i64,
    updated: i64,
    /// Whether the object is there, and its figures are about its latest form.
    current: Option<bool>,
    /// What Kubernetes says is in the way.
    obstacle: Option<String>,
}

impl Rollout {
    /// How far the object is.
    pub fn of(kind: ResourceKind, live: Option<&OwnedObject>, wanted: i64) -> Self {
        let number = |at| live.map_or(0, |live| live.number(at));
        let generation = live.and_then(|live| live.metadata.generation).unwrap_or_default();
        Self {
            kind,
            wanted,
            pods: number("/status/replicas"),
            ready: number("/status/readyReplicas"),
            updated: number("/status/updatedReplicas"),
            current: live.map(|_| number("/status/observedGeneration") >= generation),
            obstacle: live.and_then(obstacle),
        }
    }

    /// Whether all that is wanted is there, in its latest form, and works.
    pub fn is_done(&self) -> bool {
        self.current == Some(true) && self.ready >= self.wanted && self.updated >= self.wanted
    }

    /// The same for a status: a word, and a sentence that says where to look.
    pub fn condition(&self, namespace: &str, selector: &str) -> ConditionUpdate {
        let (kind, wanted) = (self.kind, self.wanted);
        if self.is_done() {
            let message = match wanted {
                0 => "no pod is wanted".to_owned(),
                1 => "its pod is ready".to_owned(),
                _ => format!("{wanted} of {wanted} pods are ready"),
            };
            return ConditionUpdate::new(true, format!("{kind}Ready"), message, Progress::Settled);
        }
        let passing = |reason: &str, message: String| ConditionUpdate::new(false, reason, message, Progress::InProgress);
        match self.current {
            // One sentence for both: what lasts a moment is not worth a write more.
            None | Some(false) => {
                passing("Progressing", format!("the {kind} is being made as it is asked for"))
            }
            Some(true) => {
                let look = format!("kubectl describe pods -n {namespace} -l {selector}");
                let (count, what) = if self.ready < wanted {
                    (self.ready, "ready")
                } else {
                    (self.updated, "replaced by the latest form")
                };
                let are = if count == 1 { "is" } else { "are" };
                let message = format!("{count} of {wanted} pods {are} {what}");
                match &self.obstacle {
                    Some(obstacle) => passing("Progressing", format!("{message}: {obstacle}")),
                    None => passing("Progressing", format!("{message}; what the others wait for: {look}")),
                }
            }
        }
    }
}

/// What a workload's conditions say is in the way: pods that may not be made, or that do not come.
fn obstacle(live: &OwnedObject) -> Option<String> {
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
    fn every_stage_is_told_apart() {
        let figures = |seen, ready, updated| json!({"observedGeneration": seen, "replicas": 3, "readyReplicas": ready, "updatedReplicas": updated});
        let failing = json!({
            "observedGeneration": 2, "readyReplicas": 1, "updatedReplicas": 3,
            "conditions": [{"type": "ReplicaFailure", "status": "True", "message": "violates PodSecurity"}],
        });
        for (live_status, wanted, done, condition) in [
            (None, 3, false, "is being made"),
            (Some(figures(1, 3, 3)), 3, false, "is being made"),
            (Some(figures(2, 1, 3)), 3, false, "1 of 3 pods is ready"),
            (Some(figures(2, 3, 2)), 3, false, "2 of 3 pods are replaced"),
            (Some(figures(2, 3, 3)), 3, true, "3 of 3 pods are ready"),
            // Those that are too many are on their way out, and in nobody's way.
            (Some(figures(2, 3, 3)), 2, true, "2 of 2 pods are ready"),
            (Some(json!({"observedGeneration": 2})), 0, true, "no pod is wanted"),
            (Some(failing), 3, false, "1 of 3 pods is ready: violates PodSecurity"),
        ] {
            let live = live_status.map(|status| live(2, &status));
            let progress = Rollout::of(ResourceKind::STATEFUL_SET, live.as_ref(), wanted);
            let said = progress.condition("ns", "a=b").message;
            assert_eq!(progress.is_done(), done, "{said}");
            assert!(said.contains(condition), "{said}");
        }
    }
}
