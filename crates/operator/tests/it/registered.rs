//! Operators with registered kinds beyond the built-in ones, without a scheduler.

use futures::future::BoxFuture;
use gantry_kube_sim::{Registry as Kinds, Server};
use gantry_operator::{
    Caches, Controller, Operator, Settings,
    cluster::{Custom, CustomKind, Desired, EventDraft, Key, KindId, ResourceKind, WriteFence},
    controllers::Registry,
    plan::{ClusterAction, Plan},
    schedulers::SchedulerConnector,
};
use k8s_openapi::{api::core::v1::Namespace, jiff::Timestamp};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

#[derive(Debug)]
struct NoScheduler;

impl SchedulerConnector for NoScheduler {
    fn connect<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Channel, String>> {
        Box::pin(async { Err("no scheduler".into()) })
    }
}

/// An API server with Gantry's kinds and these of the group `reports.example.com` (plural, kind, namespaced), a
/// namespace `ml`, and an operator for the registered kinds.
pub(crate) async fn start(kinds: &[(&str, &str, bool)], registry: Registry) -> Server {
    let mut known = Kinds::with_gantry().unwrap();
    for (plural, kind, namespaced) in kinds {
        known.add_custom("reports.example.com", "v1", plural, kind, *namespaced);
    }
    let kube = Server::new(known, 7, "2026-01-01T00:00:00Z".parse().unwrap());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": "ml" } })).unwrap();
    let namespaces: Api<Namespace> = Api::all(kube.client("user", "ml"));
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let clock = kube.clone();
    let operator = Operator::with_registry(
        kube.client("operator", "seldon-mesh"),
        Settings::default(),
        Arc::new(NoScheduler),
        WriteFence::always_open(),
        Arc::new(move || clock.now()),
        registry,
    );
    tokio::spawn(operator.run(None, CancellationToken::new()));
    kube
}

/// A field of an object; `null` when there is none.
pub(crate) fn get(kube: &Server, kind: &str, namespace: &str, name: &str, pointer: &str) -> Value {
    let object = kube.with(|state| state.object(kind, namespace, name).cloned());
    object.and_then(|object| object.pointer(pointer).cloned()).unwrap_or_default()
}

/// A kind that creates an object of an optional kind, and records it in its status before.
#[derive(Clone, Debug)]
struct Widget;

impl CustomKind for Widget {
    const GROUP: &'static str = "reports.example.com";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "Widget";
    const PLURAL: &'static str = "widgets";
    type Spec = Value;
    type Status = Value;
}

/// Its CRD is not installed at start.
const GADGET: ResourceKind = ResourceKind::new("gadgets.example.com", "v1", "Gadget", "gadgets").optional();

struct WidgetController;

impl Controller for WidgetController {
    type Kind = Widget;
    type Snapshot = (Option<Arc<Custom<Widget>>>, bool);
    const NAME: &'static str = "widget";
    const OWNS: &'static [ResourceKind] = &[GADGET];

    fn snapshot(caches: &Caches, key: &Key) -> Self::Snapshot {
        (caches.of::<Widget>().get(key), caches.is_served(GADGET))
    }

    fn plan((widget, is_served): &Self::Snapshot, _: Timestamp) -> Plan<Value> {
        let mut plan = Plan { status_first: true, ..Plan::default() };
        let Some(widget) = widget else { return plan };
        plan.status = Some(json!({ "gadget": if *is_served { "created" } else { "not served" } }));
        if *is_served {
            let owner = json!([{
                "apiVersion": KindId::of::<Widget>().api_version(), "kind": Widget::KIND, "controller": true,
                "name": widget.key().name, "uid": widget.uid(),
            }]);
            let body = json!({ "metadata": { "ownerReferences": owner }, "spec": widget.spec.clone().ok() });
            plan.push(ClusterAction::Apply(Box::new(Desired::new(GADGET, widget.key(), body))));
        }
        plan
    }
}

