//! A pod reaches another through its Service by name; every other scenario depends on it.

use super::{harness::Harness, pod::pod};
use crate::Failure;
use serde_json::json;

pub(super) fn run(harness: &Harness) -> Result<(), Failure> {
    let serve = ["scheduler", "--host=0.0.0.0", "--allow-plaintext", "--state-dir=/state"];
    let mut scheduler = pod("scheduler", harness.image(), &serve);
    if let Some(spec) = scheduler.get_mut("spec").and_then(|s| s.as_object_mut()) {
        spec.insert("volumes".into(), json!([{ "name": "state", "emptyDir": {} }]));
    }
    if let Some(container) = scheduler.pointer_mut("/spec/containers/0").and_then(|c| c.as_object_mut()) {
        container.insert("volumeMounts".into(), json!([{ "name": "state", "mountPath": "/state" }]));
    }
    harness.apply(scheduler)?;
    harness.apply(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "scheduler" },
        "spec": { "selector": { "app": "scheduler" }, "ports": [{ "port": 80, "targetPort": 9004 }] },
    }))?;
    let phase = ["get", "pod/scheduler", "--output=jsonpath={.status.phase}"];
    harness.until("the scheduler to run", 60, &phase, |phase| phase == "Running")?;
    // A Service lags behind its pods: the client, which does not wait, is restarted until it succeeds.
    let mut client = pod("client", harness.image(), &["status", "--scheduler=scheduler:80"]);
    if let Some(spec) = client.get_mut("spec").and_then(|s| s.as_object_mut()) {
        spec.insert("restartPolicy".into(), json!("OnFailure"));
    }
    harness.apply(client)?;
    let phase = ["get", "pod/client", "--output=jsonpath={.status.phase}"];
    harness.until("the client to succeed", 90, &phase, |phase| phase == "Succeeded")
}
