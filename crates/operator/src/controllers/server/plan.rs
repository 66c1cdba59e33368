//! Plan of a Server.

use super::{
    Snapshot,
    objects::{Build, is_optional, objects},
    status::{self, Observed},
};
use crate::{
    cluster::{Custom, Desired, EventDraft, Server},
    conditions::{ConditionStatus, ConditionUpdate, Progress},
    controllers::validation::{validate, validate_ratcheted},
    plan::{Action, ClusterAction, Known, Plan, SchedulerAction},
    schedulers::{Operation, SchedulerRequest},
    workload::{ApplyFailure, ConfigRevision, Inherited, Rollout, apply_actions, certificates},
};
use gantry_api::{Scaling, ServerSpec, ServerStatus};
use gantry_proto::scheduler as pb;
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// Limit of replicas: each has a Service of its own.
const MAX_REPLICAS: u32 = 1000;
/// How long the scheduler's status is awaited after an announcement.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of announcements that the scheduler refuses.
const ANNOUNCE_RETRY_INTERVAL: Duration = Duration::from_mins(5);
/// How long an unreachable scheduler does not change the status: restarts are shorter.
const UNREACHABLE_GRACE: Duration = Duration::from_secs(30);

pub(super) fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<ServerStatus> {
    match snapshot.object.as_deref() {
        Some(object) if !object.is_deleted() => plan_present(snapshot, object, now),
        _ => plan_absent(snapshot),
    }
}

/// The garbage collector deletes the owned objects, and agents move their models away; the scheduler no longer expects
/// replicas.
fn plan_absent(snapshot: &Snapshot) -> Plan<ServerStatus> {
    let mut plan = Plan::default();
    if let Known::Present(view) = &snapshot.scheduler
        && view.is_expected_for(&snapshot.key.namespace)
        && snapshot.object.as_deref().is_none_or(|o| last_announcement(snapshot, o) == LastAnnouncement::None)
    {
        let generation = snapshot.object.as_deref().map(Custom::generation).or(view.generation);
        plan.push(SchedulerAction::NotifyServer(pb::ServerNotify {
            name: snapshot.key.name.clone(),
            expected_replicas: 0,
            shared: true,
            kubernetes_meta: Some(pb::KubernetesMeta {
                namespace: snapshot.key.namespace.clone(),
                generation: generation.unwrap_or(0),
            }),
            ..pb::ServerNotify::default()
        }));
    }
    plan
}

fn plan_present(snapshot: &Snapshot, object: &Custom<Server>, now: Timestamp) -> Plan<ServerStatus> {
    let mut plan = Plan::default();
    let stop = |condition: ConditionUpdate| Plan {
        events: status::transition_event(object, &condition).into_iter().collect(),
        status: Some(status::build_status(object, &Observed::only(&condition), now)),
        ..Plan::default()
    };
    let has_workload = snapshot.owned.get(snapshot.workload(), &snapshot.key.name).is_some();
    let valid = validate_ratcheted(object, has_workload).and_then(|spec| Ok((spec, scaling(spec)?)));
    let (spec, scaling) = match valid {
        Ok(valid) => valid,
        Err(condition) => return stop(condition),
    };
    plan.actions = scaling_actions(snapshot, scaling);
    if !plan.actions.is_empty() {
        return plan;
    }
    let desired = match desired_state(snapshot, object, spec, scaling) {
        Ok(desired) => desired,
        Err(condition) => return stop(condition),
    };
    let applies = apply_actions(&desired.applied, &snapshot.owned, &snapshot.failures);
    plan.actions = applies.actions;
    plan.requeue_after = applies.retry_after;
    // Its scheduler gets certificates first.
    if snapshot.certificates == Some(false) && has_agent(snapshot) {
        plan.requeue_within(certificates::REVIEW_INTERVAL);
    }
    let (optional, gating): (Vec<ApplyFailure>, Vec<ApplyFailure>) =
        applies.failures.into_iter().partition(|f| is_optional(f.kind, &f.key, &snapshot.key));
    let orphans = snapshot.owned.orphans(&desired.all, !gating.is_empty());
    plan.actions.extend(orphans.into_iter().map(|target| ClusterAction::Delete(target).into()));
    let announcement = announce(snapshot, object, spec, desired.replicas);
    plan.actions.extend(announcement.action);
    if let Some(delay) = announcement.requeue_after {
        plan.requeue_within(delay);
    }

    let kind = snapshot.workload();
    let live = snapshot.owned.get(kind, &snapshot.key.name);
    let observed = Observed {
        refused: gating.first().map(ApplyFailure::condition),
        rollout: Rollout::of(kind, live, i64::from(desired.replicas)),
        scheduler: &snapshot.scheduler,
        scheduler_refusal: announcement.refusal,
    };
    let (mut ready, workload) = observed.condition(&snapshot.key);
    if let (Known::Unknown(_), Some(unreachable_for)) = (&snapshot.scheduler, snapshot.unreachable_for)
        && let Some(left) = UNREACHABLE_GRACE.checked_sub(unreachable_for).filter(|left| !left.is_zero())
        && workload.status == ConditionStatus::True
        && let Some(before) = status::unchanged_ready(object, &workload)
    {
        ready = before;
        plan.requeue_within(left);
    }
    plan.events.extend(status::transition_event(object, &ready));
    if let Some(failure) = optional.first() {
        ready.message = format!("{}; {}", ready.message, failure.condition().message);
    }
    let status = status::build_status(object, &observed.report(&ready, &workload), now);
    match status::write_delay(object, &status, snapshot.status_age) {
        None => plan.status = Some(status),
        Some(left) => plan.requeue_within(left),
    }
    plan
}

