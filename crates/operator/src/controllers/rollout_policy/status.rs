//! Status of a rollout policy: conditions, and the rollouts of its targets.

use super::snapshot::{Conflict, Facts, target_kind};
use crate::{
    cluster::{Custom, EventDraft, RolloutPolicy},
    conditions::{ConditionStatus, ConditionUpdate, Progress, conditions},
    controllers::validation::validate,
    schedulers::{PolicyView, is_under_way, target_name, target_of},
};
use gantry_api::{RolloutPolicyStatus, RolloutResult, RolloutVersion, TargetKind, TargetRollout};
use gantry_proto::gantry::{RevisionStatus, RolloutHistory, RolloutStatus};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

const ACCEPTED: &str = "Accepted";
const UNSUPPORTED: &str = "UnsupportedTarget";
/// Rollouts in the status.
const MAX_ROLLOUTS: usize = 100;
/// Names in a message.
const MAX_LISTED: usize = 3;
/// Shortest time between status writes for steps, weights and results: a policy may have many targets.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between status writes for evidence.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(10);

/// The condition of a policy whose targets this version does not roll out, with the remedy.
pub(super) fn unsupported(object: &Custom<RolloutPolicy>) -> Option<ConditionUpdate> {
    let kind = target_kind(object.spec.as_ref().ok()?)?;
    let remedy = match kind {
        TargetKind::Model | TargetKind::Pipeline | TargetKind::InferenceService => return None,
        TargetKind::Algorithm => "an Algorithm has its own analysis and lifecycle fields",
    };
    let message = format!("targets of kind {} are not supported: {remedy}", kind.name());
    Some(ConditionUpdate::new(false, UNSUPPORTED, message, Progress::Stalled))
}

/// Why a changed object waits for its policy: without it the new version would get all requests at once.
pub(crate) fn hold(policy: &str, noun: &str) -> ConditionUpdate {
    let message = format!("waiting until the scheduler has RolloutPolicy {policy}, which selects the {noun}");
    ConditionUpdate::new(false, "WaitingForPolicy", message, Progress::InProgress)
}

/// `Ready` of a policy that the scheduler has.
pub(super) fn ready(facts: &Facts) -> ConditionUpdate {
    let accepted = accepted(facts);
    if accepted.status == ConditionStatus::True {
        let message = format!("applies to {}", listed(&facts.targets));
        return ConditionUpdate::new(true, "PolicyReady", message, Progress::Settled);
    }
    accepted
}

/// Whether the policy applies to everything that it selects, and to anything at all.
fn accepted(facts: &Facts) -> ConditionUpdate {
    let kind = facts.kind.map_or("object", TargetKind::name);
    if let Some(Conflict { target, policy }) = facts.conflicts.first() {
        let more = match facts.conflicts.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let message = format!(
            "{kind} {target} is selected by RolloutPolicy {policy}, too, which is older and applies{more}: narrow the \
             selector of one of them"
        );
        return ConditionUpdate::new(false, "Conflict", message, Progress::Stalled);
    }
    if !facts.not_managed.is_empty() {
        let message = format!(
            "the scheduler has {kind} {} of another owner: rename it, or delete the other one",
            listed(&facts.not_managed)
        );
        return ConditionUpdate::new(false, "TargetNotManaged", message, Progress::InProgress);
    }
    if let Some((name, message)) = facts.unsupported.first() {
        let more = match facts.unsupported.len() - 1 {
            0 => String::new(),
            more => format!("; {more} more are not supported either"),
        };
        let message = format!("{kind} {name}: {message}{more}");
        return ConditionUpdate::new(false, UNSUPPORTED, message, Progress::Stalled);
    }
    if facts.targets.is_empty() {
        let message =
            format!("selects no {kind} of the namespace: create it, or correct targetRef or selector");
        return ConditionUpdate::new(false, "NoTarget", message, Progress::InProgress);
    }
    let message = format!("valid, and selects {}", listed(&facts.targets));
    ConditionUpdate::new(true, "Accepted", message, Progress::Settled)
}

