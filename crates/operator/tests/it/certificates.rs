//! Issued certificates in the pods of runtimes and Servers.

use crate::harness::{CONFIG_NAMESPACE, Harness, NAMESPACE, OPERATOR, settings};
use gantry_operator::Settings;
use serde_json::{Value, json};

const SCHEDULER: (&str, &str) = ("statefulsets.apps", "seldon-scheduler");
const GATEWAY: (&str, &str) = ("deployments.apps", "seldon-gateway");
const SERVER: (&str, &str) = ("statefulsets.apps", "gantry");

fn issuing() -> Settings {
    Settings { issues_certificates: true, ..settings() }
}

/// A runtime and a Server as installed.
async fn configure(harness: &Harness) {
    let pod = |name: &str, args: Value| json!({ "containers": [{ "name": name, "image": "gantry:1", "args": args }] });
    let components = json!({ "components": [
        { "name": "seldon-scheduler", "podSpec": pod("scheduler", json!(["scheduler", "--allow-plaintext"])),
          "volumeClaimTemplates": [{ "name": "state", "spec": { "accessModes": ["ReadWriteOnce"] } }] },
        { "name": "seldon-gateway", "podSpec": pod("gateway", json!(["gateway", "--scheduler=seldon-scheduler:9004"])) },
    ]});
    harness.create(CONFIG_NAMESPACE, "SeldonConfig", "default", components).await;
    let server = json!({ "podSpec": pod("agent", json!(["agent"])) });
    harness.create(CONFIG_NAMESPACE, "ServerConfig", "builtin", server).await;
    harness.create(NAMESPACE, "SeldonRuntime", "seldon", json!({ "seldonConfig": "default" })).await;
    let spec = json!({ "serverConfig": "builtin", "replicas": 1 });
    harness.create(NAMESPACE, "Server", "gantry", spec).await;
    harness.settle().await;
}

fn has_certificates(harness: &Harness, (kind, name): (&str, &str)) -> bool {
    let volumes = harness.field(kind, name, "/spec/template/spec/volumes").unwrap_or_default();
    volumes.to_string().contains("-tls\"")
}

fn allows_plaintext(harness: &Harness) -> bool {
    let args = harness.field(SCHEDULER.0, SCHEDULER.1, "/spec/template/spec/containers/0/args");
    args.unwrap().to_string().contains("--allow-plaintext")
}

/// Writes of workloads, in their order.
fn rollouts(harness: &Harness, from: usize) -> Vec<String> {
    let entries = harness.kube.trace().entries;
    let written = entries.iter().skip(from).filter(|entry| entry.wrote && entry.actor == OPERATOR);
    let names = written.filter_map(|entry| entry.object.split_once(&format!(".apps {NAMESPACE}/")));
    names.map(|(_, name)| name.to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn new_installation_has_certificates_and_no_plaintext_ports() {
    let harness = Harness::prepared().await;
    harness.start_operator_with(issuing());
    configure(&harness).await;
    for workload in [SCHEDULER, GATEWAY, SERVER] {
        assert!(has_certificates(&harness, workload), "{workload:?}");
    }
    assert!(!allows_plaintext(&harness));
    // Each was written once.
    let mut written = rollouts(&harness, 0);
    written.sort();
    assert_eq!(written, ["gantry", "seldon-gateway", "seldon-scheduler"]);
}

#[tokio::test(start_paused = true)]
async fn plaintext_installation_moves_to_certificates_in_order() {
    let harness = Harness::started().await;
    configure(&harness).await;
    assert!(!has_certificates(&harness, SCHEDULER) && allows_plaintext(&harness));
    harness.kill_operator();
    let before = harness.kube.trace().entries.len();
    harness.start_operator_with(issuing());
    harness.settle().await;
    for workload in [SCHEDULER, GATEWAY, SERVER] {
        assert!(has_certificates(&harness, workload), "{workload:?}");
    }
    assert!(!allows_plaintext(&harness));
    let mut written = rollouts(&harness, before);
    written.get_mut(1..3).unwrap().sort();
    assert_eq!(written, ["seldon-scheduler", "gantry", "seldon-gateway", "seldon-scheduler"]);
    assert_eq!(harness.ready("SeldonRuntime", "seldon").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn plaintext_ports_stay_open_until_every_pod_is_replaced() {
    let harness = Harness::started().await;
    configure(&harness).await;
    harness.kill_operator();
    // No pod becomes ready any more.
    harness.stop_controllers();
    harness.start_operator_with(issuing());
    harness.settle().await;
    assert!(has_certificates(&harness, SCHEDULER) && allows_plaintext(&harness));
    assert!(!has_certificates(&harness, GATEWAY) && !has_certificates(&harness, SERVER));
    harness.start_controllers();
    harness.settle().await;
    assert!(!allows_plaintext(&harness) && has_certificates(&harness, SERVER));
}
