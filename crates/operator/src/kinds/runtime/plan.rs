//! What is to be done about a runtime.

use super::{
    FINALIZER, Snapshot,
    components::{Part, parts},
    objects::{Build, objects},
    status,
};
use crate::{
    cluster::{ChildKind, Custom, Desired, SeldonRuntime},
    conditions::{Outlook, Says},
    kinds::checked::check,
    plan::{Action, Plan},
    workload::{Marks, Progress, Refused, sort},
};
use gantry_api::{PlainStatus, SeldonConfigSpec, SeldonRuntimeSpec};
use gantry_core::mutant;
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeSet;

pub(super) fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<PlainStatus> {
    match snapshot.object.as_deref() {
        None => Plan::default(),
        Some(object) if object.is_deleted() => leaving(snapshot, object, now),
        Some(object) => wanted(snapshot, object, now),
    }
}

/// The runtime is deleted: its components stay until the last Server has gone. A Server that is deleted goes without
/// any help, so that nothing here waits for ever, also when the whole namespace is deleted.
fn leaving(snapshot: &Snapshot, object: &Custom<SeldonRuntime>, now: Timestamp) -> Plan<PlainStatus> {
    let mut plan = Plan::default();
    if !object.has_finalizer(FINALIZER) {
        return plan;
    }
    // Whoever comes after it needs the components, and makes them anew.
    if snapshot.servers.is_empty() || snapshot.first.is_some() || mutant::is("leaves_servers_behind") {
        plan.actions.push(Action::RemoveFinalizer(FINALIZER));
        return plan;
    }
    let namespace = &snapshot.key.namespace;
    let shown: Vec<&str> = snapshot.servers.iter().take(3).map(String::as_str).collect();
    let more = if snapshot.servers.len() > shown.len() { ", …" } else { "" };
    let message = format!(
        "waits until the Servers of the namespace are deleted ({}{more}): kubectl delete servers --all -n {namespace}",
        shown.join(", ")
    );
    let says = Says::new(false, "ServersLeft", message, Outlook::Passing);
    plan.status = Some(status::told(object, &[], &says, now));
    plan
}

fn wanted(snapshot: &Snapshot, object: &Custom<SeldonRuntime>, now: Timestamp) -> Plan<PlainStatus> {
    let stop = |says: Says| Plan {
        events: status::news(object, &says).into_iter().collect(),
        status: Some(status::told(object, &[], &says, now)),
        ..Plan::default()
    };
    let valid = check(object).and_then(|spec| {
        let config = configured(snapshot, spec)?;
        Ok((spec, config))
    });
    let (spec, config) = match valid {
        Ok(valid) => valid,
        Err(says) => return stop(says),
    };
    let made = match make(snapshot, object, spec, config) {
        Ok(made) => made,
        Err(says) => return stop(says),
    };
    let mut plan = Plan::default();
    if !object.has_finalizer(FINALIZER) && !mutant::is("does_not_hold_runtimes") {
        plan.actions.push(Action::AddFinalizer(FINALIZER));
    }
    let sorted = sort(&made.ensured, &snapshot.family, &snapshot.refusals);
    plan.actions.extend(sorted.actions);
    plan.wake = sorted.wake;
    let unwanted = snapshot.family.unwanted(&made.wanted, sorted.refused.is_some()).into_iter();
    // What an older state of the configuration made stays, unless it is switched off here.
    let may_go = |name: &str| !made.is_kept || spec.overrides.iter().any(|o| o.disable && o.name == name);
    plan.actions.extend(unwanted.filter(|doomed| may_go(&doomed.key.name)).map(Action::Delete));

    let refused = sorted.refused.as_ref();
    let said = |part: Part| {
        let live = snapshot.family.get(part.kind, &part.name);
        let autoscaled = snapshot.autoscalers.contains_key(&(part.kind.name().to_owned(), part.name.clone()));
        let replicas =
            live.filter(|_| autoscaled).map_or(i64::from(part.replicas), |l| l.number("/spec/replicas"));
        let its_own = refused.filter(|r| r.kind == part.kind && r.key.name == part.name);
        let selector = format!("{}={}", super::objects::NAME, part.name);
        let progress = Progress::of(part.kind, live, replicas);
        let says = its_own.map_or_else(|| progress.says(&snapshot.key.namespace, &selector), Refused::says);
        (part, says)
    };
    let components: Vec<(Part, Says)> = made.parts.into_iter().map(said).collect();
    let says = status::ready(&components, refused);
    plan.events.extend(status::news(object, &says));
    plan.status = Some(status::told(object, &components, &says, now));
    plan
}