fn listed(names: &[String]) -> String {
    let first = names.iter().take(MAX_LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_LISTED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

pub(super) fn build_status(
    object: &Custom<RolloutPolicy>,
    ready: &ConditionUpdate,
    view: Option<&PolicyView>,
    facts: &Facts,
    now: Timestamp,
) -> RolloutPolicyStatus {
    let before = object.status.clone().unwrap_or_default();
    let accepted = match validate(object) {
        _ if matches!(ready.reason.as_str(), UNSUPPORTED | "Refused") => ready.clone(),
        Err(invalid) => invalid,
        Ok(_) => accepted(facts),
    };
    let own = [(ACCEPTED, &accepted)];
    let is_known = view.is_some() || facts.kind == Some(TargetKind::InferenceService);
    let rollouts: &[RolloutStatus] = if is_known { &facts.rollouts } else { &[] };
    let (targets, conditions) =
        (count(facts.targets.len()), conditions(&before.conditions, &own, ready, object.generation(), now));
    if facts.kind == Some(TargetKind::InferenceService) && !facts.knows_services {
        return RolloutPolicyStatus {
            observed_generation: Some(object.generation()),
            conditions,
            targets,
            ..before
        };
    }
    let counted = |is: fn(&RolloutStatus) -> bool| count(rollouts.iter().filter(|r| is(r)).count());
    let mut ordered: Vec<&RolloutStatus> = rollouts.iter().collect();
    ordered.sort_by_key(|r| (!is_under_way(r), !is_rolled_back(r)));
    RolloutPolicyStatus {
        observed_generation: Some(object.generation()),
        conditions,
        targets,
        progressing: counted(is_under_way),
        rolled_back: counted(is_rolled_back),
        rollouts: ordered.into_iter().take(MAX_ROLLOUTS).map(rollout).collect(),
    }
}

/// The last status, with another condition: what the scheduler reported before is unknown now, not gone.
pub(super) fn unreachable(
    object: &Custom<RolloutPolicy>,
    condition: &ConditionUpdate,
    now: Timestamp,
) -> RolloutPolicyStatus {
    let before = object.status.clone().unwrap_or_default();
    let conditions = conditions(&before.conditions, &[], condition, object.generation(), now);
    RolloutPolicyStatus { conditions, ..before }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn is_rolled_back(status: &RolloutStatus) -> bool {
    !is_under_way(status) && status.history.last().is_some_and(|last| last.outcome == "RolledBack")
}

fn rollout(status: &RolloutStatus) -> TargetRollout {
    let (kind, name) = (target_of(status).0, target_name(status));
    let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let version = |revision: &RevisionStatus| RolloutVersion {
        version: number(revision.version),
        weight: number(revision.weight),
    };
    let step = Some(number(status.stage)).filter(|step| *step > 0);
    TargetRollout {
        kind: kind.name().to_owned(),
        name: name.to_owned(),
        phase: status.phase.clone(),
        message: status.message.clone(),
        steps: step.map(|_| number(status.stages)),
        step,
        paused: Some(status.pause.clone()).filter(|pause| !pause.is_empty()),
        stable: status.stable.as_ref().map(version),
        candidate: status.candidate.as_ref().map(version),
        // The first version replaces nothing.
        last: status
            .history
            .last()
            .filter(|last| last.outcome != "Deployed")
            .map(|last| result(status, last)),
    }
}

fn result(status: &RolloutStatus, last: &RolloutHistory) -> RolloutResult {
    let is_rollback = last.outcome == "RolledBack";
    let failed = status.failed.iter().rev().find(|f| is_rollback && f.revision == last.revision);
    let ended = i64::try_from(last.ended_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    RolloutResult {
        outcome: last.outcome.clone(),
        reason: last.reason.clone(),
        message: failed.map(|failed| failed.message.clone()).unwrap_or_default(),
        time: ended.unwrap_or(Timestamp::UNIX_EPOCH).strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    }
}

/// Promotions, rollbacks and pauses since the last status.
pub(super) fn events(before: Option<&RolloutPolicyStatus>, facts: &Facts) -> Vec<EventDraft> {
    let Some(before) = before else { return Vec::new() };
    let mut events = Vec::new();
    for status in &facts.rollouts {
        let now = rollout(status);
        let is_same = |known: &&TargetRollout| (&known.kind, &known.name) == (&now.kind, &now.name);
        let Some(known) = before.rollouts.iter().find(is_same) else { continue };
        let mut event = |warning, reason, what: String| {
            let message = format!("{} {}: {what}", now.kind, now.name);
            events.push(EventDraft { warning, reason, message });
        };
        let stable = now.stable.as_ref().map_or(0, |stable| stable.version);
        if let Some(last) = now.last.as_ref().filter(|last| known.last.as_ref() != Some(last)) {
            match last.outcome.as_str() {
                "Promoted" => event(false, "RolloutPromoted", format!("version {stable} has all requests")),
                "RolledBack" => {
                    let why = if last.message.is_empty() { &last.reason } else { &last.message };
                    event(true, "RolloutRolledBack", format!("{why}; version {stable} has all requests"));
                }
                "Reverted" => event(true, "RolloutReverted", format!("returned to version {stable}")),
                _ => {}
            }
        }
        if now.paused != known.paused {
            let version = now.candidate.as_ref().map_or(0, |candidate| candidate.version);
            match now.paused.as_deref() {
                Some("Approval") => {
                    let what = format!("version {version} waits for `gantry rollout promote {}`", now.name);
                    event(false, "RolloutNeedsApproval", what);
                }
                Some(_) => {
                    event(false, "RolloutPaused", format!("the rollout of version {version} is paused"));
                }
                None if now.phase == "Progressing" => {
                    event(false, "RolloutResumed", format!("the rollout of version {version} continues"));
                }
                None => {}
            }
        }
    }
    events
}

/// The shortest time between two status writes with this difference.
pub(super) fn write_interval(before: &RolloutPolicyStatus, after: &RolloutPolicyStatus) -> Duration {
    let without_rollouts = |status: &RolloutPolicyStatus| RolloutPolicyStatus {
        progressing: 0,
        rolled_back: 0,
        rollouts: Vec::new(),
        ..status.clone()
    };
    let without_messages = |status: &RolloutPolicyStatus| {
        let plain = |rollout: &TargetRollout| TargetRollout { message: String::new(), ..rollout.clone() };
        status.rollouts.iter().map(plain).collect::<Vec<_>>()
    };
    if without_rollouts(before) != without_rollouts(after) {
        Duration::ZERO
    } else if without_messages(before) == without_messages(after) {
        MESSAGE_INTERVAL
    } else {
        PROGRESS_INTERVAL
    }
}

/// Evidence enqueues no policy: see `SchedulerCache::apply_rollout_event`.
pub(super) fn refresh_after(facts: &Facts) -> Option<Duration> {
    facts.rollouts.iter().any(is_under_way).then_some(MESSAGE_INTERVAL)
}
