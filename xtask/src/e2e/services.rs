//! A pod reaches another through its Service, by its name: what every other scenario stands on.

use super::{pod::pod, world::World};
use crate::Failure;
use serde_json::json;

pub(super) fn run(world: &World) -> Result<(), Failure> {
    let serve = ["scheduler", "--host=0.0.0.0", "--allow-plaintext", "--state-dir=/state"];
    let mut scheduler = pod("scheduler", world.image(), &serve);
    if let Some(spec) = scheduler.get_mut("spec").and_then(|s| s.as_object_mut()) {
        spec.insert("volumes".into(), json!([{ "name": "state", "emptyDir": {} }]));
    }
    if let Some(container) = scheduler.pointer_mut("/spec/containers/0").and_then(|c| c.as_object_mut()) {
        container.insert("volumeMounts".into(), json!([{ "name": "state", "mountPath": "/state" }]));
    }
    world.apply(scheduler)?;
    world.apply(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "scheduler" },
        "spec": { "selector": { "app": "scheduler" }, "ports": [{ "port": 80, "targetPort": 9004 }] },
    }))?;
    let phase = ["get", "pod/scheduler", "--output=jsonpath={.status.phase}"];
    world.until("the scheduler's start", 60, &phase, |said| said == "Running")?;
    // A Service answers a moment after its pods are there: the client, which does not wait, is started again until then.
    let mut client = pod("client", world.image(), &["status", "--scheduler=scheduler:80"]);
    if let Some(spec) = client.get_mut("spec").and_then(|s| s.as_object_mut()) {
        spec.insert("restartPolicy".into(), json!("OnFailure"));
    }
    world.apply(client)?;
    let phase = ["get", "pod/client", "--output=jsonpath={.status.phase}"];
    world.until("the client's answer", 90, &phase, |said| said == "Succeeded")
}
