//! Algorithms behind Gantry's own gateway: the scheduler has the route and the statistics, the operator decides.

use crate::harness::{Harness, NAMESPACE};
use futures::future::BoxFuture;
use gantry_operator::evidence::{EvidenceProvider, EvidenceRequest, Measurement};
use gantry_proto::gantry::ServiceBackend;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

const KIND: &str = "Algorithm";
const NAME: &str = "reco";
const ROUTE: &str = "ml/reco";
/// More than any rollout takes.
const MAX_WAIT: Duration = Duration::from_hours(1);
const REVISION: &str = "ai.alien6.io~1revision";

/// There is no Prometheus.
struct NoPrometheus;

impl EvidenceProvider for NoPrometheus {
    fn measure<'a>(&'a self, _: &'a EvidenceRequest) -> BoxFuture<'a, Result<Option<Measurement>, String>> {
        Box::pin(async { Err("no address is set".into()) })
    }
}

fn spec(number: u32) -> Value {
    json!({
        "image": format!("reco:{number}"), "replicas": 2, "expose": {},
        "lifecycle": { "canaryWeight": 20, "checks": 2, "interval": "10s", "window": "20s" },
    })
}

/// A cluster with a gateway that sends 50 requests per second, and pods for the Deployments.
struct Cluster {
    harness: Harness,
    /// Failed requests of 1000 by image.
    failing: BTreeMap<String, u64>,
    reports: AtomicU64,
}

impl Cluster {
    async fn new() -> Self {
        let harness = Harness::started_with_evidence(Arc::new(NoPrometheus)).await;
        harness.set_gateway(true);
        Self { harness, failing: BTreeMap::new(), reports: AtomicU64::new(0) }
    }

    async fn running() -> Self {
        let cluster = Self::new().await;
        cluster.harness.create(NAMESPACE, KIND, NAME, spec(1)).await;
        cluster.until("it runs", |status, _| is_running(status)).await;
        cluster
    }

    async fn set_image(&self, number: u32) {
        self.harness.change(KIND, NAME, json!({ "image": format!("reco:{number}") })).await;
    }

    async fn status(&self) -> Value {
        let object = self.harness.get(KIND, NAME).await;
        object.and_then(|object| object.get("status").cloned()).unwrap_or_default()
    }

    /// What controllers and kubelets do: one pod per Deployment, of its template.
    async fn sync_pods(&self) {
        for (deployment, track, address) in
            [("reco", "stable", "10.0.0.1"), ("reco-canary", "canary", "10.0.0.2")]
        {
            let path = format!("/spec/template/metadata/labels/{REVISION}");
            let revision = self.harness.field("deployments.apps", deployment, &path);
            let name = format!("{deployment}-0");
            let live = self.harness.field("pods", &name, &format!("/metadata/labels/{REVISION}"));
            if live == revision {
                continue;
            }
            if live.is_some() {
                self.harness.delete_built_in("v1", "Pod", &name).await;
            }
            let Some(revision) = revision else { continue };
            let labels = json!({
                "ai.alien6.io/algorithm": NAME, "ai.alien6.io/track": track, "ai.alien6.io/revision": revision,
            });
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": name, "namespace": NAMESPACE, "labels": labels },
                "spec": { "containers": [{ "name": "c", "image": "i" }] },
            });
            self.harness.create_built_in(pod).await;
            let ready = json!([{ "type": "Ready", "status": "True" }]);
            let status = json!({ "status": { "podIP": address, "conditions": ready } });
            self.harness.patch_status("v1", "Pod", &name, status).await;
        }
    }

    fn image(&self, deployment: &str) -> Option<Value> {
        self.harness.field("deployments.apps", deployment, "/spec/template/spec/containers/0/image")
    }

    async fn backends(&self) -> Vec<ServiceBackend> {
        let services = self.harness.scheduler_services().await;
        let route = services.get(ROUTE).and_then(|state| state.route.clone());
        route.into_iter().flat_map(|route| route.components).flat_map(|c| c.backends).collect()
    }

    /// Weights by Service, of those with pods.
    async fn weights(&self) -> Vec<(String, u32)> {
        let backends = self.backends().await.into_iter().filter(|backend| !backend.pods.is_empty());
        backends.map(|backend| (backend.name, backend.weight)).collect()
    }

    /// The requests of a second.
    async fn send_requests(&self) {
        let backends = self.backends().await;
        let counted: Vec<_> = backends.iter().filter(|b| b.version > 0 && !b.pods.is_empty()).collect();
        let versions = counted.iter().map(|backend| {
            let deployment = if backend.name == "reco-stable" { "reco" } else { "reco-canary" };
            let image = self.image(deployment).and_then(|image| image.as_str().map(str::to_owned));
            let failing = image.and_then(|image| self.failing.get(&image).copied()).unwrap_or_default();
            let requests = u64::from(backend.weight) / 2;
            (backend.version, requests, (requests * failing).div_ceil(1000))
        });
        let versions: Vec<_> = versions.collect();
        if !versions.is_empty() {
            let number = self.reports.fetch_add(1, Ordering::Relaxed) + 1;
            self.harness.report_traffic(ROUTE, number, &versions).await;
        }
    }

    /// Lets seconds pass until a status of the latest generation, with the weights of the gateway; returns the time that it
    /// took.
    async fn until(&self, what: &str, is_reached: impl Fn(&Value, &[(String, u32)]) -> bool) -> Duration {
        let start = Instant::now();
        while start.elapsed() < MAX_WAIT {
            self.sync_pods().await;
            self.send_requests().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let object = self.harness.get(KIND, NAME).await.unwrap_or_default();
            let status = object.get("status").cloned().unwrap_or_default();
            let is_current = status["observedGeneration"] == object["metadata"]["generation"];
            if is_current && is_reached(&status, &self.weights().await) {
                return start.elapsed();
            }
        }
        panic!("not reached: {what}: {:#}\n{:#?}", self.status().await, self.backends().await);
    }
}

