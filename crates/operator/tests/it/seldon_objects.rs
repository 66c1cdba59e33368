//! What Servers and runtimes have in common with Seldon's: inherited labels and annotations, names of Services, volumes of
//! Deployments.

use crate::{
    harness::{CONFIG_NAMESPACE, Harness, NAMESPACE},
    scenario::{self, settled},
};
use gantry_operator::Settings;
use serde_json::{Value, json};

const SET: &str = "statefulsets.apps";

/// A label or annotation of a workload, and of its pods.
fn both(harness: &Harness, kind: &str, name: &str, pointer: &str) -> [Option<Value>; 2] {
    ["/metadata", "/spec/template/metadata"].map(|at| harness.field(kind, name, &format!("{at}{pointer}")))
}

async fn label(harness: &Harness, namespace: &str, kind: &str, name: &str, labels: Value) {
    harness.patch_custom(namespace, kind, name, json!({ "metadata": { "labels": labels } })).await;
    harness.settle().await;
}

#[tokio::test(start_paused = true)]
async fn label_changes_of_a_server_and_its_configuration_reach_the_pods() {
    let harness = settled(1).await;
    let team = || both(&harness, SET, "gantry", "/labels/team");
    let is = |value: &str| [Some(value.into()), Some(value.into())];
    label(&harness, CONFIG_NAMESPACE, "ServerConfig", "builtin", json!({ "team": "red" })).await;
    assert_eq!(team(), is("red"));
    label(&harness, NAMESPACE, "Server", "gantry", json!({ "team": "blue" })).await;
    assert_eq!(team(), is("blue"), "the Server wins");
    // Drift is corrected.
    let drift = json!({ "spec": { "template": { "metadata": { "labels": { "team": "green" } } } } });
    harness.patch("apps/v1", "StatefulSet", "gantry", drift).await;
    harness.settle().await;
    assert_eq!(team(), is("blue"));
    label(&harness, NAMESPACE, "Server", "gantry", json!({ "team": null })).await;
    assert_eq!(team(), is("red"));
    label(&harness, CONFIG_NAMESPACE, "ServerConfig", "builtin", json!({ "team": null })).await;
    assert_eq!(team(), [None, None]);
    assert_eq!(harness.ready("Server", "gantry").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn component_metadata_wins_over_that_of_the_runtime_and_its_configuration() {
    let harness = settled(1).await;
    for (namespace, kind, name, value) in [
        (CONFIG_NAMESPACE, "SeldonConfig", "default", "config"),
        (NAMESPACE, "SeldonRuntime", "seldon", "runtime"),
    ] {
        let annotations = json!({ "of": value, value: "1", "gantry.dev/own": "1" });
        let metadata = json!({ "metadata": { "annotations": annotations } });
        harness.patch_custom(namespace, kind, name, metadata).await;
    }
    let mut components =
        harness.get_in(CONFIG_NAMESPACE, "SeldonConfig", "default").await.unwrap()["spec"].clone();
    components["components"][1]["annotations"] = json!({ "of": "component" });
    harness.change_in(CONFIG_NAMESPACE, "SeldonConfig", "default", components).await;
    harness.settle().await;
    for (kind, name, of) in
        [(SET, "seldon-scheduler", "runtime"), ("deployments.apps", "seldon-gateway", "component")]
    {
        let annotation = |key: &str| both(&harness, kind, name, &format!("/annotations/{key}"));
        assert_eq!(annotation("of"), [Some(of.into()), Some(of.into())], "{name}");
        for inherited in ["config", "runtime"] {
            assert_eq!(annotation(inherited), [Some("1".into()), Some("1".into())], "{name} {inherited}");
        }
        assert_eq!(annotation("gantry.dev~1own"), [None, None], "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn deployment_has_volumes_instead_of_claims() {
    let harness = Harness::prepared().await;
    harness.start_operator_with(Settings {
        namespace: CONFIG_NAMESPACE.into(),
        use_deployments: true,
        image: "gantry:1".into(),
        ..Settings::default()
    });
    let claim = json!({ "name": "models", "spec": { "accessModes": ["ReadWriteOnce"] } });
    let config = json!({ "podSpec": scenario::pod("agent", "gantry:1"), "volumeClaimTemplates": [claim] });
    harness.create(CONFIG_NAMESPACE, "ServerConfig", "builtin", config).await;
    harness.create(NAMESPACE, "Server", "gantry", json!({ "serverConfig": "builtin" })).await;
    harness.settle().await;
    let volumes = harness.field("deployments.apps", "gantry", "/spec/template/spec/volumes");
    assert_eq!(volumes, Some(json!([{ "name": "models", "emptyDir": {} }])));
}

#[tokio::test(start_paused = true)]
async fn replica_and_mesh_services_have_the_labels_of_seldon() {
    let harness = settled(2).await;
    let label =
        |name: &str, label: &str| harness.field("services", name, &format!("/metadata/labels/{label}"));
    assert_eq!(label("gantry-1", "seldon-server-replica"), Some("gantry".into()));
    assert_eq!(label("gantry-1", "seldon-server-replica-name"), Some("gantry-1".into()));
    assert_eq!(label("seldon-mesh", "app.kubernetes.io~1name"), Some("seldon-envoy".into()));
    assert_eq!(harness.field("services", "seldon-mesh", "/spec/ports/0/name"), Some("data".into()));
    assert_eq!(harness.field("services", "seldon-mesh", "/spec/ports/1"), None);
}

#[tokio::test(start_paused = true)]
async fn disable_auto_update_ignores_labels_of_the_configuration() {
    let harness = settled(1).await;
    harness.change("Server", "gantry", json!({ "disableAutoUpdate": true })).await;
    harness.settle().await;
    label(&harness, CONFIG_NAMESPACE, "ServerConfig", "builtin", json!({ "team": "red" })).await;
    let team = || harness.field(SET, "gantry", "/spec/template/metadata/labels/team");
    assert_eq!(team(), None);
    label(&harness, NAMESPACE, "Server", "gantry", json!({ "cost": "7" })).await;
    assert_eq!(team(), Some("red".into()), "a change of the Server uses the latest configuration");
}

#[tokio::test(start_paused = true)]
async fn taken_name_of_the_optional_service_leaves_the_server_ready() {
    let harness = Harness::started().await;
    scenario::configure(&harness).await;
    let theirs = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "gantry", "namespace": NAMESPACE },
        "spec": { "selector": { "app": "mine" }, "ports": [{ "name": "metrics", "port": 9006 }] },
    });
    harness.create_built_in(theirs).await;
    let before = harness.live("services", "gantry");
    harness.create(NAMESPACE, "Server", "gantry", json!({ "serverConfig": "builtin" })).await;
    harness.settle().await;
    assert_eq!(harness.ready("Server", "gantry").await, ("True".into(), "ServerReady".into()));
    let ready = harness.get("Server", "gantry").await.unwrap()["status"]["conditions"].to_string();
    assert!(ready.contains("cannot create Service gantry"), "{ready}");
    assert_eq!(harness.live("services", "gantry"), before);
    harness.delete_built_in("v1", "Service", "gantry").await;
    harness.settle().await;
    let selector = harness.field("services", "gantry", "/spec/selector/seldon-server-name");
    assert_eq!(selector, Some("gantry".into()));
}