#[tokio::test(start_paused = true)]
async fn optional_kind_is_discovered_after_start() {
    let kube = start(&[("widgets", "Widget", true)], Registry::built_in().with::<WidgetController>()).await;
    let client = kube.client("user", "ml");
    let widgets: Api<Custom<Widget>> = Api::namespaced_with(client.clone(), "ml", &());
    let widget = json!({ "metadata": { "name": "a" }, "spec": { "size": 1 } });
    widgets.create(&PostParams::default(), &serde_json::from_value(widget).unwrap()).await.unwrap();
    let field = |kind: &str, pointer: &str| get(&kube, kind, "ml", "a", pointer);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(field("widgets.reports.example.com", "/status/gadget"), json!("not served"));

    let crds = ResourceKind::new(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    );
    let crd = json!({
        "metadata": { "name": "gadgets.gadgets.example.com" },
        "spec": {
            "group": "gadgets.example.com", "scope": "Namespaced",
            "names": { "plural": "gadgets", "kind": "Gadget", "singular": "gadget" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object", "properties": { "spec": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            } } }],
        },
    });
    let crds: Api<DynamicObject> = Api::all_with(client, &crds.api_resource());
    crds.create(&PostParams::default(), &serde_json::from_value(crd).unwrap()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(field("widgets.reports.example.com", "/status/gadget"), json!("created"));
    assert_eq!(field("gadgets.gadgets.example.com", "/spec/size"), json!(1));

    let trace = kube.trace();
    let writes: Vec<&str> = trace.writes(Some("operator")).map(|entry| entry.object.as_str()).collect();
    let expected = [
        "widgets.reports.example.com ml/a/status",
        "widgets.reports.example.com ml/a/status",
        "gadgets.gadgets.example.com ml/a",
    ];
    assert_eq!(writes, expected, "the status is written before the action");
}

/// A kind whose status is never what was written: another controller undoes it, or the plan is wrong.
#[derive(Clone, Debug)]
struct Restless;

impl CustomKind for Restless {
    const GROUP: &'static str = "reports.example.com";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "Restless";
    const PLURAL: &'static str = "restless";
    type Spec = Value;
    type Status = Value;
}

struct RestlessController;

/// Ends a loop, which would stop virtual time.
const MAX_ROUNDS: u64 = 1000;

impl Controller for RestlessController {
    type Kind = Restless;
    type Snapshot = Option<Arc<Custom<Restless>>>;
    const NAME: &'static str = "restless";

    fn snapshot(caches: &Caches, key: &Key) -> Self::Snapshot {
        caches.of::<Restless>().get(key)
    }

    fn plan(restless: &Self::Snapshot, _: Timestamp) -> Plan<Value> {
        let status = restless.as_ref().map(|restless| {
            let rounds = restless.status.as_ref().and_then(|status| status["rounds"].as_u64()).unwrap_or(0);
            json!({ "rounds": (rounds + 1).min(MAX_ROUNDS) })
        });
        Plan { status, ..Plan::default() }
    }
}

#[tokio::test(start_paused = true)]
async fn object_that_never_settles_is_reconciled_with_backoff() {
    let registry = Registry::built_in().with::<RestlessController>();
    let kube = start(&[("restless", "Restless", true)], registry).await;
    let objects: Api<Custom<Restless>> = Api::namespaced_with(kube.client("user", "ml"), "ml", &());
    let object = json!({ "metadata": { "name": "a" }, "spec": {} });
    objects.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    let rounds = || get(&kube, "restless.reports.example.com", "ml", "a", "/status/rounds").as_u64().unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let first = rounds();
    assert!((8..80).contains(&first), "{first}");
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert!((first + 8..first + 120).contains(&rounds()), "{} after {first}", rounds());
}

/// A kind that emits the same event with each reconciliation.
#[derive(Clone, Debug)]
struct Chatty;

impl CustomKind for Chatty {
    const GROUP: &'static str = "reports.example.com";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "Chatty";
    const PLURAL: &'static str = "chatties";
    type Spec = Value;
    type Status = Value;
}

struct ChattyController;

impl Controller for ChattyController {
    type Kind = Chatty;
    type Snapshot = Option<Arc<Custom<Chatty>>>;
    const NAME: &'static str = "chatty";

    fn snapshot(caches: &Caches, key: &Key) -> Self::Snapshot {
        caches.of::<Chatty>().get(key)
    }

    fn plan(chatty: &Self::Snapshot, _: Timestamp) -> Plan<Value> {
        let mut plan = Plan::default();
        if chatty.is_some() {
            let event =
                EventDraft { warning: true, reason: "Refused", message: "at most 1 is possible".into() };
            plan.push(ClusterAction::Emit(event));
        }
        plan
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_events_are_one_series() {
    let registry = Registry::built_in().with::<ChattyController>();
    let kube = start(&[("chatties", "Chatty", true)], registry).await;
    let objects: Api<Custom<Chatty>> = Api::namespaced_with(kube.client("user", "ml"), "ml", &());
    let object = json!({ "metadata": { "name": "a" }, "spec": { "round": 0 } });
    objects.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    for round in 1..=20 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        let patch = json!({ "spec": { "round": round } });
        objects.patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let events = kube.with(|state| {
        let events = state.objects().filter(|(key, _)| key.to_string().starts_with("events."));
        events.map(|(_, event)| Value::clone(event)).collect::<Vec<_>>()
    });
    assert_eq!(events.len(), 1, "{events:#?}");
    assert!(events[0]["series"]["count"].as_i64() >= Some(12), "{:#}", events[0]);
    let writes = kube.trace().writes(Some("operator")).count();
    assert!(writes <= 5, "one write per minute, not {writes}");
}
