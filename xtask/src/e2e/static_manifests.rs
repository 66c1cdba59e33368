//! deploy/static without operator and CRDs, with the image set by kustomize, driven by the `gantry` CLI as in
//! docs/kubernetes.md.

use super::{harness::Harness, inference_check::InferenceCheck, port_forward::PortForward, volumes};
use crate::{Failure, metadata};
use serde_json::json;
use std::fs;

pub(super) fn run(harness: &Harness) -> Result<(), Failure> {
    // The state of the scheduler and of two agents.
    volumes::provision(harness, 3)?;
    let directory = kustomized(harness)?;
    harness.kubectl(&["apply", "--kustomize", &directory])?;
    for workload in ["statefulset/gantry-scheduler", "deployment/gantry-gateway", "statefulset/gantry"] {
        harness.kubectl(&["rollout", "status", workload, "--timeout=120s"])?;
    }
    let objects = harness.kubectl(&["get", "serviceaccounts,secrets,roles,rolebindings", "--output=name"])?;
    if objects.lines().any(|object| object.starts_with("role") || object.starts_with("secret")) {
        return Err(format!("deploy/static needs no RBAC, but it creates: {objects}").into());
    }

    let scheduler = PortForward::to(harness, "service/gantry-scheduler", 9004)?;
    let at = format!("--scheduler=127.0.0.1:{}", scheduler.port);
    let manifest = harness.directory("model")?.join("iris.yaml");
    fs::write(
        &manifest,
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata:\n  name: iris\nspec:\n  storageUri: /mnt/shop\n  \
         requirements: [onnx]\n  replicas: 2\n",
    )?;
    let manifest = manifest.display().to_string();
    harness.gantry(&["apply", "-f", &manifest, "--wait", &at])?;
    InferenceCheck::iris(harness.service("gantry-gateway", 80)?)?;
    let gateway = PortForward::to(harness, "service/gantry-gateway", 80)?;
    let inference = format!("--inference=127.0.0.1:{}", gateway.port);
    harness.gantry(&["infer", "iris", "[[5.1, 3.5, 1.4, 0.2]]", &inference])?;
    let status = harness.gantry(&["status", &at])?;
    if !status.contains("2/2") {
        return Err(format!("gantry status does not show both replicas:\n{status}").into());
    }
    drop((scheduler, gateway));

    // Desired state survives the scheduler's pod.
    harness.kubectl(&["delete", "pod/gantry-scheduler-0", "--timeout=60s"])?;
    harness.kubectl(&["rollout", "status", "statefulset/gantry-scheduler", "--timeout=120s"])?;
    let scheduler = PortForward::to(harness, "service/gantry-scheduler", 9004)?;
    let at = format!("--scheduler=127.0.0.1:{}", scheduler.port);
    harness.gantry(&["wait", "model/iris", "--for=ready", "--timeout", "60s", &at])?;
    InferenceCheck::iris(harness.service("gantry-gateway", 80)?)?;
    harness.gantry(&["delete", "model/iris", "--wait", &at]).map(drop)
}

/// A copy of deploy/static with a kustomization for the image and a model volume.
fn kustomized(harness: &Harness) -> Result<String, Failure> {
    let directory = harness.directory("static")?;
    let mut resources = Vec::new();
    for entry in fs::read_dir(metadata::root().join("deploy/static"))? {
        let file = entry?.path();
        if let Some(name) = file.file_name().filter(|_| file.extension().is_some_and(|e| e == "yaml")) {
            fs::copy(&file, directory.join(name))?;
            resources.push(name.to_string_lossy().into_owned());
        }
    }
    fs::copy(metadata::root().join("examples/quickstart/iris/model.onnx"), directory.join("model.onnx"))?;
    let (name, tag) = harness.image().rsplit_once(':').ok_or("the image has no tag")?;
    let volume = json!([
        { "op": "add", "path": "/spec/template/spec/volumes/-",
          "value": { "name": "shop", "configMap": { "name": "shop" } } },
        { "op": "add", "path": "/spec/template/spec/containers/0/volumeMounts/-",
          "value": { "name": "shop", "mountPath": "/mnt/shop", "readOnly": true } },
        { "op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--local-root=/mnt/shop" },
    ]);
    let kustomization = json!({
        "namespace": harness.namespace(),
        "resources": resources,
        "images": [{ "name": "gantry", "newName": name, "newTag": tag }],
        "configMapGenerator": [{ "name": "shop", "files": ["model.onnx"] }],
        "generatorOptions": { "disableNameSuffixHash": true },
        "patches": [{ "target": { "kind": "StatefulSet", "name": "gantry$" }, "patch": volume.to_string() }],
    });
    fs::write(directory.join("kustomization.yaml"), format!("{kustomization:#}\n"))?;
    Ok(directory.display().to_string())
}
