//! Servers: autoscaling, rejected applies, auto-update, stale reads.

use crate::{
    harness::{CONFIG_NAMESPACE, Harness, NAMESPACE, OPERATOR, metric},
    scenario::{self, settled},
};
use gantry_kube_sim::{Fault, FaultPlan, FaultRule, RequestMatch, Verb};
use serde_json::json;

fn replicas(harness: &Harness) -> Option<serde_json::Value> {
    harness.field("statefulsets.apps", "gantry", "/spec/replicas")
}

fn autoscaler() -> serde_json::Value {
    json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": { "name": "gantry", "namespace": NAMESPACE },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "gantry" },
            "minReplicas": 1, "maxReplicas": 9,
        },
    })
}

#[tokio::test(start_paused = true)]
async fn autoscaler_owns_replicas_while_it_exists() {
    let harness = settled(2).await;
    harness.create_built_in(autoscaler()).await;
    harness.settle().await;
    assert_eq!(replicas(&harness), Some(2.into()), "starts from the current replicas");
    harness.scale("apps/v1", "StatefulSet", "gantry", 5).await;
    harness.settle().await;
    assert_eq!(replicas(&harness), Some(5.into()));
    assert!(harness.live("services", "gantry-4").is_some(), "one Service per replica");
    assert_eq!(harness.scheduler_servers().await["gantry"], "5 for \"operator:ml\"");
    // spec.replicas is ignored while the autoscaler exists, also after a restart.
    harness.change("Server", "gantry", json!({ "replicas": 3 })).await;
    harness.settle().await;
    let write_requests = harness.write_requests().len();
    harness.kill_operator();
    harness.start_operator();
    harness.settle().await;
    assert_eq!(replicas(&harness), Some(5.into()));
    assert_eq!(harness.write_requests().len(), write_requests);
    harness.delete_built_in("autoscaling/v2", "HorizontalPodAutoscaler", "gantry").await;
    harness.settle().await;
    assert_eq!(replicas(&harness), Some(3.into()));
    assert!(harness.live("services", "gantry-4").is_none());
}

/// Seldon's documented way: the autoscaler changes `spec.replicas` of the Server.
#[tokio::test(start_paused = true)]
async fn autoscaler_of_a_server_wins_over_requests_of_the_scheduler() {
    let harness = Harness::started().await;
    scenario::configure(&harness).await;
    let spec = json!({ "serverConfig": "builtin", "replicas": 1, "minReplicas": 1, "maxReplicas": 5 });
    harness.create(NAMESPACE, "Server", "gantry", spec).await;
    let mut autoscaler = autoscaler();
    autoscaler["spec"]["scaleTargetRef"] =
        json!({ "apiVersion": "mlops.seldon.io/v1alpha1", "kind": "Server", "name": "gantry" });
    harness.create_built_in(autoscaler).await;
    harness.settle().await;
    let mut model = scenario::model("iris");
    model["replicas"] = json!(2);
    harness.create(NAMESPACE, "Model", "iris", model).await;
    harness.settle().await;
    let wanted = async || harness.get("Server", "gantry").await.unwrap()["spec"]["replicas"].clone();
    assert_eq!((wanted().await, replicas(&harness)), (json!(1), Some(1.into())));
    assert_eq!(harness.events("ScalingRefused"), [] as [serde_json::Value; 0]);
    harness.scale("mlops.seldon.io/v1alpha1", "Server", "gantry", 3).await;
    harness.settle().await;
    assert_eq!((wanted().await, replicas(&harness)), (json!(3), Some(3.into())));
}

#[tokio::test(start_paused = true)]
async fn autoscaler_wakes_servers_only_when_its_target_changes() {
    let harness = settled(2).await;
    harness.kill_operator();
    let (metrics, _) = harness.start_operator_with(gantry_operator::Settings::default());
    harness.create_built_in(autoscaler()).await;
    harness.settle().await;
    let reconciles = || {
        let labels = |controller: &str| format!("controller=\"{controller}\",outcome=\"done\"");
        ["server", "seldonruntime"]
            .map(|name| metric(&metrics, "gantry_operator_reconciles_total", &labels(name)) as u64)
    };
    let before = reconciles();
    for replicas in 1..=20 {
        let status = json!({ "status": { "currentReplicas": replicas, "desiredReplicas": 2 } });
        let version =
            harness.field("horizontalpodautoscalers.autoscaling", "gantry", "/metadata/resourceVersion");
        harness.patch_status("autoscaling/v2", "HorizontalPodAutoscaler", "gantry", status).await;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let now =
            harness.field("horizontalpodautoscalers.autoscaling", "gantry", "/metadata/resourceVersion");
        assert_ne!(version, now);
    }
    assert_eq!(reconciles(), before);
    assert!(before[0] > 0);
    let other = json!({ "spec": { "scaleTargetRef": { "name": "another" } } });
    harness.patch("autoscaling/v2", "HorizontalPodAutoscaler", "gantry", other).await;
    harness.scale("apps/v1", "StatefulSet", "gantry", 5).await;
    harness.settle().await;
    assert_eq!(replicas(&harness), Some(2.into()), "the operator owns the replicas again");
}

