//! Rollouts as text: the answer first, then the versions, the reason and the next command.

use crate::{
    client::RolledOut,
    commands::status::millis,
    duration,
    output::{PLACEHOLDER, Style, Table, Tone, sanitize},
};
use gantry_proto::gantry::{RevisionStatus, RolloutHistory, RolloutStatus, steer_rollout_request::Action};
use jiff::Timestamp;
use std::time::Duration;

fn name(rollout: &RolloutStatus) -> String {
    RolledOut::of(rollout).name().to_owned()
}

/// The object as commands name it.
pub(super) fn reference(rollout: &RolloutStatus) -> String {
    RolledOut::of(rollout).reference()
}

/// `version 2`, or the digest of a version that is gone.
pub(super) fn version(revision: &RevisionStatus) -> String {
    match revision.version {
        0 => short(&revision.revision),
        version => version.to_string(),
    }
}

fn named_version(revision: Option<&RevisionStatus>) -> String {
    match revision {
        Some(revision) => format!("version {}", version(revision)),
        None => "the first version".to_owned(),
    }
}

fn short(digest: &str) -> String {
    digest.chars().take(8).collect()
}

/// With thousands separators.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(super) fn percent(ratio: f64) -> String {
    format!("{:.2} %", ratio * 100.0)
}

fn good_ratio(revision: &RevisionStatus) -> Option<f64> {
    let good = revision.requests.saturating_sub(revision.failures);
    (revision.requests > 0).then(|| good as f64 / revision.requests as f64)
}

/// `1,204 of 1,210 answers good (99.50 %, needs 99.00 %)`
fn evidence(revision: Option<&RevisionStatus>, objective: Option<f64>) -> String {
    let needs = objective.map(|objective| format!("needs {}", percent(objective)));
    let Some((revision, ratio)) = revision.and_then(|r| Some((r, good_ratio(r)?))) else {
        return format!("no answers yet{}", needs.map(|needs| format!(" ({needs})")).unwrap_or_default());
    };
    let good = revision.requests.saturating_sub(revision.failures);
    let needs = needs.map(|needs| format!(", {needs}")).unwrap_or_default();
    format!("{} of {} answers good ({}{needs})", grouped(good), grouped(revision.requests), percent(ratio))
}

/// `41s of 1m watched`
fn watched(rollout: &RolloutStatus) -> String {
    let time = |ms| duration::format(Duration::from_millis(ms));
    // Below a second nothing but the magnitude matters.
    let at = rollout.stage_ms.saturating_sub(rollout.stage_ms % 100);
    match rollout.hold_ms {
        0 => format!("{} watched", time(at)),
        hold => format!("{} of {} watched", time(at), time(hold)),
    }
}

/// A version was rolled back, and no rollout started since.
fn last_rollback(rollout: &RolloutStatus) -> Option<&RolloutHistory> {
    rollout.history.last().filter(|last| last.outcome == "RolledBack" && rollout.phase == "Running")
}

/// The version before stays loaded. The first version is watched too, but has none before it.
fn is_baking(rollout: &RolloutStatus) -> bool {
    let is_first = rollout.history.last().is_none_or(|last| last.outcome == "Deployed");
    rollout.phase == "Running" && rollout.watch == "Baking" && !is_first
}

/// Why a revision failed.
fn failure<'a>(rollout: &'a RolloutStatus, revision: &str) -> Option<&'a str> {
    let failed = rollout.failed.iter().rev().find(|failed| failed.revision == revision);
    failed.map(|failed| failed.message.as_str()).filter(|message| !message.is_empty())
}

fn took(entry: &RolloutHistory) -> String {
    duration::format(Duration::from_millis(entry.ended_ms.saturating_sub(entry.started_ms)))
}

/// One word for the state.
pub(super) fn state(rollout: &RolloutStatus) -> String {
    match (rollout.phase.as_str(), rollout.pause.as_str()) {
        ("Progressing", "Command") => "Paused",
        ("Progressing", "Approval") => "NeedsApproval",
        ("Running", ..) if last_rollback(rollout).is_some() => "RolledBack",
        ("Running", ..) if is_baking(rollout) => "Baking",
        (phase, _) => phase,
    }
    .to_owned()
}

pub(super) fn tone(rollout: &RolloutStatus) -> Tone {
    match rollout.phase.as_str() {
        "Running" if last_rollback(rollout).is_some() => Tone::Bad,
        "Running" => Tone::Good,
        "RollingBack" | "Reverting" => Tone::Bad,
        _ => Tone::Busy,
    }
}

