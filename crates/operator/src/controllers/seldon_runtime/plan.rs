//! Plan of a `SeldonRuntime`.

use super::{
    Certificates, FINALIZER, Snapshot,
    components::{Part, kafka_condition, parts},
    kafka,
    objects::{Build, objects},
    status,
};
use crate::{
    cluster::{Custom, Desired, ResourceKind, SeldonConfig, SeldonRuntime},
    conditions::{ConditionUpdate, Progress},
    controllers::validation::validate,
    plan::{ClusterAction, Plan},
    workload::{
        ApplyFailure, ConfigRevision, Inherited, Rollout, apply_actions,
        certificates::{self, Part as Certified, Ports},
    },
};
use gantry_api::{PlainStatus, SeldonConfigSpec, SeldonRuntimeSpec};
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeSet;

pub(super) fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<PlainStatus> {
    match snapshot.object.as_deref() {
        None => Plan::default(),
        Some(object) if object.is_deleted() => plan_deletion(snapshot, object, now),
        Some(object) => plan_present(snapshot, object, now),
    }
}

/// The components stay until the last Server is gone. Servers have no finalizer, so that this ends, also when the whole
/// namespace is deleted.
fn plan_deletion(snapshot: &Snapshot, object: &Custom<SeldonRuntime>, now: Timestamp) -> Plan<PlainStatus> {
    let mut plan = Plan::default();
    if !object.has_finalizer(FINALIZER) {
        return plan;
    }
    // Another runtime of the namespace creates the components again.
    if snapshot.servers.is_empty() || snapshot.first.is_some() {
        plan.push(ClusterAction::RemoveFinalizer(FINALIZER));
        return plan;
    }
    let namespace = &snapshot.key.namespace;
    let shown: Vec<&str> = snapshot.servers.iter().take(3).map(String::as_str).collect();
    let more = if snapshot.servers.len() > shown.len() { ", …" } else { "" };
    let message = format!(
        "waiting for the deletion of the namespace's Servers ({}{more}): kubectl delete servers --all -n {namespace}",
        shown.join(", ")
    );
    let condition = ConditionUpdate::new(false, "ServersLeft", message, Progress::InProgress);
    plan.status = Some(status::build_status(object, &[], None, &condition, now));
    plan
}

fn plan_present(snapshot: &Snapshot, object: &Custom<SeldonRuntime>, now: Timestamp) -> Plan<PlainStatus> {
    let stop = |condition: ConditionUpdate| Plan {
        events: status::transition_event(object, &condition).into_iter().collect(),
        status: Some(status::build_status(object, &[], None, &condition, now)),
        ..Plan::default()
    };
    let valid = validate(object).and_then(|spec| {
        let config = referenced_config(snapshot, spec)?;
        Ok((spec, config))
    });
    let (spec, config) = match valid {
        Ok(valid) => valid,
        Err(condition) => return stop(condition),
    };
    let desired = match desired_state(snapshot, object, spec, config) {
        Ok(desired) => desired,
        Err(condition) => return stop(condition),
    };
    let mut plan = Plan::default();
    if !object.has_finalizer(FINALIZER) {
        plan.push(ClusterAction::AddFinalizer(FINALIZER));
    }
    let applies = apply_actions(&desired.applied, &snapshot.owned, &snapshot.failures);
    plan.actions.extend(applies.actions);
    plan.requeue_after = applies.retry_after;
    let is_moving = |issued: Certificates| !issued.gateway || issued.scheduler == Ports::TlsAndPlaintext;
    if snapshot.certificates.is_some_and(is_moving) && has_scheduler(snapshot) {
        plan.requeue_within(certificates::REVIEW_INTERVAL);
    }
    let orphans = snapshot.owned.orphans(&desired.all, !applies.failures.is_empty()).into_iter();
    // With `disableAutoUpdate`, objects of an older configuration stay, unless their component is disabled here.
    let may_delete =
        |name: &str| !desired.is_kept || spec.overrides.iter().any(|o| o.disable && o.name == name);
    let orphans = orphans.filter(|target| may_delete(&target.key.name));
    plan.actions.extend(orphans.map(|target| ClusterAction::Delete(target).into()));

    for part in &desired.parts {
        let live = snapshot.owned.get(part.kind, &part.name);
        let autoscaled = snapshot.autoscalers.contains_key(&(part.kind.kind.to_owned(), part.name.clone()));
        if let Some(event) =
            part.adjustment(live.map(|live| live.number("/spec/replicas"))).filter(|_| !autoscaled)
        {
            plan.push(ClusterAction::Emit(event));
        }
    }
    let refused = applies.failures.first();
    let with_condition = |part: Part| {
        let live = snapshot.owned.get(part.kind, &part.name);
        let autoscaled = snapshot.autoscalers.contains_key(&(part.kind.kind.to_owned(), part.name.clone()));
        let replicas =
            live.filter(|_| autoscaled).map_or(i64::from(part.replicas), |l| l.number("/spec/replicas"));
        let own_failure = refused.filter(|r| r.kind == part.kind && r.key.name == part.name);
        let selector = format!("{}={}", super::objects::NAME, part.name);
        let rollout = Rollout::of(part.kind, live, replicas);
        let condition = own_failure
            .map_or_else(|| rollout.condition(&snapshot.key.namespace, &selector), ApplyFailure::condition);
        (part, condition)
    };
    let components: Vec<(Part, ConditionUpdate)> = desired.parts.into_iter().map(with_condition).collect();
    let condition = status::ready(&components, desired.kafka.as_ref(), refused);
    plan.events.extend(status::transition_event(object, &condition));
    plan.status = Some(status::build_status(object, &components, desired.kafka.as_ref(), &condition, now));
    plan
}

