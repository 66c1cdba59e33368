//! Algorithms against the simulated API server, with a scripted source of evidence.

use crate::{
    harness::{Harness, NAMESPACE, OPERATOR},
    service_modes::create_crd,
};
use futures::future::BoxFuture;
use gantry_core::rollout::{DriftScore, Errors, Stats};
use gantry_operator::evidence::{EvidenceProvider, EvidenceRequest, Figures, Measurement};
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::Instant;

const KIND: &str = "Algorithm";
const NAME: &str = "reco";
/// More than any rollout takes.
const MAX_WAIT: Duration = Duration::from_hours(2);

#[derive(Clone, Copy, Debug)]
enum Answer {
    /// Failed requests of 1000 to the stable revision, and of 1000 to the canary.
    Failed(u64, u64),
    NoData,
    Error,
    /// Until the deadline.
    Never,
}

/// Answers that a test sets.
struct Script {
    answer: Mutex<Answer>,
    drift: Mutex<f64>,
    polls: Mutex<u64>,
}

impl Script {
    fn new(answer: Answer) -> Arc<Self> {
        Arc::new(Self { answer: Mutex::new(answer), drift: Mutex::new(0.0), polls: Mutex::new(0) })
    }

    fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }
}

impl EvidenceProvider for Script {
    fn measure<'a>(
        &'a self,
        request: &'a EvidenceRequest,
    ) -> BoxFuture<'a, Result<Option<Measurement>, String>> {
        let (answer, drift) = (*self.answer.lock().unwrap(), *self.drift.lock().unwrap());
        *self.polls.lock().unwrap() += 1;
        Box::pin(async move {
            let stats = |failed: u64| Stats {
                requests: 1000,
                errors: Errors { server: failed, ..Errors::default() },
                drift: request.drift_metric.as_ref().and_then(|_| DriftScore::new(drift)),
                ..Stats::default()
            };
            match answer {
                Answer::Failed(stable, canary) => {
                    let candidate = request.candidate.as_ref().map(|_| stats(canary)).unwrap_or_default();
                    let figures = Figures::default();
                    Ok(Some(Measurement { stable: stats(stable), candidate, figures }))
                }
                Answer::NoData => Ok(None),
                Answer::Error => Err("answered 500".into()),
                Answer::Never => std::future::pending().await,
            }
        })
    }
}

fn spec(image: &str, lifecycle: &Value) -> Value {
    json!({
        "image": image, "replicas": 2, "lifecycle": lifecycle,
        "metrics": { "prometheus": { "address": "http://prometheus:9090" } },
    })
}

fn canary() -> Value {
    json!({ "canaryWeight": 20 })
}

/// A running Algorithm of the image `reco:1`.
async fn running(script: &Arc<Script>, lifecycle: &Value) -> Harness {
    let provider: Arc<dyn EvidenceProvider> = Arc::<Script>::clone(script);
    let harness = Harness::started_with_evidence(provider).await;
    harness.create(NAMESPACE, KIND, NAME, spec("reco:1", lifecycle)).await;
    until(&harness, "it runs", |status| status["phase"] == "Running").await;
    harness
}

async fn status(harness: &Harness) -> Value {
    let object = harness.get(KIND, NAME).await;
    object.and_then(|object| object.get("status").cloned()).unwrap_or_default()
}

