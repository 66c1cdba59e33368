//! What is to be done about a Server.

use super::{
    Snapshot,
    objects::{Build, objects},
    status::{self, Told},
};
use crate::{
    cluster::{Custom, Desired, Happening, Server},
    conditions::{Outlook, Says, Truth},
    kinds::checked::check,
    plan::{Action, Known, Plan},
    schedulers::{Errand, Verb},
    workload::{Marks, Progress, Refused, sort},
};
use gantry_api::{Scaling, ServerSpec, ServerStatus};
use gantry_core::mutant;
use gantry_proto::scheduler as pb;
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// Most replicas: each has objects of its own.
const MOST: u32 = 1000;
/// How long the scheduler's word on what it was told is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// When the scheduler is told again what it refused.
const AGAIN: Duration = Duration::from_mins(5);
/// How long a scheduler is silent before that is worth a word: an operator or a scheduler that starts is not.
const SILENCE: Duration = Duration::from_secs(30);

pub(super) fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<ServerStatus> {
    match snapshot.object.as_deref() {
        Some(object) if !object.is_deleted() => wanted(snapshot, object, now),
        _ => gone(snapshot),
    }
}

/// The Server goes, and what belongs to it with it. Its agents move their models away; the scheduler is not to wait for
/// them to come back.
fn gone(snapshot: &Snapshot) -> Plan<ServerStatus> {
    let mut plan = Plan::default();
    if let Known::Present(view) = &snapshot.scheduler
        && !mutant::is("says_no_goodbye")
        && view.is_expected_for(&snapshot.key.namespace)
        && snapshot.object.as_deref().is_none_or(|object| was_told(snapshot, object) == ToldBefore::No)
    {
        let generation = snapshot.object.as_deref().map(Custom::generation).or(view.generation);
        plan.actions.push(Action::Notify(pb::ServerNotify {
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

fn wanted(snapshot: &Snapshot, object: &Custom<Server>, now: Timestamp) -> Plan<ServerStatus> {
    let mut plan = Plan::default();
    let stop = |says: Says| Plan {
        events: status::news(object, &says).into_iter().collect(),
        status: Some(status::told(object, &Told::only(&says), now)),
        ..Plan::default()
    };
    let (spec, scaling) = match check(object).and_then(|spec| Ok((spec, scaling(spec)?))) {
        Ok(valid) => valid,
        Err(says) => return stop(says),
    };
    if let Some(action) = wish(snapshot, scaling) {
        plan.actions.push(action);
        return plan;
    }
    let made = match make(snapshot, object, spec, scaling) {
        Ok(made) => made,
        Err(says) => return stop(says),
    };
    let sorted = sort(&made.ensured, &snapshot.family, &snapshot.refusals);
    plan.actions = sorted.actions;
    plan.wake = sorted.wake;
    let unwanted = snapshot.family.unwanted(&made.wanted, sorted.refused.is_some());
    plan.actions.extend(unwanted.into_iter().map(Action::Delete));
    let word = announce(snapshot, object, spec, made.replicas);
    plan.actions.extend(word.action.filter(|_| !mutant::is("announces_nothing")));
    plan.wake = [plan.wake, word.wake].into_iter().flatten().min();

    let kind = snapshot.workload();
    let live = snapshot.family.get(kind, &snapshot.key.name);
    let told = Told {
        refused: sorted.refused.as_ref().map(Refused::says),
        progress: Progress::of(kind, live, i64::from(made.replicas)),
        scheduler: &snapshot.scheduler,
        scheduler_refuses: word.refusal,
    };
    let (mut says, workload) = told.says(&snapshot.key);
    if let (Known::Unknown(_), Some(silence)) = (&snapshot.scheduler, snapshot.silence)
        && let Some(left) = SILENCE.checked_sub(silence).filter(|left| !left.is_zero())
        && workload.truth == Truth::True
        && let Some(before) = status::still(object, &workload)
    {
        says = before;
        plan.wake = Some(plan.wake.map_or(left, |wake| wake.min(left)));
    }
    plan.events.extend(status::news(object, &says));
    let status = status::told(object, &told.conditions(&says, &workload), now);
    match status::pause(object, &status, snapshot.told) {
        None => plan.status = Some(status),
        Some(left) => plan.wake = Some(plan.wake.map_or(left, |wake| wake.min(left))),
    }
    plan
}

fn scaling(spec: &ServerSpec) -> Result<Scaling, Says> {
    let invalid = |field: &str, message: &str| {
        Says::new(false, "InvalidSpec", format!("{field} {message}"), Outlook::Final)
    };
    let scaling = spec.scaling().map_err(|(field, message)| invalid(&field, &message))?;
    if scaling.replicas > MOST {
        let message = format!("is {}, at most {MOST} are possible: make several Servers", scaling.replicas);
        return Err(invalid("spec.replicas", &message));
    }
    Ok(scaling)
}

/// What the Server becomes.
struct Made {
    /// All that there is to be.
    wanted: Vec<Desired>,
    /// That of it which may be changed.
    ensured: Vec<Desired>,
    replicas: u32,
}

fn make(
    snapshot: &Snapshot,
    object: &Custom<Server>,
    spec: &ServerSpec,
    scaling: Scaling,
) -> Result<Made, Says> {
    let unusable = |message: String| Says::new(false, "ServerConfigInvalid", message, Outlook::Passing);
    let (name, namespace) = (&spec.server_config, &snapshot.config_namespace);
    let Some(config) = snapshot.config.as_deref() else {
        let message = format!(
            "there is no ServerConfig {name} in namespace {namespace}, where the operator looks them up: make it, or \
             name another in spec.serverConfig"
        );
        return Err(Says::new(false, "ServerConfigMissing", message, Outlook::Passing));
    };
    let config_spec = check(config).map_err(|says| {
        unusable(format!("ServerConfig {name} in namespace {namespace}: {}", says.message))
    })?;
    let live = snapshot.family.get(snapshot.workload(), &snapshot.key.name);
    // It begins with as many as are asked for here.
    let is_autoscaled = snapshot.autoscaler.is_some() && live.is_some() && !mutant::is("ignores_autoscalers");
    let replicas = live
        .filter(|_| is_autoscaled)
        .and_then(|live| u32::try_from(live.number("/spec/replicas")).ok())
        .map_or(scaling.replicas, |replicas| replicas.min(MOST));
    let marks = spec.disable_auto_update.then(|| {
        // How many there are is no part of what the pods are made from.
        let question = ServerSpec { replicas: None, min_replicas: None, max_replicas: None, ..spec.clone() };
        Marks::new(config.uid(), config.generation(), &question)
    });
    let wanted = objects(&Build {
        key: &snapshot.key,
        uid: object.uid(),
        spec,
        config: config_spec,
        image: &snapshot.image,
        workload: snapshot.workload(),
        replicas,
        is_autoscaled,
        annotations: marks.as_ref().map(Marks::annotations).unwrap_or_default(),
        config_maps: &snapshot.config_maps,
    })
    .map_err(unusable)?;
    let kept = live.filter(|live| marks.as_ref().is_some_and(|marks| marks.keep(live)));
    let mut ensured = wanted.clone();
    if let Some(live) = kept {
        let resized = |desired: Desired| {
            if desired.kind == snapshot.workload() { Marks::resized(live, &desired) } else { Some(desired) }
        };
        ensured = ensured.into_iter().filter_map(resized).collect();
    }
    Ok(Made { wanted, ensured, replicas })
}

/// What is done about the replicas that the scheduler wants the Server to have.
fn wish(snapshot: &Snapshot, scaling: Scaling) -> Option<Action> {
    let Known::Present(view) = &snapshot.scheduler else { return None };
    let wished = view.wanted.filter(|_| !mutant::is("ignores_wishes"))?;
    let Ok(wished) = u32::try_from(wished) else { return Some(Action::Decline(None)) };
    let refuse = |why: String| {
        let message = format!("the scheduler wants {wished} replicas: {why}");
        Some(Action::Decline(Some(Happening { warning: true, reason: "ScalingRefused", message })))
    };
    if let Some(autoscaler) = &snapshot.autoscaler {
        return refuse(format!("the HorizontalPodAutoscaler {autoscaler} decides how many there are"));
    }
    let Scaling { replicas, min, max } = scaling;
    match wished {
        _ if wished == replicas => Some(Action::Decline(None)),
        _ if wished < min => refuse(format!("spec.minReplicas is {min}")),
        _ if wished > max => refuse(format!("spec.maxReplicas is {max}")),
        _ if wished > MOST => refuse(format!("at most {MOST} are possible")),
        _ => Some(i32::try_from(wished).map_or(Action::Decline(None), Action::Scale)),
    }
}

/// What is to be said to the scheduler, when to look again for its answer, and why it would not hear of it.
#[derive(Default)]
struct Announcement {
    action: Option<Action>,
    wake: Option<Duration>,
    refusal: Option<String>,
}

fn announce(snapshot: &Snapshot, object: &Custom<Server>, spec: &ServerSpec, replicas: u32) -> Announcement {
    let namespace = snapshot.key.namespace.as_str();
    let generation = object.generation();
    let is_known = match &snapshot.scheduler {
        Known::Unknown(_) => true,
        // One without replicas is forgotten as soon as it is announced.
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
    let notify = Some(Action::Notify(pb::ServerNotify { expected_replicas: replicas, ..server }));
    match was_told(snapshot, object) {
        ToldBefore::No => Announcement { action: notify, ..Announcement::default() },
        ToldBefore::Waits(left) => Announcement { wake: Some(left), ..Announcement::default() },
        ToldBefore::Refused(why, Some(left)) => {
            Announcement { action: None, wake: Some(left), refusal: Some(why) }
        }
        ToldBefore::Refused(why, None) => Announcement { action: notify, wake: None, refusal: Some(why) },
    }
}

/// Whether the scheduler was told of this generation of a Server.
#[derive(Debug, PartialEq, Eq)]
enum ToldBefore {
    /// It was not, or so long ago that it is told again.
    No,
    /// It was, and its word is waited for this long.
    Waits(Duration),
    /// It refused: why, and when it is told again, if not now.
    Refused(String, Option<Duration>),
}

fn was_told(snapshot: &Snapshot, object: &Custom<Server>) -> ToldBefore {
    let Some((asked, ago)) = snapshot.asked.as_ref() else { return ToldBefore::No };
    let errand = Errand { verb: Verb::Notify, uid: object.uid().to_owned(), generation: object.generation() };
    if asked.errand != errand {
        return ToldBefore::No;
    }
    let left = |limit: Duration| limit.checked_sub(*ago).filter(|left| !left.is_zero());
    match &asked.refusal {
        Some(why) => ToldBefore::Refused(why.clone(), left(AGAIN)),
        None => left(PATIENCE).map_or(ToldBefore::No, ToldBefore::Waits),
    }
}
