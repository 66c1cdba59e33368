//! Aggregated status of a version, from the states of its replicas.

use super::{
    model::{Model, ModelState, ReplicaState, Version},
    reason::Reason,
    rollout::Obstacle,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionStatus {
    pub state: ModelState,
    pub reason: String,
    /// `None` when nothing is wrong.
    pub code: Option<Reason>,
    pub available: u32,
    /// Desired replicas that do not serve.
    pub unavailable: u32,
}

impl Model {
    pub fn version_status(&self, version: &Version) -> VersionStatus {
        let available = version.count(|s| s == ReplicaState::Available);
        let desired = version.desired_replicas();
        let is_latest = self.versions.last().is_some_and(|v| v.number == version.number);
        let status = |state, code, reason: String| VersionStatus {
            state,
            reason,
            code,
            available,
            unavailable: desired.saturating_sub(available),
        };
        if self.deleted || !is_latest {
            return VersionStatus { unavailable: 0, ..terminating_status(self.deleted, version, status) };
        }
        let rollout = self.rollout.as_deref();
        let obstacle = rollout.and_then(|rollout| rollout.obstacle(&version.revision()));
        if let Some(rolled_back @ Obstacle::RolledBack(_)) = obstacle {
            return status(ModelState::Failed, Some(Reason::RolledBack), rolled_back.to_string());
        }
        if let Some((location, reason, no_memory)) = first(version, ReplicaState::LoadFailed) {
            let code = if no_memory { Reason::LoadFailedMemory } else { Reason::LoadFailed };
            return status(ModelState::Failed, Some(code), format!("{location}: {reason}"));
        }
        if desired == 0 && version.definition.scaling.min == 0 && available == 0 {
            let (code, reason) = if version.scaled_to_zero() {
                (Reason::Sleeping, "scaled to zero until the next request")
            } else {
                (Reason::ScaledDown, "no replica is desired")
            };
            return status(ModelState::ScaledDown, Some(code), reason.into());
        }
        let unplaced = version.unplaced.as_deref();
        let older_serves = self
            .versions
            .iter()
            .any(|v| v.number != version.number && v.any(|s| s == ReplicaState::Available));
        let serves = version.serves_enough() || (available > 0 && older_serves);
        if let Some(obstacle) = obstacle.filter(|_| serves) {
            return status(ModelState::Progressing, Some(Reason::RollingOut), obstacle.to_string());
        }
        if serves {
            let reason = unplaced.map(ToString::to_string).unwrap_or_default();
            return status(ModelState::Available, unplaced.map(super::Unschedulable::reason), reason);
        }
        if let Some(unschedulable) = unplaced {
            let state = if version.any(ReplicaState::counts_as_desired) {
                ModelState::Progressing
            } else {
                ModelState::ScheduleFailed
            };
            return status(state, Some(unschedulable.reason()), unschedulable.to_string());
        }
        let (code, reason) = progress(version);
        status(ModelState::Progressing, Some(code), reason)
    }
}

/// Status of a version that is deleted or superseded.
fn terminating_status(
    deleted: bool,
    version: &Version,
    status: impl Fn(ModelState, Option<Reason>, String) -> VersionStatus,
) -> VersionStatus {
    if let Some((location, reason, _)) = first(version, ReplicaState::UnloadFailed) {
        let reason = format!("{location}: {reason}");
        return status(ModelState::TerminateFailed, Some(Reason::UnloadFailed), reason);
    }
    if !version.has_no_replicas() {
        return status(ModelState::Terminating, Some(Reason::Terminating), String::new());
    }
    let code = if deleted { Reason::Deleted } else { Reason::Superseded };
    status(ModelState::Terminated, Some(code), String::new())
}

/// Status of a version that is placed and not available yet.
fn progress(version: &Version) -> (Reason, String) {
    if let Some((location, ..)) = first(version, ReplicaState::LoadedUnavailable)
        .or_else(|| first(version, ReplicaState::LoadRequested))
    {
        return (Reason::Silent, format!("{location} is disconnected"));
    }
    if version.any(|s| s == ReplicaState::Loading) {
        let again = version.last_failure.as_ref().map(|failure| format!("retried after {failure}"));
        return (Reason::Loading, again.unwrap_or_default());
    }
    if version.any(|s| s == ReplicaState::Loaded) {
        return (Reason::Routing, String::new());
    }
    match first(version, ReplicaState::Draining) {
        Some((location, ..)) => (Reason::Draining, format!("{location} is draining")),
        None => (Reason::Loading, String::new()),
    }
}

/// The first replica in a state: location, reason, and whether memory was insufficient.
fn first(version: &Version, state: ReplicaState) -> Option<(String, &str, bool)> {
    version
        .placements()
        .find(|(_, _, r)| r.state == state)
        .map(|(server, index, r)| (format!("{server}-{index}"), r.reason.as_str(), r.no_memory))
}
