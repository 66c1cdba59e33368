//! Tests of `SeldonRuntimes`.

#![allow(clippy::needless_pass_by_value, reason = "arguments are json!() literals")]

mod kafka;
mod manifests;
mod properties;
mod replicas;
mod situations;

use super::{Build, Counts, FINALIZER, Snapshot, objects, plan::plan, status::condition_type};
use crate::{
    cluster::{APPLIED, Custom, Desired, Key, OwnedObject, ResourceKind, SeldonConfig, SeldonRuntime},
    conditions::{ConditionStatus, READY, RECONCILING, STALLED, condition_status},
    plan::{Action, ClusterAction, Plan},
    workload::{ApplyFailure, FailureCause, Inherited, OwnedObjects, merge},
};
use gantry_api::PlainStatus;
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// The installed configuration.
fn installed() -> Custom<SeldonConfig> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/config/seldonconfig-default.yaml");
    let mut config: Custom<SeldonConfig> =
        serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    config.metadata.uid = Some("c1".into());
    config.metadata.generation = Some(1);
    config
}

fn config(spec: Value) -> Custom<SeldonConfig> {
    let metadata = json!({ "name": "default", "namespace": "ops", "uid": "c1", "generation": 1 });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

/// A scheduler, a gateway that reads a `ConfigMap`, and an unknown component.
fn small() -> Value {
    json!({ "components": [
        { "name": "seldon-scheduler", "podSpec": { "containers": [{ "name": "s" }] },
          "volumeClaimTemplates": [{ "name": "state", "spec": { "accessModes": ["ReadWriteOnce"] } }] },
        { "name": "seldon-gateway", "podSpec": {
            "containers": [{ "name": "g", "image": "gateway:1", "envFrom": [{ "configMapRef": { "name": "seldon-tracing" } }] }],
        }},
        { "name": "my-helper", "podSpec": { "containers": [{ "name": "h" }] } },
    ]})
}

fn runtime(spec: Value) -> Custom<SeldonRuntime> {
    let object = json!({
        "metadata": {
            "name": "seldon", "namespace": "ml", "uid": "u1", "generation": 3, "resourceVersion": "7",
            "finalizers": [FINALIZER],
        },
        "spec": merge(&json!({ "seldonConfig": "default" }), &spec),
    });
    serde_json::from_value(object).unwrap()
}

fn snapshot(spec: Value) -> Snapshot {
    Snapshot {
        key: Key::new("ml", "seldon"),
        object: Some(Arc::new(runtime(spec))),
        config: Some(Arc::new(config(small()))),
        config_namespace: "ops".into(),
        image: "gantry:1".into(),
        has_kafka_client: true,
        counts: Counts::default(),
        agent_secrets: Vec::new(),
        certificates: None,
        owned: OwnedObjects::default(),
        autoscalers: BTreeMap::new(),
        servers: Vec::new(),
        first: None,
        failures: Vec::new(),
    }
}

fn with_object(snapshot: &Snapshot, change: impl FnOnce(&mut Custom<SeldonRuntime>)) -> Snapshot {
    let mut object = Arc::unwrap_or_clone(snapshot.object.clone().unwrap());
    change(&mut object);
    Snapshot { object: Some(Arc::new(object)), ..snapshot.clone() }
}

fn live(desired: &Desired) -> (ResourceKind, Arc<OwnedObject>) {
    let mut child: OwnedObject = serde_json::from_value(desired.manifest()).unwrap();
    child.metadata.uid = Some(format!("{}-{}", desired.kind, desired.key.name));
    child.metadata.resource_version = Some("1".into());
    child.metadata.generation = Some(1);
    let pods = desired.body.pointer("/spec/replicas").cloned().unwrap_or(json!(1));
    child.data["status"] =
        json!({ "observedGeneration": 1, "replicas": pods, "readyReplicas": pods, "updatedReplicas": pods });
    (desired.kind, Arc::new(child))
}

fn applied(plan: &Plan<PlainStatus>) -> Vec<&Desired> {
    plan.actions
        .iter()
        .filter_map(
            |a| if let Action::Cluster(ClusterAction::Apply(d)) = a { Some(d.as_ref()) } else { None },
        )
        .collect()
}

fn find(plan: &Plan<PlainStatus>, kind: ResourceKind, name: &str) -> Option<Desired> {
    applied(plan).into_iter().find(|d| d.kind == kind && d.key.name == name).cloned()
}

/// The snapshot after its plan is applied and its pods run.
fn made(snapshot: Snapshot) -> Snapshot {
    let plan = plan(&snapshot, NOW);
    let owned = OwnedObjects::new(applied(&plan).into_iter().map(live).collect::<Vec<_>>(), "u1");
    with_object(&Snapshot { owned, ..snapshot }, |object| object.status = plan.status)
}

fn deletes(plan: &Plan<PlainStatus>) -> Vec<String> {
    let word = |a: &Action| {
        if let Action::Cluster(ClusterAction::Delete(d)) = a {
            Some(format!("{} {}", d.kind, d.key.name))
        } else {
            None
        }
    };
    plan.actions.iter().filter_map(word).collect()
}

fn ready_condition(plan: &Plan<PlainStatus>) -> (ConditionStatus, String, &'static str, String) {
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
