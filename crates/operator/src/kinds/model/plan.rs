//! What is to be done about a model.

use super::{FINALIZER, Snapshot, status};
use crate::{
    cluster::{Custom, Happening, Model},
    conditions::{Outlook, READY, Says, Truth, truth_of},
    plan::{Action, Known, Plan},
    schedulers::{Errand, ModelView, Verb},
};
use gantry_api::{ModelSpec, ModelStatus};
use gantry_core::mutant;
use gantry_proto::scheduler as pb;
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// How long the scheduler's first word on something new is waited for before "in progress" is written: most models are
/// ready sooner, and are written about once.
const PATIENCE: Duration = Duration::from_millis(700);
/// How long after no answer the scheduler is asked again.
const AGAIN: Duration = Duration::from_secs(5);
/// How long a deleted model waits for a scheduler that cannot be reached. When the scheduler is back, it is told.
const FAREWELL: Duration = Duration::from_secs(30);

pub(super) fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<ModelStatus> {
    match &snapshot.object {
        None => gone(snapshot),
        Some(object) if object.is_deleted() => leaving(snapshot, object, now),
        Some(object) => wanted(snapshot, object, now),
    }
}

/// The object is gone, whatever held it: so is the model.
fn gone(snapshot: &Snapshot) -> Plan<ModelStatus> {
    let mut plan = Plan::default();
    if let Known::Present(view) = &snapshot.scheduler
        && !view.deleted
        && view.is_from(&snapshot.key.namespace)
    {
        plan.actions.push(unload(snapshot));
    }
    plan
}

/// The object is deleted: the model goes first, unless there is nobody who could have it.
fn leaving(snapshot: &Snapshot, object: &Custom<Model>, now: Timestamp) -> Plan<ModelStatus> {
    let mut plan = Plan::default();
    if !object.has_finalizer(FINALIZER) {
        return plan;
    }
    let release = Action::RemoveFinalizer(FINALIZER);
    if mutant::is("lets_models_go_unasked") {
        plan.actions.push(release);
        return plan;
    }
    match &snapshot.scheduler {
        Known::Absent => plan.actions.push(release),
        Known::Present(view) if !view.is_from(&snapshot.key.namespace) => plan.actions.push(release),
        Known::Present(view) if view.deleted => {
            if has_ended(view) && !mutant::is("never_lets_go") {
                plan.actions.push(release);
            } else {
                let says = Says::new(false, "ModelTerminating", "is being unloaded", Outlook::Passing);
                plan.status = Some(status::told(object, &says, Some(view), now));
            }
        }
        // Nothing would come of asking again: the scheduler keeps what it keeps, the object is free to go.
        Known::Present(_) if refusal(snapshot, Verb::Unload, object).is_some() => plan.actions.push(release),
        Known::Present(_) => match unanswered(snapshot, Verb::Unload, object) {
            Some((why, _)) if deleted_for(object, now) >= FAREWELL * 2 => {
                plan.events.push(alone(&why));
                plan.actions.push(release);
            }
            Some((_, left)) => plan.wake = Some(left),
            None => plan.actions.push(unload(snapshot)),
        },
        Known::Unknown(_) if !snapshot.has_scheduler => plan.actions.push(release),
        Known::Unknown(_) if mutant::is("waits_for_ever_for_a_scheduler") => plan.wake = Some(FAREWELL),
        Known::Unknown(why) => {
            let silence = snapshot.silence.unwrap_or_default();
            if silence >= FAREWELL {
                plan.events.push(alone(why));
                plan.actions.push(release);
            } else {
                plan.wake = Some(FAREWELL.saturating_sub(silence));
            }
        }
    }
    plan
}