/// Whether the pods run Gantry's agent.
fn has_agent(snapshot: &Snapshot) -> bool {
    let config = snapshot.config.as_deref().and_then(|config| config.spec.as_ref().ok());
    config.is_some_and(|config| certificates::is_for(&config.pod_spec, certificates::Part::Agent("")))
}

fn scaling(spec: &ServerSpec) -> Result<Scaling, ConditionUpdate> {
    let invalid = |field: &str, message: &str| {
        ConditionUpdate::new(false, "InvalidSpec", format!("{field} {message}"), Progress::Stalled)
    };
    let scaling = spec.scaling().map_err(|(field, message)| invalid(&field, &message))?;
    if scaling.replicas > MAX_REPLICAS {
        let message =
            format!("is {}, at most {MAX_REPLICAS} are possible: create several Servers", scaling.replicas);
        return Err(invalid("spec.replicas", &message));
    }
    Ok(scaling)
}

struct DesiredState {
    all: Vec<Desired>,
    /// The part of it that may be changed: `disableAutoUpdate` keeps the pods as they are.
    applied: Vec<Desired>,
    replicas: u32,
}

fn desired_state(
    snapshot: &Snapshot,
    object: &Custom<Server>,
    spec: &ServerSpec,
    scaling: Scaling,
) -> Result<DesiredState, ConditionUpdate> {
    let unusable =
        |message: String| ConditionUpdate::new(false, "ServerConfigInvalid", message, Progress::InProgress);
    let (name, namespace) = (&spec.server_config, &snapshot.config_namespace);
    let Some(config) = snapshot.config.as_deref() else {
        let message = format!(
            "ServerConfig {name} does not exist in the operator's namespace {namespace}: create it, or change \
             spec.serverConfig"
        );
        return Err(ConditionUpdate::new(false, "ServerConfigMissing", message, Progress::InProgress));
    };
    let config_spec = validate(config).map_err(|condition| {
        unusable(format!("ServerConfig {name} in namespace {namespace}: {}", condition.message))
    })?;
    let live = snapshot.owned.get(snapshot.workload(), &snapshot.key.name);
    // A new workload starts with the replicas of the spec.
    let is_autoscaled = snapshot.autoscaler.is_some() && live.is_some();
    let replicas = live
        .filter(|_| is_autoscaled)
        .and_then(|live| u32::try_from(live.number("/spec/replicas")).ok())
        .map_or(scaling.replicas, |replicas| replicas.min(MAX_REPLICAS));
    let (of_server, of_config) = (Inherited::of(&object.metadata), Inherited::of(&config.metadata));
    let revision = spec.disable_auto_update.then(|| {
        // Scaling is no change of the pods.
        let pods = ServerSpec { replicas: None, min_replicas: None, max_replicas: None, ..spec.clone() };
        ConfigRevision::new(config.uid(), config.generation(), &pods).with_metadata(&of_config, &of_server)
    });
    let all = objects(&Build {
        key: &snapshot.key,
        uid: object.uid(),
        spec,
        config: config_spec,
        image: &snapshot.image,
        workload: snapshot.workload(),
        replicas,
        is_autoscaled,
        reads_secrets: snapshot.reads_secrets,
        has_certificates: snapshot.certificates == Some(true),
        inherited: of_server.over(&of_config),
        annotations: revision.as_ref().map(ConfigRevision::annotations).unwrap_or_default(),
        config_maps: &snapshot.config_maps,
    });
    let kept = live.filter(|live| revision.as_ref().is_some_and(|revision| revision.keeps(live)));
    let mut applied = all.clone();
    if let Some(live) = kept {
        let resized = |desired: Desired| {
            if desired.kind == snapshot.workload() {
                ConfigRevision::scaled(live, &desired)
            } else {
                Some(desired)
            }
        };
        applied = applied.into_iter().filter_map(resized).collect();
    }
    Ok(DesiredState { all, applied, replicas })
}