#[tokio::test(start_paused = true)]
async fn scaling_requests_of_the_scheduler_are_bounded() {
    let harness = Harness::started().await;
    scenario::configure(&harness).await;
    let spec = json!({ "serverConfig": "builtin", "replicas": 1, "minReplicas": 1, "maxReplicas": 3 });
    harness.create(NAMESPACE, "Server", "gantry", spec).await;
    harness.settle().await;
    let mut model = scenario::model("iris");
    model["replicas"] = json!(2);
    harness.create(NAMESPACE, "Model", "iris", model).await;
    harness.settle().await;
    assert_eq!(replicas(&harness), Some(2.into()));
    assert_eq!(harness.get("Server", "gantry").await.unwrap()["spec"]["replicas"], 2);
}

#[tokio::test(start_paused = true)]
async fn rejected_apply_is_reported_and_not_retried() {
    let harness = settled(1).await;
    let claims = |size: &str| {
        let resources = json!({ "requests": { "storage": size } });
        let claim =
            json!({ "name": "models", "spec": { "accessModes": ["ReadWriteOnce"], "resources": resources } });
        json!({ "podSpec": scenario::pod("agent", "gantry:2"), "volumeClaimTemplates": [claim] })
    };
    harness.change_in(CONFIG_NAMESPACE, "ServerConfig", "builtin", claims("1Gi")).await;
    harness.settle().await;
    assert_eq!(harness.ready("Server", "gantry").await, ("False".into(), "ApplyRefused".into()));
    let write_requests = harness.write_requests().len();
    harness.kill_operator();
    harness.start_operator();
    harness.settle().await;
    assert!(
        harness.write_requests().len() <= write_requests + 1,
        "{:#?}",
        &harness.write_requests()[write_requests..]
    );
    // The immutable change is reverted.
    let without = json!({ "podSpec": scenario::pod("agent", "gantry:3"), "volumeClaimTemplates": null });
    harness.change_in(CONFIG_NAMESPACE, "ServerConfig", "builtin", without).await;
    harness.settle().await;
    assert_eq!(harness.ready("Server", "gantry").await, ("True".into(), "ServerReady".into()));
    let image = harness.field("statefulsets.apps", "gantry", "/spec/template/spec/containers/0/image");
    assert_eq!(image, Some("gantry:3".into()));
}

#[tokio::test(start_paused = true)]
async fn disable_auto_update_ignores_configuration_changes() {
    let harness = settled(1).await;
    harness.change("Server", "gantry", json!({ "disableAutoUpdate": true })).await;
    harness.settle().await;
    let image = || harness.field("statefulsets.apps", "gantry", "/spec/template/spec/containers/0/image");
    let newer = json!({ "podSpec": scenario::pod("agent", "gantry:2") });
    harness.change_in(CONFIG_NAMESPACE, "ServerConfig", "builtin", newer).await;
    harness.settle().await;
    assert_eq!(image(), Some("gantry:1".into()));
    harness.change("Server", "gantry", json!({ "replicas": 2 })).await;
    harness.settle().await;
    assert_eq!((image(), replicas(&harness)), (Some("gantry:1".into()), Some(2.into())));
    // A change of the Server itself uses the latest configuration.
    harness.change("Server", "gantry", json!({ "extraCapabilities": ["more"] })).await;
    harness.settle().await;
    assert_eq!(image(), Some("gantry:2".into()));
}