/// The configuration that a runtime names, if it can be used and nobody else's components are in the way.
fn configured<'a>(
    snapshot: &'a Snapshot,
    spec: &SeldonRuntimeSpec,
) -> Result<&'a Custom<crate::cluster::SeldonConfig>, Says> {
    if let Some(first) = snapshot.first.as_ref().filter(|_| !mutant::is("makes_two_runtimes")) {
        let message = format!(
            "the namespace has its components from SeldonRuntime {first}, which was there first: delete one of the two"
        );
        return Err(Says::new(false, "AnotherRuntime", message, Outlook::Passing));
    }
    let (name, namespace) = (&spec.seldon_config, &snapshot.config_namespace);
    let Some(config) = snapshot.config.as_deref() else {
        let message = format!(
            "there is no SeldonConfig {name} in namespace {namespace}, where the operator looks them up: make it, or \
             name another in spec.seldonConfig"
        );
        return Err(Says::new(false, "SeldonConfigMissing", message, Outlook::Passing));
    };
    match check(config) {
        Ok(_) => Ok(config),
        Err(says) => {
            let message = format!("SeldonConfig {name} in namespace {namespace}: {}", says.message);
            Err(Says::new(false, "SeldonConfigInvalid", message, Outlook::Passing))
        }
    }
}

/// What the runtime becomes.
struct Made {
    /// All that there is to be.
    wanted: Vec<Desired>,
    /// That of it which may be changed.
    ensured: Vec<Desired>,
    /// Its components.
    parts: Vec<Part>,
    /// Whether some of it is from an older state of the configuration, and stays so.
    is_kept: bool,
}

fn make(
    snapshot: &Snapshot,
    object: &Custom<SeldonRuntime>,
    spec: &SeldonRuntimeSpec,
    config: &Custom<crate::cluster::SeldonConfig>,
) -> Result<Made, Says> {
    let marks = spec.disable_auto_update.then(|| {
        // How many there are is no part of what the pods are made from.
        let mut question = spec.clone();
        question.overrides.iter_mut().for_each(|over| over.replicas = None);
        Marks::new(config.uid(), config.generation(), &question)
    });
    let nothing = SeldonConfigSpec::default();
    let is_there = |(kind, name): &&(String, String)| {
        let workloads = [ChildKind::StatefulSet, ChildKind::Deployment].into_iter();
        workloads.filter(|k| k.name() == kind).any(|k| snapshot.family.get(k, name).is_some())
    };
    // A workload begins with as many as are asked for here.
    let autoscaled: BTreeSet<(String, String)> =
        snapshot.autoscalers.keys().filter(is_there).cloned().collect();
    let build = Build {
        key: &snapshot.key,
        uid: object.uid(),
        spec,
        config: config.spec.as_ref().unwrap_or(&nothing),
        image: &snapshot.image,
        autoscaled: &autoscaled,
        annotations: marks.as_ref().map(Marks::annotations).unwrap_or_default(),
    };
    let wanted = objects(&build).map_err(|problem| {
        let message = format!(
            "SeldonConfig {} in namespace {}: {problem}",
            spec.seldon_config, snapshot.config_namespace
        );
        Says::new(false, "SeldonConfigInvalid", message, Outlook::Passing)
    })?;
    let mut is_kept = false;
    let mut ensured = Vec::new();
    for desired in &wanted {
        let live = snapshot.family.get(desired.kind, &desired.key.name);
        match live.filter(|live| marks.as_ref().is_some_and(|marks| marks.keep(live))) {
            None => ensured.push(desired.clone()),
            Some(live) => {
                is_kept = true;
                if matches!(desired.kind, ChildKind::StatefulSet | ChildKind::Deployment) {
                    ensured.extend(Marks::resized(live, desired));
                }
            }
        }
    }
    Ok(Made { wanted, ensured, parts: parts(&build), is_kept })
}
