//! Simulated nodes with kwok.

use super::{cluster::Cluster, control_plane::succeeds};
use crate::{Failure, ports};
use serde_json::{Value, json};
use std::process::Command;

/// Annotation and taint of kwok's nodes.
const KWOK_NODE: &str = "kwok.x-k8s.io/node";

/// Starts kwok with this many nodes.
pub(crate) fn start(cluster: &Cluster, count: u32) -> Result<(), Failure> {
    let [port] = ports::free()?;
    let mut command = Command::new(cluster.programs().path("kwok"));
    command.args([
        format!("--kubeconfig={}", cluster.kubeconfig().display()),
        format!("--config={}", cluster.programs().kwok_stages().display()),
        format!("--manage-nodes-with-annotation-selector={KWOK_NODE}=fake"),
        "--cidr=10.245.0.0/16".to_owned(),
        "--node-ip=127.0.0.1".to_owned(),
        "--node-lease-duration-seconds=40".to_owned(),
        format!("--server-address=127.0.0.1:{port}"),
    ]);
    cluster.directory().start("kwok", &mut command)?;
    let nodes: Vec<Value> = (1..=count).map(node).collect();
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": nodes }))?;
    cluster.directory().wait("kwok", 120, || {
        let ready = ["wait", "--for=condition=Ready", "nodes", "--selector=type=kwok", "--timeout=10s"];
        succeeds(cluster.kubectl().args(ready))
    })
}

fn node(number: u32) -> Value {
    let name = format!("kwok-{number}");
    let room = json!({ "cpu": "32", "memory": "256Gi", "pods": "110" });
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": { KWOK_NODE: "fake" },
            "labels": {
                "type": "kwok",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            },
        },
        "spec": { "taints": [{ "key": KWOK_NODE, "value": "fake", "effect": "NoSchedule" }] },
        "status": { "allocatable": room, "capacity": room },
    })
}