/// How long ago somebody deleted it.
fn deleted_for(object: &Custom<Model>, now: Timestamp) -> Duration {
    let since = object.metadata.deletion_timestamp.as_ref().map_or(now, |t| t.0);
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

/// What is said of a model that goes before its scheduler knows.
fn alone(why: &str) -> Happening {
    Happening {
        warning: true,
        reason: "SchedulerUnreachable",
        message: format!(
            "deleted without its scheduler ({why}); it is told to unload the model when it answers"
        ),
    }
}

/// The model is to be served.
fn wanted(snapshot: &Snapshot, object: &Custom<Model>, now: Timestamp) -> Plan<ModelStatus> {
    let mut plan = Plan::default();
    let say = |says: &Says, view: Option<&ModelView>| Some(status::told(object, says, view, now));
    let spec = match valid(object) {
        Ok(spec) => spec,
        Err(says) => {
            plan.status = say(&says, None);
            return plan;
        }
    };
    if !object.has_finalizer(FINALIZER) && !mutant::is("does_not_hold_models") {
        plan.actions.push(Action::AddFinalizer(FINALIZER));
    }
    let generation = object.generation();
    let desired = spec.to_proto(&snapshot.key.name, Some(&snapshot.key.namespace), Some(generation));
    match &snapshot.scheduler {
        Known::Unknown(why) => {
            // What is loaded goes on serving without its scheduler: what was said of this generation stays true.
            if object.status.as_ref().and_then(|s| s.observed_generation) != Some(generation) {
                let message = format!("waits for its scheduler: {why}");
                plan.status =
                    say(&Says::new(Truth::Unknown, "SchedulerUnreachable", message, Outlook::Passing), None);
            }
            return plan;
        }
        Known::Present(view) if !view.deleted && is_asked(view, &desired) => {
            let says = status::of(view);
            let is_told = object.status.as_ref().and_then(|s| s.observed_generation) == Some(generation);
            if !is_told && view.state() == pb::model_status::ModelState::ModelProgressing {
                plan.wake = patience(snapshot, object);
                if plan.wake.is_some() {
                    return plan;
                }
            }
            plan.events.extend(news(object, &says));
            plan.status = say(&says, Some(view));
            return plan;
        }
        Known::Present(view) if view.deleted && !has_ended(view) => {
            let message = "waits until the model that had this name before is unloaded";
            plan.status = say(&Says::new(false, "ModelTerminating", message, Outlook::Passing), None);
            return plan;
        }
        Known::Present(_) | Known::Absent => {}
    }
    if let Some(why) = refusal(snapshot, Verb::Load, object) {
        let says = Says::new(false, "Refused", why, Outlook::Final);
        plan.events.extend(news(object, &says));
        plan.status = say(&says, None);
        return plan;
    }
    if let Some((why, left)) = unanswered(snapshot, Verb::Load, object) {
        let message = format!("waits for its scheduler: {why}");
        plan.status =
            say(&Says::new(Truth::Unknown, "SchedulerUnreachable", message, Outlook::Passing), None);
        plan.wake = Some(left);
        return plan;
    }
    match &snapshot.asked {
        // It was asked for: the scheduler's word on it is on its way.
        Some((asked, ago)) if asked.errand == errand(Verb::Load, object) && asked.unanswered.is_none() => {
            plan.wake = patience(snapshot, object);
            if plan.wake.is_none() {
                let says = Says::new(false, "ModelProgressing", "waits to be loaded", Outlook::Passing);
                plan.status = say(&says, None);
                // A word that does not come is asked for again.
                if *ago > FAREWELL {
                    plan.actions.push(Action::Load(Box::new(desired)));
                } else {
                    plan.wake = Some(FAREWELL);
                }
            }
        }
        _ => plan.actions.push(Action::Load(Box::new(desired))),
    }
    plan
}

/// How long "in progress" may still be left unsaid: what was asked for a moment ago may be there in a moment.
fn patience(snapshot: &Snapshot, object: &Custom<Model>) -> Option<Duration> {
    let (asked, ago) = snapshot.asked.as_ref()?;
    let left = PATIENCE.checked_sub(*ago).filter(|left| !left.is_zero());
    left.filter(|_| asked.errand == errand(Verb::Load, object))
}

fn valid(object: &Custom<Model>) -> Result<&ModelSpec, Says> {
    let invalid = |message: String| Says::new(false, "InvalidSpec", message, Outlook::Final);
    let spec = object.spec.as_ref().map_err(|e| invalid(format!("spec cannot be read: {e}")))?;
    let name = object.metadata.name.as_deref().unwrap_or_default();
    if let Err(problem) = gantry_api::check_name(name) {
        return Err(invalid(format!("metadata.name {problem}")));
    }
    let problems = spec.rules();
    if problems.is_empty() {
        return Ok(spec);
    }
    let sentences: Vec<String> = problems.iter().map(|(path, message)| format!("{path} {message}")).collect();
    Err(invalid(sentences.join("; ")))
}

/// Whether the scheduler was asked for exactly this. What the scheduler adds on its own (a version, what a server
/// reported about its runtime) is not part of the question.
fn is_asked(view: &ModelView, desired: &pb::Model) -> bool {
    let Some(latest) = &view.latest else { return false };
    let same_meta =
        latest.kubernetes_meta.as_ref() == desired.meta.as_ref().and_then(|m| m.kubernetes_meta.as_ref());
    let Some(known) = &latest.model_defn else { return same_meta };
    if mutant::is("compares_generations_only") {
        return same_meta;
    }
    if mutant::is("compares_definitions_only") {
        return bare(known) == bare(desired);
    }
    same_meta && bare(known) == bare(desired)
}

fn bare(model: &pb::Model) -> pb::Model {
    let mut model = model.clone();
    if let Some(meta) = &mut model.meta {
        meta.version = None;
        meta.kind = None;
        meta.kubernetes_meta = None;
    }
    if let Some(spec) = &mut model.model_spec {
        spec.model_runtime_info = None;
    }
    model.stream_spec = None;
    model
}

fn unload(snapshot: &Snapshot) -> Action {
    let generation = snapshot.object.as_ref().map_or(0, |o| o.generation());
    Action::Unload(pb::UnloadModelRequest {
        model: Some(pb::ModelReference { name: snapshot.key.name.clone(), version: None }),
        kubernetes_meta: Some(pb::KubernetesMeta { namespace: snapshot.key.namespace.clone(), generation }),
    })
}

fn errand(verb: Verb, object: &Custom<Model>) -> Errand {
    Errand { verb, uid: object.uid().to_owned(), generation: object.generation() }
}

/// Why the scheduler refused it, if it did.
fn refusal(snapshot: &Snapshot, verb: Verb, object: &Custom<Model>) -> Option<String> {
    let (asked, _) = snapshot.asked.as_ref()?;
    if asked.errand == errand(verb, object) { asked.refusal.clone() } else { None }
}

/// Why the scheduler did not answer, if it did not, and how long until it is asked again.
fn unanswered(snapshot: &Snapshot, verb: Verb, object: &Custom<Model>) -> Option<(String, Duration)> {
    let (asked, ago) = snapshot.asked.as_ref().filter(|(a, _)| a.errand == errand(verb, object))?;
    let left = AGAIN.checked_sub(*ago).filter(|left| !left.is_zero())?;
    Some((asked.unanswered.clone()?, left))
}

/// Whether the scheduler has nothing more to do about a model that was unloaded.
fn has_ended(view: &ModelView) -> bool {
    use pb::model_status::ModelState;
    matches!(
        view.state(),
        ModelState::ModelTerminated
            | ModelState::ModelTerminateFailed
            | ModelState::ModelFailed
            | ModelState::ScheduleFailed
            | ModelState::Unknown
    )
}

/// An event where the truth changes, and where something new fails. What is ready at once has its status to say so.
fn news(object: &Custom<Model>, says: &Says) -> Option<Happening> {
    let before = object.status.as_ref().and_then(|s| truth_of(&s.conditions, READY));
    let (warning, reason) = match (before, says.truth, says.outlook) {
        (Some(Truth::False | Truth::Unknown), Truth::True, _) => (false, "ModelReady"),
        (Some(Truth::True), Truth::False, _) | (None, Truth::False, Outlook::Final) => {
            (true, "ModelNotReady")
        }
        _ => return None,
    };
    Some(Happening { warning, reason, message: says.message.clone() })
}