/// The answer to "how is the rollout?".
pub(super) fn sentence(rollout: &RolloutStatus, objective: Option<f64>) -> String {
    let name = name(rollout);
    let (stable, candidate) = (rollout.stable.as_ref(), rollout.candidate.as_ref());
    let text = match rollout.phase.as_str() {
        "Deploying" => format!("{name} deploys {}: {}.", named_version(candidate), message(rollout)),
        "Progressing" if rollout.stage == 0 => {
            format!("{name} waits for {}: {}.", named_version(candidate), message(rollout))
        }
        "Progressing" => {
            let verb = match rollout.pause.as_str() {
                "Command" => "is paused",
                "Approval" => "waits for approval",
                _ => "is",
            };
            let (share, preposition) = match rollout.mirror_percent {
                0 => (candidate.map_or(0, |c| c.weight), "on"),
                percent => (percent, "mirrored to"),
            };
            format!(
                "{name} {verb} at {share} % {preposition} {} (step {} of {}): {}, {}.",
                named_version(candidate),
                rollout.stage,
                rollout.stages,
                evidence(candidate, objective),
                watched(rollout)
            )
        }
        "RollingBack" => {
            let why = candidate.and_then(|c| failure(rollout, &c.revision)).unwrap_or("it was aborted");
            format!("{name} rolls back to {}: {why}.", named_version(stable))
        }
        "Reverting" => {
            let from = named_version(stable);
            format!("{name} returns to {} from {from}: {}.", named_version(candidate), message(rollout))
        }
        _ => match last_rollback(rollout) {
            Some(last) if last.reason == "Undone" => {
                format!("{name} was returned to {}: {}.", named_version(stable), reason(rollout))
            }
            Some(last) => {
                let (to, why) = (named_version(stable), reason(rollout));
                format!("{name} was rolled back to {to} after {}: {why}.", took(last))
            }
            None if is_baking(rollout) => {
                let kept = "the version before it stays loaded";
                format!("{name} bakes {}, {kept}: {}.", named_version(stable), evidence(stable, objective))
            }
            None => format!("{name} runs {}: no rollout is in progress.", named_version(stable)),
        },
    };
    sanitize(&text).replace('\n', " ")
}

fn message(rollout: &RolloutStatus) -> &str {
    if rollout.message.is_empty() { "waiting" } else { rollout.message.trim_end_matches('.') }
}

/// Why the rollout is in its state.
pub(super) fn reason(rollout: &RolloutStatus) -> &str {
    match last_rollback(rollout) {
        Some(last) => failure(rollout, &last.revision).unwrap_or(&last.reason),
        None if rollout.watch == "Baking" && !is_baking(rollout) => "",
        None => &rollout.message,
    }
}

/// What changes when a decision was taken, without the statistics.
pub(super) fn decision(rollout: &RolloutStatus) -> impl PartialEq + use<> {
    let revision = |revision: Option<&RevisionStatus>| revision.map(|r| (r.version, r.weight, r.ready));
    (
        (rollout.phase.clone(), rollout.stage, rollout.pause.clone(), rollout.watch.clone()),
        revision(rollout.stable.as_ref()),
        revision(rollout.candidate.as_ref()),
        rollout.history.len(),
    )
}

pub(super) fn page(rollout: &RolloutStatus, objective: Option<f64>, style: Style) -> String {
    let mut table = Table::without_headings();
    for (role, revision) in [("stable", &rollout.stable), ("candidate", &rollout.candidate)] {
        if let Some(revision) = revision {
            table.row(row(role, revision));
        }
    }
    let mut notes = Table::without_headings();
    let mut note = |key: &str, text: &str| {
        notes.row(vec![(format!("  {key}"), Tone::Faint), (text.to_owned(), Tone::Plain)]);
    };
    if let Some(holds) = holds(rollout) {
        note("holds", &holds);
    }
    if let Some(last) = last_rollback(rollout) {
        note("reason", &format!("{} at {}", last.reason, time(last.ended_ms)));
    }
    note("policy", &rollout.policy);
    note("next", &next(rollout));
    format!(
        "{}\n{}{}",
        style.paint(&sentence(rollout, objective), tone(rollout)),
        table.render(style),
        notes.render(style)
    )
}

