//! One step of the rollout engine: readiness, evidence and commands in; state, events and requeue delay out.

use super::{
    RETRY, Track,
    policy::policy,
    snapshot::{LiveDeployment, Snapshot},
};
use crate::cluster::{Algorithm, Custom, OwnedObject, ResourceKind};
use gantry_api::{AlgorithmSpec, AlgorithmStatus};
use gantry_core::rollout::{
    Command, Durability, Event, Evidence, Input, Method, ObservationId, Pause, Phase, Readiness, Request,
    Revision, Rollout, RolloutPolicy, Rules, Verdict, Watch, step,
};
use serde_json::Value;
use std::time::Duration;

/// Statistics are stored at most this often; a state in which time counts, at least.
const STORE_INTERVAL: u64 = 45_000;

/// The stored state of a rollout.
pub(super) fn restored(status: Option<&AlgorithmStatus>) -> Option<Rollout> {
    serde_json::from_str(status?.rollout.as_deref()?).ok()
}

/// The result of a step.
pub(super) struct Advanced {
    pub(super) policy: RolloutPolicy,
    pub(super) state: Rollout,
    /// Whether the state has to be written.
    pub(super) is_changed: bool,
    pub(super) events: Vec<Event>,
    pub(super) requeue_after: Option<Duration>,
    /// The value of the retry annotation that is handled.
    pub(super) handled_retry: Option<String>,
}

pub(super) fn advance(
    snapshot: &Snapshot,
    object: &Custom<Algorithm>,
    spec: &AlgorithmSpec,
    desired: &Revision,
    now: u64,
) -> Advanced {
    let status = object.status.as_ref();
    let stored = restored(status);
    let is_new = stored.is_none();
    let before = stored.unwrap_or_else(|| initial(status, desired));
    let policy = policy(spec, &before);
    let readiness = readiness(snapshot, &before);
    let evidence = evidence(snapshot, spec, &before);
    let (command, handled_retry) = command(object, spec, &before, &readiness);
    let request = command.map(|command| Request { id: before.handled.saturating_add(1), command });
    let input = Input {
        desired,
        readiness: &readiness,
        evidence: evidence.as_ref(),
        request: request.as_ref(),
        applied: if is_canary_routed(snapshot) { 0 } else { u64::MAX },
    };
    let decision = step(&policy, &before, &input, now);
    let is_changed =
        is_new || is_worth_storing(&policy, &before, decision.state(), decision.durability(), now);
    // The plan writes the state before anything that follows from it.
    let decided = decision.stored();
    let state = if is_changed { decided.state } else { before };
    let requeue_after = decided.requeue_after.map(Duration::from_millis);
    Advanced { policy, state, is_changed, events: decided.events, requeue_after, handled_retry }
}

/// The state of an object without one: a status whose state cannot be read keeps what serves.
fn initial(status: Option<&AlgorithmStatus>, desired: &Revision) -> Rollout {
    match status.and_then(|status| status.stable_revision.as_deref()) {
        Some(stable) => Rollout::running(stable.into()),
        None => Rollout::new(desired.clone()),
    }
}

/// A revision is ready when a Deployment has rolled it out, and stays ready while it has a ready pod.
fn readiness(snapshot: &Snapshot, state: &Rollout) -> Vec<(Revision, Readiness)> {
    let mut found: Vec<(Revision, Readiness)> = Vec::new();
    let live = [Track::Stable, Track::Canary].map(|track| snapshot.deployment(track));
    for deployment in live.into_iter().flatten() {
        let Some(revision) = deployment.revision() else { continue };
        let of_this = deployment_readiness(deployment, state.is_ready(revision));
        match found.iter_mut().find(|(known, _)| **known == *revision) {
            Some((_, readiness)) if *readiness == Readiness::Ready => {}
            Some((_, readiness)) => *readiness = of_this,
            None => found.push((revision.into(), of_this)),
        }
    }
    let [stable, _] = &live;
    for revision in &state.ready {
        // Pods of a revision that a rolling update replaces serve until they are replaced.
        let is_replaced = stable.is_some() && state.phase.stable().is_some_and(|s| s.revision == *revision);
        if !is_replaced && !found.iter().any(|(known, _)| known == revision) {
            found.push((revision.clone(), Readiness::NotReady));
        }
    }
    found
}

fn deployment_readiness(deployment: LiveDeployment<'_>, was_ready: bool) -> Readiness {
    let rollout = deployment.rollout();
    if rollout.is_done() || (was_ready && rollout.has_ready_updated()) {
        Readiness::Ready
    } else if rollout.is_observed() {
        Readiness::NotReady
    } else {
        Readiness::Unknown
    }
}

/// New evidence for the current weights; without a source there is none.
fn evidence(snapshot: &Snapshot, spec: &AlgorithmSpec, state: &Rollout) -> Option<Evidence> {
    if spec.evidence_source().is_none() {
        // Once for each generation of the weights.
        return Some(Evidence::NoData { id: ObservationId { epoch: state.generation, sequence: 1 } });
    }
    let observation = snapshot.observation.as_ref()?;
    (observation.request.generation == state.generation).then(|| observation.evidence.clone())
}