/// Waits for a status of the latest generation; returns the time that it took.
async fn until(harness: &Harness, what: &str, is_reached: impl Fn(&Value) -> bool) -> Duration {
    let start = Instant::now();
    while start.elapsed() < MAX_WAIT {
        let object = harness.get(KIND, NAME).await.unwrap_or_default();
        let status = object.get("status").cloned().unwrap_or_default();
        let is_current = status["observedGeneration"] == object["metadata"]["generation"];
        if is_current && is_reached(&status) {
            return start.elapsed();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("not reached: {what}: {:#}", status(harness).await);
}

async fn set_image(harness: &Harness, image: &str) {
    harness.change(KIND, NAME, json!({ "image": image })).await;
}

fn image(harness: &Harness, deployment: &str) -> Option<Value> {
    harness.field("deployments.apps", deployment, "/spec/template/spec/containers/0/image")
}

fn is_running(status: &Value) -> bool {
    status["phase"] == "Running" && status["canaryRevision"].is_null()
}

fn has_failed(status: &Value, reason: &str) -> bool {
    let failed = status["failedRevisions"].as_array();
    failed.is_some_and(|failed| failed.iter().any(|f| f["reason"] == reason))
}

#[tokio::test(start_paused = true)]
async fn good_revision_is_promoted_after_its_checks() {
    let script = Script::new(Answer::Failed(0, 0));
    let harness = running(&script, &canary()).await;
    set_image(&harness, "reco:2").await;
    until(&harness, "20 %", |status| status["canaryWeight"] == 20).await;
    assert_eq!(image(&harness, "reco"), Some(json!("reco:1")));
    assert_eq!(image(&harness, "reco-canary"), Some(json!("reco:2")));
    let took = until(&harness, "promotion", |status| is_running(status) && status["canaryWeight"] == 0).await;
    assert!(took >= Duration::from_secs(150), "five checks of 30 s, not {took:?}");
    assert!(took <= Duration::from_secs(190), "{took:?}");
    assert_eq!(image(&harness, "reco"), Some(json!("reco:2")));
    assert_eq!(image(&harness, "reco-canary"), None);
    assert_eq!(harness.events("Promoted").len(), 1);
    assert_eq!(harness.ready(KIND, NAME).await, ("True".into(), "AlgorithmReady".into()));
}

#[tokio::test(start_paused = true)]
async fn failing_revision_is_rolled_back_within_three_intervals() {
    for (failed, reason, limit) in [(30, "HigherFailureRatio", 91), (900, "HardBreach", 31)] {
        let script = Script::new(Answer::Failed(0, failed));
        let harness = running(&script, &canary()).await;
        set_image(&harness, "reco:2").await;
        until(&harness, "20 %", |status| status["canaryWeight"] == 20).await;
        let took = until(&harness, "weight 0", |status| status["canaryWeight"] == 0).await;
        assert!(took <= Duration::from_secs(limit), "{reason} after {took:?}");
        // The status is written before the canary is deleted.
        let is_gone = || image(&harness, "reco-canary").is_none();
        until(&harness, "it runs", |status| is_running(status) && is_gone()).await;
        assert!(has_failed(&status(&harness).await, reason));
        assert_eq!(image(&harness, "reco"), Some(json!("reco:1")));
        assert_eq!(image(&harness, "reco-canary"), None);
        assert_eq!(harness.ready(KIND, NAME).await, ("False".into(), "RolledBack".into()));
        assert_eq!(harness.condition(KIND, NAME, "Available").await.0, "True");
        assert_eq!(harness.events("RolledBack").len(), 1);
        // The spec is not touched.
        assert_eq!(harness.get(KIND, NAME).await.unwrap()["spec"]["image"], "reco:2");
    }
}

#[tokio::test(start_paused = true)]
async fn canary_is_held_without_usable_evidence() {
    for (answer, reason) in [
        (Answer::NoData, "NoData"),
        (Answer::Error, "ProviderFailed"),
        (Answer::Never, "ProviderFailed"),
        (Answer::Failed(500, 500), "Measured"),
    ] {
        let script = Script::new(answer);
        let harness = running(&script, &canary()).await;
        set_image(&harness, "reco:2").await;
        until(&harness, "20 %", |status| status["canaryWeight"] == 20).await;
        tokio::time::sleep(Duration::from_mins(5)).await;
        let held = status(&harness).await;
        assert_eq!((&held["phase"], &held["canaryWeight"]), (&json!("Canary"), &json!(20)), "{answer:?}");
        let conditions = held["conditions"].as_array().unwrap();
        let metrics = conditions.iter().find(|c| c["type"] == "MetricsAvailable").unwrap();
        assert_eq!(metrics["reason"], reason, "{metrics}");
        // The evidence is usable again.
        script.set(Answer::Failed(0, 0));
        until(&harness, "promotion", is_running).await;
        assert_eq!(image(&harness, "reco"), Some(json!("reco:2")), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn change_of_the_spec_during_a_rollout_starts_again_or_returns() {
    let script = Script::new(Answer::Failed(0, 0));
    let harness = running(&script, &canary()).await;
    set_image(&harness, "reco:2").await;
    until(&harness, "two checks", |status| status["checksPassed"] == 2).await;
    set_image(&harness, "reco:3").await;
    until(&harness, "20 %", |status| status["canaryWeight"] == 20 && status["checksPassed"] == 0).await;
    assert_eq!(image(&harness, "reco-canary"), Some(json!("reco:3")));
    set_image(&harness, "reco:1").await;
    until(&harness, "it runs", is_running).await;
    assert_eq!(image(&harness, "reco-canary"), None);
    assert_eq!(image(&harness, "reco"), Some(json!("reco:1")));
    assert!(status(&harness).await["failedRevisions"].is_null());
    assert_eq!(harness.events("RolloutCancelled").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn canary_that_is_never_ready_is_rolled_back_at_the_deadline() {
    let script = Script::new(Answer::Failed(0, 0));
    let harness = running(&script, &canary()).await;
    harness.stop_controllers();
    set_image(&harness, "reco:2").await;
    let took = until(&harness, "it runs", |s| has_failed(s, "ProgressDeadlineExceeded")).await;
    assert!(took >= Duration::from_mins(10) && took <= Duration::from_mins(12), "{took:?}");
    until(&harness, "it runs", is_running).await;
    assert_eq!(image(&harness, "reco-canary"), None);
    assert_eq!(*script.polls.lock().unwrap(), 0, "nothing was measured");
}

#[tokio::test(start_paused = true)]
async fn drift_returns_to_the_previous_revision_once() {
    let script = Script::new(Answer::Failed(0, 0));
    let lifecycle = json!({ "canaryWeight": 20, "checks": 1, "rollbackOnDrift": true, "bakeSeconds": 60 });
    let harness = running(&script, &lifecycle).await;
    harness.change(KIND, NAME, json!({ "drift": { "threshold": 0.3, "windows": 2 } })).await;
    set_image(&harness, "reco:2").await;
    until(&harness, "promotion", |status| {
        is_running(status) && image(&harness, "reco") == Some(json!("reco:2"))
    })
    .await;
    // Past the bake, without drift.
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(image(&harness, "reco"), Some(json!("reco:2")));
    *script.drift.lock().unwrap() = 0.5;
    let took =
        until(&harness, "rollback", |status| has_failed(status, "Drifted") && is_running(status)).await;
    assert!(took <= Duration::from_secs(100), "{took:?}");
    assert_eq!(image(&harness, "reco"), Some(json!("reco:1")));
    let history = status(&harness).await["history"].clone();
    // The returned revision drifts as well, and stays.
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(image(&harness, "reco"), Some(json!("reco:1")));
    assert_eq!(status(&harness).await["history"], history);
}

#[tokio::test(start_paused = true)]
async fn retry_annotation_rolls_a_failed_revision_out_again_once() {
    let script = Script::new(Answer::Failed(0, 900));
    let harness = running(&script, &canary()).await;
    set_image(&harness, "reco:2").await;
    until(&harness, "rollback", |status| has_failed(status, "HardBreach") && is_running(status)).await;
    let revision = status(&harness).await["failedRevisions"][0]["revision"].clone();
    let annotations = json!({ "metadata": { "annotations": { "ai.alien6.io/retry": revision } } });
    harness.patch_custom(NAMESPACE, KIND, NAME, annotations.clone()).await;
    until(&harness, "20 %", |status| status["canaryWeight"] == 20).await;
    until(&harness, "rollback", |status| has_failed(status, "HardBreach") && is_running(status)).await;
    // The annotation is handled; it fails once more, and not forever.
    harness.settle().await;
    let history = status(&harness).await["history"].as_array().unwrap().len();
    assert_eq!(history, 3, "deployed, and rolled back twice");
}

#[tokio::test(start_paused = true)]
async fn algorithm_costs_few_writes_and_none_at_rest() {
    let script = Script::new(Answer::Failed(0, 0));
    let harness = running(&script, &json!({ "canaryWeight": 20, "rollbackOnDrift": true })).await;
    harness.settle().await;
    let lines: Vec<String> = harness
        .kube
        .trace()
        .writes(Some(OPERATOR))
        .map(|entry| format!("{:?} {}", entry.verb, entry.object))
        .filter(|line| !line.contains("events"))
        .collect();
    // ConfigMap, two Services, Deployment, budget; deploying, pods, running, measured.
    assert!(lines.len() <= 9, "{lines:#?}");
    let before = harness.writes();
    let polls = *script.polls.lock().unwrap();
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(harness.writes(), before, "an hour of healthy evidence");
    assert!(*script.polls.lock().unwrap() > polls + 100, "the stable revision is watched");
    harness.kill_operator();
    harness.start_operator();
    harness.settle().await;
    assert_eq!(harness.writes(), before, "a restart");
}

#[tokio::test(start_paused = true)]
async fn autoscaled_replicas_are_left_alone_and_deleted_objects_return() {
    let script = Script::new(Answer::Failed(0, 0));
    let harness = running(&script, &canary()).await;
    let scaling = json!({ "scaling": { "minReplicas": 1, "maxReplicas": 9, "targetLatencyMs": 50 } });
    harness.change(KIND, NAME, scaling).await;
    harness.settle().await;
    harness.scale("apps/v1", "Deployment", NAME, 7).await;
    harness.settle().await;
    assert_eq!(harness.field("deployments.apps", NAME, "/spec/replicas"), Some(json!(7)));
    set_image(&harness, "reco:2").await;
    until(&harness, "promotion", is_running).await;
    assert_eq!(image(&harness, "reco"), Some(json!("reco:2")));
    assert_eq!(harness.field("deployments.apps", NAME, "/spec/replicas"), Some(json!(7)));
    harness.settle().await;
    let config = harness.field("deployments.apps", NAME, "/spec/template/spec/volumes/0/configMap/name");
    let config = config.unwrap().as_str().unwrap().to_owned();
    for (api_version, kind, plural, name) in [
        ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets.policy", NAME),
        ("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers.autoscaling", NAME),
        ("v1", "ConfigMap", "configmaps", config.as_str()),
        ("v1", "Service", "services", "reco-stable"),
    ] {
        harness.delete_built_in(api_version, kind, name).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(harness.live(plural, name).is_some(), "{kind} {name}");
    }
}

#[tokio::test(start_paused = true)]
async fn gateway_route_has_the_weights() {
    let script = Script::new(Answer::Failed(0, 0));
    let provider: Arc<dyn EvidenceProvider> = Arc::<Script>::clone(&script);
    let harness = Harness::started_with_evidence(provider).await;
    create_crd(&harness, "gateway.networking.k8s.io", "v1", "HTTPRoute").await;
    let mut exposed = spec("reco:1", &canary());
    exposed["expose"] = json!({ "gateway": "infra/public" });
    harness.create(NAMESPACE, KIND, NAME, exposed).await;
    let is_ready = |status: &Value| {
        let conditions = status["conditions"].as_array();
        conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
    };
    until(&harness, "ready", is_ready).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let weights = || {
        let route = harness.field("httproutes.gateway.networking.k8s.io", NAME, "/spec/rules/0/backendRefs");
        let route = route.unwrap();
        route.as_array().unwrap().iter().map(|b| b["weight"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(weights(), [100]);
    set_image(&harness, "reco:2").await;
    until(&harness, "20 %", |status| status["canaryWeight"] == 20).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(weights(), [80, 20]);
    script.set(Answer::Failed(0, 900));
    until(&harness, "it runs", is_running).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(weights(), [100]);
    assert!(harness.live("services", "reco-canary").is_none());
}

/// What has to be the same after every crash.
async fn outcome(harness: &Harness) -> Value {
    let status = status(harness).await;
    let results: Vec<&Value> =
        status["history"].as_array().unwrap().iter().map(|entry| &entry["result"]).collect();
    let failed: Vec<&Value> =
        status["failedRevisions"].as_array().unwrap().iter().map(|failed| &failed["reason"]).collect();
    let mut objects: Vec<String> = harness.cluster_state().await.into_keys().collect();
    objects.retain(|name| name.contains(NAME));
    json!({
        "phase": status["phase"], "stable": status["stableRevision"], "canary": status["canaryRevision"],
        "results": results, "failed": failed, "objects": objects,
        "image": image(harness, NAME),
        "selector": harness.field("services", NAME, "/spec/selector"),
    })
}

/// Deployment, promotion, rollback; with a crash after a write.
async fn crashing_scenario(crash_after: Option<u64>) -> (Value, usize) {
    let script = Script::new(Answer::Failed(0, 0));
    let provider: Arc<dyn EvidenceProvider> = Arc::<Script>::clone(&script);
    let harness = Harness::started_with_evidence(provider).await;
    if let Some(nth) = crash_after {
        harness.crash_after(nth);
    }
    let lifecycle = json!({ "canaryWeight": 20, "checks": 2 });
    harness.create(NAMESPACE, KIND, NAME, spec("reco:1", &lifecycle)).await;
    until(&harness, "it runs", is_running).await;
    set_image(&harness, "reco:2").await;
    until(&harness, "promotion", is_running).await;
    script.set(Answer::Failed(0, 30));
    set_image(&harness, "reco:3").await;
    until(&harness, "rollback", |status| is_running(status) && !status["failedRevisions"].is_null()).await;
    harness.settle().await;
    (outcome(&harness).await, harness.writes())
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_write_leads_to_the_same_end() {
    let (expected, writes) = crashing_scenario(None).await;
    assert_eq!(expected["phase"], "Running");
    assert_eq!(expected["image"], "reco:2");
    assert_eq!(expected["results"], json!(["Deployed", "Promoted", "RolledBack: HigherFailureRatio"]));
    assert!((15..=80).contains(&writes), "{writes}");
    for nth in 1..=u64::try_from(writes).unwrap() {
        let (found, _) = crashing_scenario(Some(nth)).await;
        assert_eq!(found, expected, "a crash after write {nth}");
    }
}