/// Role, version, weight, requests, success and latency.
fn row(role: &str, revision: &RevisionStatus) -> Vec<(String, Tone)> {
    let placeholder = || PLACEHOLDER.to_owned();
    let p99 = match revision.p99_micros {
        0 => placeholder(),
        micros => format!("p99 {}", millis(micros as f64 / 1000.0)),
    };
    let mut cells = vec![
        (format!("  {role}"), Tone::Plain),
        (format!("version {}", version(revision)), Tone::Plain),
        (format!("{:>3} %", revision.weight), Tone::Plain),
        (format!("{} requests", grouped(revision.requests)), Tone::Plain),
        (good_ratio(revision).map_or_else(placeholder, |r| format!("{} good", percent(r))), Tone::Plain),
        (p99, Tone::Plain),
    ];
    if !revision.ready {
        cells.push(("not ready".to_owned(), Tone::Busy));
    }
    cells
}

/// Why the weights do not change.
fn holds(rollout: &RolloutStatus) -> Option<String> {
    if rollout.phase != "Progressing" || rollout.stage == 0 {
        return None;
    }
    Some(match rollout.pause.as_str() {
        "Command" => "paused by command; evidence of harm still rolls back".to_owned(),
        "Approval" => "the step passed and needs a promote command".to_owned(),
        _ if rollout.message.is_empty() => return None,
        _ => rollout.message.clone(),
    })
}

/// One command.
fn next(rollout: &RolloutStatus) -> String {
    let name = reference(rollout);
    let object = RolledOut::of(rollout);
    let (kind, explain) = match object.kind() {
        "InferenceService" => {
            let (namespace, service) = object.name().split_once('/').unwrap_or_default();
            ("InferenceService", format!("kubectl get isvc -n {namespace} {service}"))
        }
        kind => (if kind == "Pipeline" { "pipeline" } else { "model" }, format!("gantry explain {object}")),
    };
    match (rollout.phase.as_str(), rollout.pause.as_str()) {
        ("Deploying", _) => explain,
        ("Progressing", "Command") => format!("gantry rollout resume {name}"),
        ("Progressing", "Approval") => format!("gantry rollout promote {name}"),
        ("Progressing", _) if rollout.stage == 0 => explain,
        ("Running", _) if last_rollback(rollout).is_some() => {
            format!("gantry rollout retry {name}; a changed {kind} starts a new rollout")
        }
        ("Running", _) if is_baking(rollout) => {
            format!("gantry rollout undo {name}, if this version is not the right one")
        }
        ("Running", _) => format!("gantry rollout history {name}; a changed {kind} starts a rollout"),
        _ => format!("gantry rollout watch {name}"),
    }
}

/// What an accepted command does.
pub(super) fn steered(rollout: &RolloutStatus, action: Action) -> String {
    let (stable, candidate) =
        (named_version(rollout.stable.as_ref()), named_version(rollout.candidate.as_ref()));
    match action {
        Action::Promote if rollout.stage >= rollout.stages => format!("promotes {candidate}"),
        Action::Promote => format!("continues with the next step of {candidate}"),
        Action::PromoteFull => format!("promotes {candidate} without further steps"),
        Action::Pause => format!("holds the weights of {candidate}"),
        Action::Resume => format!("continues with {candidate}"),
        Action::Abort => format!("rolls back to {stable}"),
        Action::Retry => "rolls out the version again that was rolled back".to_owned(),
        Action::Undo => format!("returns from {stable} to the version before it"),
        Action::Unknown => "accepted the command".to_owned(),
    }
}

pub(super) fn history(rollout: &RolloutStatus) -> Table {
    let mut table = Table::new(&["REVISION", "STARTED", "TOOK", "OUTCOME", "REASON"]);
    for entry in rollout.history.iter().rev() {
        let outcome = match entry.outcome.as_str() {
            "RolledBack" => Tone::Bad,
            "Promoted" | "Deployed" => Tone::Good,
            _ => Tone::Plain,
        };
        let why = failure(rollout, &entry.revision).filter(|_| entry.outcome == "RolledBack");
        let reason = match why {
            Some(why) => format!("{}: {why}", entry.reason),
            None => entry.reason.clone(),
        };
        table.row(vec![
            (short(&entry.revision), Tone::Plain),
            (time(entry.started_ms), Tone::Faint),
            (took(entry), Tone::Plain),
            (entry.outcome.clone(), outcome),
            (reason, Tone::Plain),
        ]);
    }
    table
}

/// RFC 3339 with milliseconds.
pub(super) fn time(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| PLACEHOLDER.to_owned(), |at| format!("{at:.3}"))
}