/// Whether the scheduler is Gantry's.
fn has_scheduler(snapshot: &Snapshot) -> bool {
    let config = snapshot.config.as_deref().and_then(|config| config.spec.as_ref().ok());
    let mut pods =
        config.into_iter().flat_map(|config| &config.components).filter_map(|c| c.pod_spec.as_ref());
    pods.any(|pod| certificates::is_for(pod, Certified::Scheduler(Ports::Tls)))
}

/// The referenced configuration, if it is valid and no other runtime was there first.
fn referenced_config<'a>(
    snapshot: &'a Snapshot,
    spec: &SeldonRuntimeSpec,
) -> Result<&'a Custom<SeldonConfig>, ConditionUpdate> {
    if let Some(first) = &snapshot.first {
        let message = format!(
            "SeldonRuntime {first} is older and owns the components of this namespace: delete one of the two"
        );
        return Err(ConditionUpdate::new(false, "AnotherRuntime", message, Progress::InProgress));
    }
    let (name, namespace) = (&spec.seldon_config, &snapshot.config_namespace);
    let Some(config) = snapshot.config.as_deref() else {
        let message = format!(
            "SeldonConfig {name} does not exist in the operator's namespace {namespace}: create it, or change \
             spec.seldonConfig"
        );
        return Err(ConditionUpdate::new(false, "SeldonConfigMissing", message, Progress::InProgress));
    };
    match validate(config) {
        Ok(_) => Ok(config),
        Err(condition) => {
            let message = format!("SeldonConfig {name} in namespace {namespace}: {}", condition.message);
            Err(ConditionUpdate::new(false, "SeldonConfigInvalid", message, Progress::InProgress))
        }
    }
}

struct DesiredState {
    all: Vec<Desired>,
    /// The part of it that may be changed: `disableAutoUpdate` keeps the pods as they are.
    applied: Vec<Desired>,
    parts: Vec<Part>,
    /// The condition of the Kafka settings.
    kafka: Option<ConditionUpdate>,
    /// Whether objects of an older configuration are kept.
    is_kept: bool,
}

fn desired_state(
    snapshot: &Snapshot,
    object: &Custom<SeldonRuntime>,
    spec: &SeldonRuntimeSpec,
    config: &Custom<SeldonConfig>,
) -> Result<DesiredState, ConditionUpdate> {
    let (of_runtime, of_config) = (Inherited::of(&object.metadata), Inherited::of(&config.metadata));
    let revision = spec.disable_auto_update.then(|| {
        // Scaling is no change of the pods.
        let mut pods = spec.clone();
        pods.overrides.iter_mut().for_each(|over| over.replicas = None);
        ConfigRevision::new(config.uid(), config.generation(), &pods).with_metadata(&of_config, &of_runtime)
    });
    let empty = SeldonConfigSpec::default();
    let exists = |(kind, name): &&(String, String)| {
        let workloads = [ResourceKind::STATEFUL_SET, ResourceKind::DEPLOYMENT].into_iter();
        workloads.filter(|k| k.kind == kind).any(|k| snapshot.owned.get(k, name).is_some())
    };
    // A new workload starts with the replicas of the spec.
    let autoscaled: BTreeSet<(String, String)> =
        snapshot.autoscalers.keys().filter(exists).cloned().collect();
    let build = Build {
        key: &snapshot.key,
        uid: object.uid(),
        spec,
        config: config.spec.as_ref().unwrap_or(&empty),
        image: &snapshot.image,
        has_kafka_client: snapshot.has_kafka_client,
        counts: Some(snapshot.counts),
        autoscaled: &autoscaled,
        agent_secrets: &snapshot.agent_secrets,
        certificates: snapshot.certificates,
        inherited: of_runtime.over(&of_config),
        annotations: revision.as_ref().map(ConfigRevision::annotations).unwrap_or_default(),
    };
    let all = objects(&build).map_err(|problem| {
        let message = format!(
            "SeldonConfig {} in namespace {}: {problem}",
            spec.seldon_config, snapshot.config_namespace
        );
        ConditionUpdate::new(false, "SeldonConfigInvalid", message, Progress::InProgress)
    })?;
    let mut is_kept = false;
    let mut applied = Vec::new();
    for desired in &all {
        let live = snapshot.owned.get(desired.kind, &desired.key.name);
        match live.filter(|live| revision.as_ref().is_some_and(|revision| revision.keeps(live))) {
            None => applied.push(desired.clone()),
            Some(live) => {
                is_kept = true;
                if matches!(desired.kind, ResourceKind::STATEFUL_SET | ResourceKind::DEPLOYMENT) {
                    applied.extend(ConfigRevision::scaled(live, desired));
                }
            }
        }
    }
    // Pods that are kept have the settings that they were created with.
    let kafka =
        if is_kept { status::known_condition(object, kafka::CONDITION) } else { kafka_condition(&build) };
    Ok(DesiredState { all, applied, parts: parts(&build), kafka, is_kept })
}