#[tokio::test(start_paused = true)]
async fn removed_field_is_removed_from_the_workload() {
    let harness = settled(1).await;
    let env = || harness.field("statefulsets.apps", "gantry", "/spec/template/spec/containers/0/env/0/name");
    assert_eq!(env(), Some("SELDON_SERVER_CAPABILITIES".into()));
    let mut without = scenario::pod("agent", "gantry:1");
    without["containers"][0].as_object_mut().unwrap().remove("env");
    harness.change_in(CONFIG_NAMESPACE, "ServerConfig", "builtin", json!({ "podSpec": without })).await;
    harness.settle().await;
    assert_eq!(env(), None);
}

#[tokio::test(start_paused = true)]
async fn no_object_is_created_for_a_deleted_server() {
    let harness = settled(1).await;
    let made = || {
        harness
            .object_counts()
            .into_iter()
            .filter(|(key, _)| key.contains("ml/gantry"))
            .map(|(_, n)| n.0)
            .sum::<u64>()
    };
    let before = made();
    // The operator sees the owned objects go, but not the deletion of the Server.
    harness.kube.freeze("servers.mlops.seldon.io");
    harness.delete("Server", "gantry").await;
    harness.settle().await;
    assert!(harness.live("statefulsets.apps", "gantry").is_none());
    assert_eq!(made(), before, "{:#?}", harness.write_requests());
    harness.kube.release("servers.mlops.seldon.io");
    harness.settle().await;
    assert_eq!(made(), before);
}

#[tokio::test(start_paused = true)]
async fn server_recreated_during_reconcile_is_reconciled() {
    let harness = settled(1).await;
    harness.kube.freeze("servers.mlops.seldon.io");
    // The operator sees the owned objects go and lists the Server; the response is delayed.
    let on = RequestMatch {
        actor: Some(OPERATOR.into()),
        verb: Some(Verb::List),
        kind: Some("Server".into()),
        ..RequestMatch::default()
    };
    let then = Fault::Delay { millis: 8_000 };
    harness.kube.start(FaultPlan { rules: vec![FaultRule { on, nth: 1, times: 1, then }] });
    harness.delete("Server", "gantry").await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    harness.create(NAMESPACE, "Server", "gantry", json!({ "serverConfig": "builtin" })).await;
    harness.kube.release("servers.mlops.seldon.io");
    harness.settle().await;
    assert_eq!(harness.ready("Server", "gantry").await, ("True".into(), "ServerReady".into()));
}

#[tokio::test(start_paused = true)]
async fn object_deleted_during_watch_gap_is_recreated() {
    let harness = settled(1).await;
    harness.kube.freeze("services");
    harness.delete_built_in("v1", "Service", "gantry-0").await;
    // The watch expires and lists again.
    harness.kube.with(|state| state.compact(state.revision()));
    harness.kube.release("services");
    harness.settle().await;
    assert!(harness.live("services", "gantry-0").is_some());
}

#[tokio::test(start_paused = true)]
async fn failed_write_is_retried() {
    let harness = Harness::prepared().await;
    let on = RequestMatch { actor: Some(OPERATOR.into()), writes: true, ..RequestMatch::default() };
    harness
        .kube
        .start(FaultPlan { rules: vec![FaultRule { on, nth: 1, times: 3, then: Fault::InternalError }] });
    harness.start_operator();
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    harness.settle().await;
    assert_eq!(harness.ready("Model", "iris").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn status_of_an_older_generation_is_ignored() {
    let harness = settled(1).await;
    assert_eq!(harness.ready("Server", "gantry").await.0, "True");
    harness.stop_controllers();
    let over = json!({ "podSpec": { "nodeSelector": { "disk": "ssd" } } });
    harness.change("Server", "gantry", over).await;
    harness.settle().await;
    assert_eq!(harness.ready("Server", "gantry").await, ("False".into(), "Progressing".into()));
    harness.start_controllers();
    harness.settle().await;
    assert_eq!(harness.ready("Server", "gantry").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn server_condition_names_the_missing_component() {
    let harness = settled(1).await;
    let reason = async || harness.ready("Server", "gantry").await.1;
    assert_eq!(reason().await, "ServerReady");
    harness.set_agent(false);
    harness.settle().await;
    assert_eq!(reason().await, "ReplicasJoining");
    harness.set_agent(true);
    harness.settle().await;
    assert_eq!(reason().await, "ServerReady");
    harness.kill_scheduler();
    harness.settle().await;
    assert_eq!(reason().await, "SchedulerUnreachable");
    harness.start_scheduler();
    harness.settle().await;
    assert_eq!(reason().await, "ServerReady");
}