fn is_running(status: &Value) -> bool {
    status["phase"] == "Running" && status["canaryRevision"].is_null()
}

fn split(stable: u32, canary: u32) -> Vec<(String, u32)> {
    vec![("reco-stable".into(), stable), ("reco-canary".into(), canary)]
}

fn alone() -> Vec<(String, u32)> {
    vec![("reco-stable".into(), 100)]
}

#[tokio::test(start_paused = true)]
async fn statistics_of_the_gateway_promote_and_roll_back() {
    let mut cluster = Cluster::running().await;
    cluster.until("a route", |_, weights| weights == alone()).await;
    assert_eq!(cluster.harness.ready(KIND, NAME).await, ("True".into(), "AlgorithmReady".into()));
    cluster.set_image(2).await;
    cluster.until("20 %", |status, weights| status["canaryWeight"] == 20 && weights == split(80, 20)).await;
    let revision = cluster.backends().await[1].revision.clone();
    assert_eq!(json!(revision), cluster.status().await["canaryRevision"]);
    let took = cluster.until("promotion", |status, _| is_running(status)).await;
    assert!(took <= Duration::from_secs(40), "two checks of 10 s, not {took:?}");
    assert_eq!(cluster.image("reco"), Some(json!("reco:2")));
    let analysis = cluster.status().await["lastAnalysis"].clone();
    assert_eq!((&analysis["verdict"], &analysis["successRate"]), (&json!("Pass"), &json!(1.0)), "{analysis}");
    assert_eq!(analysis["baselineSuccessRate"], 1.0, "{analysis}");
    assert!(analysis["requests"].as_u64().is_some_and(|requests| requests >= 50), "{analysis}");
    cluster.until("all requests", |_, weights| weights == alone()).await;
    assert_eq!(cluster.harness.condition(KIND, NAME, "MetricsAvailable").await.0, "True");

    cluster.failing.insert("reco:3".into(), 400);
    cluster.set_image(3).await;
    cluster.until("20 %", |_, weights| weights == split(80, 20)).await;
    let took = cluster.until("weight 0", |_, weights| weights == alone()).await;
    assert!(took <= Duration::from_secs(21), "{took:?}");
    cluster.until("it runs", |status, _| is_running(status)).await;
    let status = cluster.status().await;
    assert_eq!(status["failedRevisions"][0]["reason"], "HardBreach", "{status:#}");
    assert_eq!((cluster.image("reco"), cluster.image("reco-canary")), (Some(json!("reco:2")), None));
    assert_eq!(cluster.harness.ready(KIND, NAME).await, ("False".into(), "RolledBack".into()));

    let writes = cluster.harness.writes();
    for _ in 0..60 {
        cluster.send_requests().await;
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(cluster.harness.writes(), writes, "ten minutes at rest");
}

#[tokio::test(start_paused = true)]
async fn outage_of_the_scheduler_or_of_both_revisions_never_rolls_back() {
    let mut cluster = Cluster::running().await;
    for image in ["reco:1", "reco:2"] {
        cluster.failing.insert(image.into(), 500);
    }
    cluster.set_image(2).await;
    cluster.until("20 %", |_, weights| weights == split(80, 20)).await;
    for _ in 0..120 {
        cluster.send_requests().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(cluster.status().await["canaryWeight"], 20, "both fail");
    cluster.failing.clear();
    cluster.harness.kill_scheduler();
    tokio::time::sleep(Duration::from_mins(5)).await;
    let status = cluster.status().await;
    assert_eq!((&status["phase"], &status["canaryWeight"]), (&json!("Canary"), &json!(20)), "{status:#}");
    assert!(status["failedRevisions"].is_null());
    let (_, message) = cluster.harness.condition(KIND, NAME, "MetricsAvailable").await;
    assert!(message.contains("scheduler"), "{message}");
    assert_eq!(cluster.harness.ready(KIND, NAME).await.1, "SchedulerUnreachable");
    cluster.harness.start_scheduler();
    cluster.until("promotion", |status, _| is_running(status)).await;
    assert_eq!(cluster.image("reco"), Some(json!("reco:2")));
}

#[tokio::test(start_paused = true)]
async fn route_is_deleted_with_its_algorithm_also_while_the_operator_is_down() {
    let cluster = Cluster::running().await;
    cluster.until("a route", |_, weights| weights == alone()).await;
    cluster.harness.change(KIND, NAME, json!({ "expose": null })).await;
    cluster.until("no route", |_, weights| weights.is_empty()).await;
    assert!(cluster.harness.scheduler_services().await.is_empty());
    cluster.harness.change(KIND, NAME, json!({ "expose": { "hostnames": ["reco.example.com"] } })).await;
    cluster.until("a route", |_, weights| weights == alone()).await;
    cluster.harness.kill_operator();
    cluster.harness.delete(KIND, NAME).await;
    cluster.harness.start_operator();
    cluster.harness.settle().await;
    assert!(cluster.harness.scheduler_services().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn service_of_the_same_name_keeps_its_route() {
    let cluster = Cluster::running().await;
    cluster.until("a route", |_, weights| weights == alone()).await;
    let graph =
        json!({ "nodes": { "root": { "routerType": "Sequence", "steps": [{ "serviceName": "iris" }] } } });
    cluster.harness.create(NAMESPACE, "InferenceGraph", NAME, graph).await;
    cluster.harness.settle().await;
    let services = cluster.harness.scheduler_services().await;
    assert!(!services[ROUTE].route.as_ref().unwrap().graph.is_empty(), "one of the two, without contention");
    assert_eq!(cluster.harness.ready(KIND, NAME).await, ("False".into(), "NameTaken".into()));
    cluster.harness.delete("InferenceGraph", NAME).await;
    cluster.until("its route", |_, weights| weights == alone()).await;
    cluster.until("ready", |status, _| is_running(status)).await;
    assert_eq!(cluster.harness.ready(KIND, NAME).await.0, "True");
}

/// What has to be the same after every crash.
async fn crashing_scenario(crash_after: Option<u64>) -> (Value, usize) {
    let mut cluster = Cluster::new().await;
    if let Some(nth) = crash_after {
        cluster.harness.crash_after(nth);
    }
    cluster.harness.create(NAMESPACE, KIND, NAME, spec(1)).await;
    cluster.until("it runs", |status, weights| is_running(status) && weights == alone()).await;
    cluster.set_image(2).await;
    cluster.until("20 %", |_, weights| weights == split(80, 20)).await;
    cluster.until("promotion", |status, weights| is_running(status) && weights == alone()).await;
    cluster.failing.insert("reco:3".into(), 900);
    cluster.set_image(3).await;
    cluster.until("20 %", |_, weights| weights == split(80, 20)).await;
    let is_over = |status: &Value| is_running(status) && !status["failedRevisions"].is_null();
    cluster.until("rollback", |status, weights| is_over(status) && weights == alone()).await;
    cluster.harness.settle().await;
    let status = cluster.status().await;
    let results: Vec<&Value> =
        status["history"].as_array().unwrap().iter().map(|entry| &entry["result"]).collect();
    let outcome = json!({
        "phase": status["phase"], "stable": status["stableRevision"], "results": results,
        "image": cluster.image("reco"), "canary": cluster.image("reco-canary"), "weights": cluster.weights().await,
        "ready": cluster.harness.ready(KIND, NAME).await,
    });
    (outcome, cluster.harness.writes())
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_write_leads_to_the_same_end_and_weights() {
    let (expected, writes) = crashing_scenario(None).await;
    assert_eq!(expected["results"], json!(["Deployed", "Promoted", "RolledBack: HardBreach"]));
    assert_eq!((&expected["image"], &expected["canary"]), (&json!("reco:2"), &Value::Null));
    assert!((15..=90).contains(&writes), "{writes}");
    for nth in 1..=u64::try_from(writes).unwrap() {
        let (found, _) = crashing_scenario(Some(nth)).await;
        assert_eq!(found, expected, "a crash after write {nth}");
    }
}