/// The command that fields and annotations of the object amount to, and the retry that is handled.
fn command(
    object: &Custom<Algorithm>,
    spec: &AlgorithmSpec,
    state: &Rollout,
    readiness: &[(Revision, Readiness)],
) -> (Option<Command>, Option<String>) {
    let handled = object.status.as_ref().and_then(|status| status.handled_retry.as_deref());
    let wanted = object.annotation(RETRY);
    let is_new = wanted.is_some() && wanted != handled;
    if let Some(revision) = wanted.filter(|revision| is_new && state.failure(revision).is_some()) {
        return (Some(Command::Retry { revision: revision.into() }), wanted.map(str::to_owned));
    }
    let handled = wanted.filter(|_| !is_new).map(str::to_owned);
    let Phase::Progressing { candidate, .. } = &state.phase else { return (None, handled) };
    let is_paused = spec.paused.unwrap_or_default();
    let is_ready = readiness
        .iter()
        .find(|(revision, _)| *revision == candidate.revision)
        .map_or_else(|| state.is_ready(&candidate.revision), |(_, found)| *found == Readiness::Ready);
    let command = match (is_paused, candidate.pause) {
        (true, None) => Some(Command::Pause),
        (false, Some(Pause::Command)) => Some(Command::Resume),
        // A rolling update is complete.
        (false, None) if spec.steps().is_empty() && is_ready => Some(Command::PromoteFull),
        _ => None,
    };
    (command, handled)
}

/// Whether requests can reach the canary: the apex Service selects it, or a route has it.
pub(super) fn is_canary_routed(snapshot: &Snapshot) -> bool {
    let name = &snapshot.key.name;
    let apex = snapshot.owned.get(ResourceKind::SERVICE, name);
    let track = |live: &OwnedObject| {
        let selector = live.data.pointer("/spec/selector")?;
        selector.get(super::TRACK).and_then(Value::as_str).map(str::to_owned)
    };
    let is_selected = apex.is_some_and(|live| track(live).as_deref() != Some(Track::Stable.as_str()));
    let route = snapshot.owned.get(ResourceKind::HTTP_ROUTE, name);
    let canary = Track::Canary.service(name);
    let is_canary = |backend: &Value| backend.get("name").and_then(Value::as_str) == Some(canary.as_str());
    let backends = route.and_then(|live| live.data.pointer("/spec/rules/0/backendRefs")?.as_array());
    is_selected
        || backends.is_some_and(|backends| backends.iter().any(is_canary))
        || super::route::may_have_canary(snapshot)
}

/// Statistics are stored when they change a count of the status, and from time to time where a deadline depends on the
/// stored clock. At rest nothing is.
fn is_worth_storing(
    policy: &RolloutPolicy,
    before: &Rollout,
    after: &Rollout,
    durability: Durability,
    now: u64,
) -> bool {
    let is_due = before.clock.wall.is_none_or(|wall| now.saturating_sub(wall) >= STORE_INTERVAL);
    let needs_clock = match &after.phase {
        Phase::Progressing { candidate, .. } => candidate.pause.is_none(),
        Phase::Reverting { .. } => true,
        Phase::Running { stable } => match &stable.watch {
            Watch::Off => false,
            Watch::Baking(_) => true,
            Watch::Drift(_) => after.cool_down_until > after.clock.elapsed,
        },
        Phase::Deploying { .. } | Phase::RollingBack { .. } => false,
    };
    durability == Durability::Required
        || counts(policy, before) != counts(policy, after)
        || (needs_clock && is_due)
}

/// What the status reports of an analysis.
fn counts(policy: &RolloutPolicy, state: &Rollout) -> impl PartialEq + use<> {
    let analysis = match &state.phase {
        Phase::Progressing { candidate, .. } => Some((&candidate.analysis, true)),
        Phase::Running { stable } => match &stable.watch {
            Watch::Baking(bake) => Some((&bake.analysis, false)),
            _ => None,
        },
        _ => None,
    };
    let checks = match policy.rules {
        Rules::Thresholds(rules) => rules.checks,
        Rules::Sequential(_) => 0,
    };
    let analysis = analysis.map(|(analysis, has_stages)| {
        let (passed, failed) = match &analysis.method {
            Method::Thresholds(state) => (state.passed.min(checks), state.failed),
            Method::Sequential(_) => (0, 0),
        };
        let verdict = match &analysis.verdict {
            Verdict::Pass => ("Pass", None),
            Verdict::Fail(finding) => ("Fail", Some(finding.reason)),
            Verdict::Inconclusive(finding) => ("Inconclusive", Some(finding.reason)),
            Verdict::Error(finding) => ("Error", Some(finding.reason)),
        };
        (if has_stages { passed } else { 0 }, failed, verdict, analysis.provider.clone())
    });
    let drift = match state.phase.stable().map(|stable| &stable.watch) {
        Some(Watch::Drift(drift)) => Some((drift.exceeded, drift.reported)),
        _ => None,
    };
    (analysis, drift)
}
