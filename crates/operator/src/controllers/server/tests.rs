//! Tests of Servers.

#![allow(clippy::needless_pass_by_value, reason = "arguments are json!() literals")]

mod manifests;
mod properties;
mod situations;
mod workloads;

use super::{Build, Snapshot, objects, plan::plan};
use crate::{
    cluster::{APPLIED, Adoption, Custom, Desired, Key, OwnedObject, ResourceKind, Server, ServerConfig},
    conditions::{ConditionStatus, READY, RECONCILING, STALLED, condition_status},
    plan::{Action, ClusterAction, Known, Plan, SchedulerAction},
    schedulers::{LastRequest, NO_SCHEDULER, Operation, SchedulerRequest, ServerView},
    workload::{ApplyFailure, FailureCause, Inherited, OwnedObjects},
};
use gantry_api::ServerStatus;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// An installed configuration.
fn installed(name: &str) -> Custom<ServerConfig> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/config");
    let text = std::fs::read_to_string(format!("{folder}/serverconfig-{name}.yaml")).unwrap();
    let mut config: Custom<ServerConfig> = serde_saphyr::from_str(&text).unwrap();
    config.metadata.uid = Some("c1".into());
    config.metadata.generation = Some(1);
    config
}

fn config(pod: Value) -> Custom<ServerConfig> {
    let object = json!({
        "metadata": { "name": "small", "namespace": "ops", "uid": "c1", "generation": 1 },
        "spec": { "podSpec": pod },
    });
    serde_json::from_value(object).unwrap()
}

fn small() -> Custom<ServerConfig> {
    config(json!({ "containers": [{ "name": "agent" }, { "name": "server", "image": "server:1" }] }))
}

fn server(spec: Value) -> Custom<Server> {
    let object = json!({
        "metadata": { "name": "a", "namespace": "ml", "uid": "u1", "generation": 3, "resourceVersion": "7" },
        "spec": crate::workload::merge(&json!({ "serverConfig": "small" }), &spec),
    });
    serde_json::from_value(object).unwrap()
}

fn view(expected: i32, available: i32) -> ServerView {
    ServerView {
        available,
        expected,
        loaded_models: 2,
        generation: Some(3),
        namespace: Some("ml".into()),
        manager: "operator:ml".into(),
        requested_replicas: None,
    }
}

fn snapshot(object: Option<Custom<Server>>, scheduler: Known<ServerView>) -> Snapshot {
    Snapshot {
        key: Key::new("ml", "a"),
        object: object.map(Arc::new),
        config: Some(Arc::new(small())),
        config_namespace: "ops".into(),
        image: "gantry:1".into(),
        use_deployments: false,
        reads_secrets: false,
        certificates: None,
        owned: OwnedObjects::default(),
        config_maps: BTreeMap::new(),
        autoscaler: None,
        server_autoscaler: None,
        scheduler,
        unreachable_for: None,
        last_request: None,
        failures: Vec::new(),
        status_age: None,
    }
}

/// A desired object after it is applied.
fn live(desired: &Desired, status: &Value) -> (ResourceKind, Arc<OwnedObject>) {
    let mut child: OwnedObject = serde_json::from_value(desired.manifest()).unwrap();
    child.metadata.uid = Some(format!("{}-{}", desired.kind, desired.key.name));
    child.metadata.resource_version = Some("1".into());
    child.metadata.generation = Some(1);
    child.data["status"] = status.clone();
    (desired.kind, Arc::new(child))
}

fn running(pods: i64) -> Value {
    json!({ "observedGeneration": 1, "replicas": pods, "readyReplicas": pods, "updatedReplicas": pods })
}

fn applied(plan: &Plan<ServerStatus>) -> Vec<&Desired> {
    plan.actions
        .iter()
        .filter_map(
            |a| if let Action::Cluster(ClusterAction::Apply(d)) = a { Some(d.as_ref()) } else { None },
        )
        .collect()
}

/// The snapshot after its plan is applied and its pods run.
fn made(mut snapshot: Snapshot, pods: i64) -> Snapshot {
    let plan = plan(&snapshot, NOW);
    let all: Vec<_> = applied(&plan).into_iter().map(|d| live(d, &running(pods))).collect();
    snapshot.owned = OwnedObjects::new(all, "u1");
    if let (Some(object), Some(status)) = (&mut snapshot.object, plan.status) {
        Arc::make_mut(object).status = Some(status);
    }
    snapshot
}

fn actions(plan: &Plan<ServerStatus>) -> Vec<String> {
    let word = |action: &Action| match action {
        Action::Cluster(ClusterAction::Apply(d)) => format!("apply {} {}", d.kind, d.key.name),
        Action::Cluster(ClusterAction::Delete(d)) => format!("delete {} {}", d.kind, d.key.name),
        Action::Scheduler(SchedulerAction::NotifyServer(n)) => format!("notify {}", n.expected_replicas),
        Action::Cluster(ClusterAction::Scale(n)) => format!("scale {n}"),
        Action::Cluster(ClusterAction::Emit(event)) => format!("emit {}", event.reason),
        Action::Scheduler(SchedulerAction::AcknowledgeScaling) => "acknowledge".into(),
        Action::Cluster(ClusterAction::HandOverReplicas(d)) => {
            format!("hand over {}", d.body["spec"]["replicas"])
        }
        other => format!("{other:?}"),
    };
    plan.actions.iter().map(word).collect()
}

/// Actions besides applies.
fn changes(plan: &Plan<ServerStatus>) -> Vec<String> {
    actions(plan).into_iter().filter(|word| !word.starts_with("apply ")).collect()
}

fn ready_condition(plan: &Plan<ServerStatus>) -> (ConditionStatus, String, &'static str, String) {
    let status = plan.status.as_ref().unwrap();
    let ready = status.conditions.iter().find(|c| c.r#type == READY).unwrap();
    let progress = match (
        condition_status(&status.conditions, RECONCILING),
        condition_status(&status.conditions, STALLED),
    ) {
        (Some(_), None) => "in progress",
        (None, Some(_)) => "stalled",
        (None, None) => "settled",
        both => panic!("both Reconciling and Stalled: {both:?}"),
    };
    let status = condition_status(&status.conditions, READY).unwrap();
    (status, ready.reason.clone().unwrap(), progress, ready.message.clone().unwrap())
}