/// Answers the scheduler's pending scaling request: scales, or emits the reason against it.
fn scaling_actions(snapshot: &Snapshot, scaling: Scaling) -> Vec<Action> {
    let requested = match &snapshot.scheduler {
        Known::Present(view) => view.requested_replicas,
        _ => None,
    };
    let Some(requested) = requested else { return Vec::new() };
    let acknowledge = Action::from(SchedulerAction::AcknowledgeScaling);
    let Ok(replicas) = u32::try_from(requested) else { return vec![acknowledge] };
    let refused = |why: String| {
        let message = format!("the scheduler requests {replicas} replicas: {why}");
        let event = EventDraft { warning: true, reason: "ScalingRefused", message };
        vec![ClusterAction::Emit(event).into(), SchedulerAction::AcknowledgeScaling.into()]
    };
    // An autoscaler sets the replicas. The scheduler repeats its request with every change of the server: no event.
    if snapshot.autoscaler.is_some() || snapshot.server_autoscaler.is_some() {
        return vec![acknowledge];
    }
    let Scaling { replicas: current, min, max } = scaling;
    match replicas {
        _ if replicas == current => vec![acknowledge],
        _ if replicas < min => refused(format!("spec.minReplicas is {min}")),
        _ if replicas > max => refused(format!("spec.maxReplicas is {max}")),
        _ if replicas > MAX_REPLICAS => refused(format!("at most {MAX_REPLICAS} are possible")),
        _ => vec![ClusterAction::Scale(requested).into(), acknowledge],
    }
}

/// The announcement to the scheduler.
#[derive(Default)]
struct Announcement {
    action: Option<Action>,
    requeue_after: Option<Duration>,
    /// Why the scheduler refused the last one.
    refusal: Option<String>,
}

fn announce(snapshot: &Snapshot, object: &Custom<Server>, spec: &ServerSpec, replicas: u32) -> Announcement {
    let namespace = snapshot.key.namespace.as_str();
    let generation = object.generation();
    let is_known = match &snapshot.scheduler {
        Known::Unknown(_) => true,
        // The scheduler drops a server without replicas at once.
        Known::Absent => replicas == 0,
        Known::Present(view) => {
            u32::try_from(view.expected) == Ok(replicas)
                && (replicas == 0 || view.namespace.as_deref() == Some(namespace))
                && (replicas == 0 || view.generation == Some(generation))
        }
    };
    if is_known {
        return Announcement::default();
    }
    let server = spec.to_proto(&snapshot.key.name, Some(namespace), Some(generation));
    let notify = SchedulerAction::NotifyServer(pb::ServerNotify { expected_replicas: replicas, ..server });
    let action = Some(Action::from(notify));
    match last_announcement(snapshot, object) {
        LastAnnouncement::None => Announcement { action, ..Announcement::default() },
        LastAnnouncement::Pending(left) => {
            Announcement { requeue_after: Some(left), ..Announcement::default() }
        }
        LastAnnouncement::Rejected(why, Some(left)) => {
            Announcement { action: None, requeue_after: Some(left), refusal: Some(why) }
        }
        LastAnnouncement::Rejected(why, None) => {
            Announcement { action, requeue_after: None, refusal: Some(why) }
        }
    }
}

/// The last announcement of this generation.
#[derive(Debug, PartialEq, Eq)]
enum LastAnnouncement {
    /// There is none, or it timed out.
    None,
    /// The scheduler's status is awaited this long.
    Pending(Duration),
    /// The reason, and the delay before the next one.
    Rejected(String, Option<Duration>),
}

fn last_announcement(snapshot: &Snapshot, object: &Custom<Server>) -> LastAnnouncement {
    let Some((last, age)) = snapshot.last_request.as_ref() else { return LastAnnouncement::None };
    if last.request != SchedulerRequest::new(Operation::Notify, Some(object)) {
        return LastAnnouncement::None;
    }
    let left = |limit: Duration| limit.checked_sub(*age).filter(|left| !left.is_zero());
    match &last.rejection {
        Some(why) => LastAnnouncement::Rejected(why.clone(), left(ANNOUNCE_RETRY_INTERVAL)),
        None => left(ANNOUNCE_TIMEOUT).map_or(LastAnnouncement::None, LastAnnouncement::Pending),
    }
}
