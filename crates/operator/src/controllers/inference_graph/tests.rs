//! Plans of graphs.

use super::{Snapshot, plan::plan};
use crate::{
    cluster::{Custom, InferenceGraph},
    controllers::inference_service::RouteScheduler,
    plan::{Action, Known, SchedulerAction},
    schedulers::ServiceView,
};
use gantry_proto::gantry::ServiceRoute;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn graph(steps: &Value) -> Custom<InferenceGraph> {
    let spec = json!({ "nodes": { "root": { "routerType": "Sequence", "steps": steps } } });
    let metadata = json!({ "name": "chain", "namespace": "ml", "uid": "u", "generation": 2 });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

/// A graph of one service that is ready, and a scheduler without a route.
fn snapshot() -> Snapshot {
    let object = graph(&json!([{ "serviceName": "iris" }]));
    Snapshot {
        key: object.key(),
        object: Some(Arc::new(object)),
        config: Known::Absent,
        services: [("iris".to_owned(), true)].into(),
        is_name_taken: false,
        scheduler: Some(RouteScheduler {
            namespace: "ops".into(),
            service: Known::Absent,
            unreachable_for: None,
            last_request: None,
        }),
        routed_by: Vec::new(),
    }
}

fn put(snapshot: &Snapshot) -> Option<ServiceRoute> {
    plan(snapshot, NOW).actions.into_iter().find_map(|action| match action {
        Action::Scheduler(SchedulerAction::PutService { scheduler, route }) => {
            assert_eq!(scheduler, "ops");
            Some(*route)
        }
        _ => None,
    })
}

fn deleted(snapshot: &Snapshot) -> Vec<String> {
    let actions = plan(snapshot, NOW).actions.into_iter();
    actions
        .filter_map(|action| match action {
            Action::Scheduler(SchedulerAction::DeleteService { scheduler, service }) => {
                Some(format!("{scheduler}: {service}"))
            }
            _ => None,
        })
        .collect()
}

/// `STATUS REASON`.
fn ready(snapshot: &Snapshot) -> String {
    let status = plan(snapshot, NOW).status.unwrap();
    assert_eq!(status.observed_generation, Some(2));
    let ready = status.conditions.into_iter().find(|c| c.r#type == "Ready").unwrap();
    format!("{} {}", ready.status, ready.reason.unwrap())
}

fn with_view(admitted: bool, reason: &str) -> Snapshot {
    let mut snapshot = snapshot();
    let route = put(&snapshot).unwrap();
    let view = ServiceView { route, admitted, reason: reason.into(), ..ServiceView::default() };
    snapshot.scheduler.as_mut().unwrap().service = Known::Present(view);
    snapshot.routed_by = vec!["ops".into()];
    snapshot
}

#[test]
fn graph_is_put_to_the_scheduler_and_ready_when_gateways_have_it() {
    let route = put(&snapshot()).unwrap();
    assert_eq!((route.namespace.as_str(), route.name.as_str()), ("ml", "chain"));
    assert_eq!(route.hosts, ["chain-ml.example.com"]);
    assert!(route.components.is_empty());
    let spec: Value = serde_json::from_slice(&route.graph).unwrap();
    assert_eq!(spec["nodes"]["root"]["steps"][0]["serviceName"], "iris");
    assert_eq!(ready(&snapshot()), "False RouteNotAdmitted");

    let waiting = with_view(false, "gateway a has not acknowledged it");
    assert_eq!((put(&waiting), ready(&waiting)), (None, "False RouteNotAdmitted".into()));
    let admitted = with_view(true, "");
    assert_eq!((put(&admitted), ready(&admitted)), (None, "True GraphReady".into()));
    let planned = plan(&admitted, NOW);
    assert_eq!(planned.status.unwrap().url.as_deref(), Some("http://chain-ml.example.com"));
    assert_eq!(planned.events.first().map(|event| event.reason), Some("InferenceGraphReady"));
    assert_eq!(deleted(&admitted), [""; 0]);
}

#[test]
fn graph_stays_ready_while_the_scheduler_restarts() {
    let mut snapshot = with_view(true, "");
    let mut object = (*snapshot.object.clone().unwrap()).clone();
    object.status = plan(&snapshot, NOW).status;
    snapshot.object = Some(Arc::new(object));
    let lost = |seconds: u64, snapshot: &mut Snapshot| {
        let scheduler = snapshot.scheduler.as_mut().unwrap();
        scheduler.service = Known::Unknown("disconnected".into());
        scheduler.unreachable_for = Some(std::time::Duration::from_secs(seconds));
    };
    lost(10, &mut snapshot);
    assert_eq!(ready(&snapshot), "True GraphReady");
    assert!(plan(&snapshot, NOW).requeue_after.is_some());
    lost(60, &mut snapshot);
    assert_eq!(ready(&snapshot), "False SchedulerUnreachable");
}

#[test]
fn status_names_what_a_graph_waits_for() {
    let mut missing = with_view(true, "");
    missing.services.clear();
    assert_eq!(ready(&missing), "False ServiceNotFound");
    missing.services.insert("iris".into(), false);
    assert_eq!(ready(&missing), "False ServiceNotReady");

    let no_gateway = with_view(false, gantry_core::scheduling::NO_GATEWAY);
    assert_eq!(ready(&no_gateway), "False GatewayNotConnected");
    let no_scheduler = Snapshot { scheduler: None, ..snapshot() };
    assert_eq!((put(&no_scheduler), ready(&no_scheduler)), (None, "False NoScheduler".into()));
    let taken = Snapshot { is_name_taken: true, ..snapshot() };
    assert_eq!((put(&taken), ready(&taken)), (None, "False NameTaken".into()));
    let invalid = graph(&json!([{ "serviceName": "iris", "serviceUrl": "http://x" }]));
    let invalid = Snapshot { object: Some(Arc::new(invalid)), ..snapshot() };
    assert_eq!((put(&invalid), ready(&invalid)), (None, "False InvalidSpec".into()));
    let config = serde_json::from_value(json!({ "data": { "router": "{" } })).unwrap();
    let broken = Snapshot { config: Known::Present(Arc::new(config)), ..snapshot() };
    assert_eq!((put(&broken), ready(&broken)), (None, "False ConfigInvalid".into()));
    assert_eq!(deleted(&broken), [""; 0], "gateways keep what they have");
}

#[test]
fn route_is_deleted_with_the_graph_and_where_it_was_before() {
    let gone = Snapshot { object: None, ..with_view(true, "") };
    assert_eq!(deleted(&gone), ["ops: ml/chain"]);
    let mut moved = with_view(true, "");
    moved.routed_by.push("ml".into());
    assert_eq!(deleted(&moved), ["ml: ml/chain"]);
}
