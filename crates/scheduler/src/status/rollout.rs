//! Statuses of rollouts.

use gantry_core::{
    rollout::{
        Candidate, Exposure, FailedRevision, Finding, HistoryEntry, Outcome, Pause, Phase, Progress,
        Revision, Watch,
    },
    scheduling::{Millis, ObjectRollout, RolloutKind, RolloutTarget},
};
use gantry_proto::gantry as own;

/// The rollout of an object with these versions, oldest first, each with its available replicas.
pub(crate) fn rollout(
    target: &RolloutTarget,
    rollout: &ObjectRollout,
    versions: &[(u32, Revision, u32)],
    now: Millis,
) -> own::RolloutStatus {
    let state = &rollout.state;
    let revision = |name: &str| {
        let of_revision = || versions.iter().filter(|(_, revision, _)| **revision == *name);
        let newest = of_revision().next_back().map_or(0, |(number, ..)| *number);
        revision_status(rollout, name, newest, of_revision().map(|(.., available)| available).sum())
    };
    let name = |kind| if target.kind == kind { target.name.to_string() } else { String::new() };
    let mut status = own::RolloutStatus {
        model: name(RolloutKind::Model),
        pipeline: name(RolloutKind::Pipeline),
        service: name(RolloutKind::Service),
        policy: rollout.policy.to_string(),
        phase: state.phase.name().to_owned(),
        message: message(rollout),
        stable: state.phase.stable().map(|stable| revision(&stable.revision)),
        candidate: state.phase.other().map(|other| revision(other)),
        stages: u32::try_from(rollout.rules.strategy.stages().count()).unwrap_or(u32::MAX),
        watch: state.phase.stable().map(|stable| stable.watch.name()).unwrap_or_default().to_owned(),
        previous: state
            .phase
            .stable()
            .and_then(|stable| stable.previous.as_deref())
            .unwrap_or_default()
            .to_owned(),
        failed: state.failed.iter().map(failed).collect(),
        history: state.history.iter().map(history).collect(),
        ..own::RolloutStatus::default()
    };
    if let Phase::Progressing { candidate, .. } = &state.phase {
        describe_stage(&mut status, rollout, candidate, now);
    }
    status
}

fn describe_stage(
    status: &mut own::RolloutStatus,
    rollout: &ObjectRollout,
    candidate: &Candidate,
    now: Millis,
) {
    status.pause = String::from(match candidate.pause {
        None => "",
        Some(Pause::Command) => "Command",
        Some(Pause::Approval) => "Approval",
    });
    if let Progress::Stage { index, exposure, entered } = candidate.progress {
        status.stage = u32::try_from(index + 1).unwrap_or(u32::MAX);
        // The engine's clock stands still between its steps.
        let clock = rollout.state.clock;
        let since = clock.wall.map_or(0, |wall| now.saturating_sub(wall)).min(rollout.rules.max_clock_step);
        status.stage_ms = clock.elapsed.saturating_add(since).saturating_sub(entered);
        status.hold_ms = rollout.rules.strategy.stage(index).map_or(0, |stage| stage.hold);
        if let Exposure::Mirror(percent) = exposure {
            status.mirror_percent = percent.get();
        }
    }
}

fn revision_status(
    rollout: &ObjectRollout,
    revision: &str,
    version: u32,
    available_replicas: u32,
) -> own::RevisionStatus {
    let observed = rollout.observed(revision);
    let p99 = observed.and_then(|stats| stats.latency.quantile_ms(0.99)).unwrap_or(0.0);
    own::RevisionStatus {
        revision: revision.to_owned(),
        version,
        weight: rollout.percent(revision).unwrap_or(0),
        ready: rollout.state.is_ready(revision),
        requests: observed.map_or(0, |stats| stats.requests),
        failures: observed.map_or(0, |stats| stats.errors.failures()),
        p99_micros: (p99 * 1000.0) as u64,
        available_replicas,
    }
}

fn message(rollout: &ObjectRollout) -> String {
    match &rollout.state.phase {
        Phase::Deploying { .. } => "the first version is not ready yet".to_owned(),
        Phase::Progressing { candidate, .. } if candidate.progress == Progress::Waiting => {
            "the new version is not ready yet".to_owned()
        }
        Phase::Progressing { candidate, .. } => candidate.analysis.summary().to_owned(),
        Phase::RollingBack { .. } => "gateways have not confirmed the weights yet".to_owned(),
        Phase::Reverting { cause: Some(finding), .. } => finding.message.clone(),
        Phase::Reverting { .. } => "the previous version is not ready yet".to_owned(),
        Phase::Running { stable } => match &stable.watch {
            Watch::Baking(bake) if bake.reported => bake.analysis.summary().to_owned(),
            Watch::Drift(drift) => drift.finding.as_ref().map(|f| f.message.clone()).unwrap_or_default(),
            Watch::Baking(_) | Watch::Off => String::new(),
        },
    }
}

fn failed(FailedRevision { revision, finding, at }: &FailedRevision) -> own::FailedRevision {
    let Finding { reason, message } = finding;
    own::FailedRevision {
        revision: revision.to_string(),
        reason: reason.to_string(),
        message: message.clone(),
        at_ms: *at,
    }
}

fn history(HistoryEntry { revision, started, ended, outcome }: &HistoryEntry) -> own::RolloutHistory {
    let (outcome, reason) = match outcome {
        Outcome::Deployed => ("Deployed", String::new()),
        Outcome::Promoted => ("Promoted", String::new()),
        Outcome::RolledBack(reason) => ("RolledBack", reason.to_string()),
        Outcome::Cancelled => ("Cancelled", String::new()),
        Outcome::Reverted => ("Reverted", String::new()),
    };
    own::RolloutHistory {
        revision: revision.to_string(),
        started_ms: *started,
        ended_ms: *ended,
        outcome: outcome.to_owned(),
        reason,
    }
}
