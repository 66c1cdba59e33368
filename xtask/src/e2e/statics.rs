//! Inside, without operator and kinds: deploy/static, with the image put in by kustomize, driven by `gantry` on this
//! machine as docs/kubernetes.md says.

use super::{question::Question, volumes, world::World};
use crate::{Failure, metadata};
use serde_json::json;
use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, ChildStdout, Stdio},
};

pub(super) fn run(world: &World) -> Result<(), Failure> {
    // The scheduler's state, and what each of two agents keeps.
    volumes::offer(world, 3)?;
    let place = kustomized(world)?;
    world.kubectl(&["apply", "--kustomize", &place])?;
    for workload in ["statefulset/gantry-scheduler", "deployment/gantry-gateway", "statefulset/gantry"] {
        world.kubectl(&["rollout", "status", workload, "--timeout=120s"])?;
    }
    let kinds = world.kubectl(&["get", "serviceaccounts,secrets,roles,rolebindings", "--output=name"])?;
    if kinds.lines().any(|object| object.starts_with("role") || object.starts_with("secret")) {
        return Err(format!("deploy/static needs no rights, and there are: {kinds}").into());
    }

    let scheduler = Forward::to(world, "service/gantry-scheduler", 9004)?;
    let at = format!("--scheduler=127.0.0.1:{}", scheduler.port);
    let manifest = world.place("model")?.join("iris.yaml");
    fs::write(
        &manifest,
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata:\n  name: iris\nspec:\n  storageUri: /mnt/shop\n  \
         requirements: [onnx]\n  replicas: 2\n",
    )?;
    let manifest = manifest.display().to_string();
    world.gantry(&["apply", "-f", &manifest, "--wait", &at])?;
    Question::iris(world.service("gantry-gateway", 80)?)?;
    let gateway = Forward::to(world, "service/gantry-gateway", 80)?;
    let inference = format!("--inference=127.0.0.1:{}", gateway.port);
    world.gantry(&["infer", "iris", "[[5.1, 3.5, 1.4, 0.2]]", &inference])?;
    let status = world.gantry(&["status", &at])?;
    if !status.contains("2/2") {
        return Err(format!("gantry status does not show both replicas:\n{status}").into());
    }
    drop((scheduler, gateway));

    // What was asked for outlives the scheduler's pod.
    world.kubectl(&["delete", "pod/gantry-scheduler-0", "--timeout=60s"])?;
    world.kubectl(&["rollout", "status", "statefulset/gantry-scheduler", "--timeout=120s"])?;
    let scheduler = Forward::to(world, "service/gantry-scheduler", 9004)?;
    let at = format!("--scheduler=127.0.0.1:{}", scheduler.port);
    world.gantry(&["wait", "model/iris", "--for=ready", "--timeout", "60s", &at])?;
    Question::iris(world.service("gantry-gateway", 80)?)?;
    world.gantry(&["delete", "model/iris", "--wait", &at]).map(drop)
}

/// A copy of deploy/static with a kustomization beside it: the image's name, and a model in a volume of the agents.
fn kustomized(world: &World) -> Result<String, Failure> {
    let place = world.place("static")?;
    let mut resources = Vec::new();
    for entry in fs::read_dir(metadata::root().join("deploy/static"))? {
        let file = entry?.path();
        if let Some(name) = file.file_name().filter(|_| file.extension().is_some_and(|e| e == "yaml")) {
            fs::copy(&file, place.join(name))?;
            resources.push(name.to_string_lossy().into_owned());
        }
    }
    fs::copy(metadata::root().join("examples/quickstart/iris/model.onnx"), place.join("model.onnx"))?;
    let (name, tag) = world.image().rsplit_once(':').ok_or("the image has no tag")?;
    let volume = json!([
        { "op": "add", "path": "/spec/template/spec/volumes/-",
          "value": { "name": "shop", "configMap": { "name": "shop" } } },
        { "op": "add", "path": "/spec/template/spec/containers/0/volumeMounts/-",
          "value": { "name": "shop", "mountPath": "/mnt/shop", "readOnly": true } },
    ]);
    let kustomization = json!({
        "namespace": world.namespace(),
        "resources": resources,
        "images": [{ "name": "gantry", "newName": name, "newTag": tag }],
        "configMapGenerator": [{ "name": "shop", "files": ["model.onnx"] }],
        "generatorOptions": { "disableNameSuffixHash": true },
        "patches": [{ "target": { "kind": "StatefulSet", "name": "gantry$" }, "patch": volume.to_string() }],
    });
    fs::write(place.join("kustomization.yaml"), format!("{kustomization:#}\n"))?;
    Ok(place.display().to_string())
}

/// A port of this machine that leads to a Service, for as long as this lives.
struct Forward {
    kubectl: Child,
    port: u16,
    /// Held, because kubectl ends when nobody listens to what it says.
    _said: Option<BufReader<ChildStdout>>,
}

impl Forward {
    fn to(world: &World, service: &str, port: u16) -> Result<Self, Failure> {
        let mut command = world.kubectl_command();
        command.args(["port-forward", service, &format!(":{port}")]);
        let mut kubectl =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        let mut said = kubectl.stdout.take().map(BufReader::new);
        if let Some(said) = &mut said {
            said.read_line(&mut line)?;
        }
        // Forwarding from 127.0.0.1:40001 -> 9004
        let chosen = line.split(" -> ").next().and_then(|from| from.rsplit_once(':')?.1.parse().ok());
        let mut forward = Self { kubectl, port: 0, _said: said };
        forward.port = chosen.ok_or_else(|| format!("kubectl port-forward says {line:?}"))?;
        Ok(forward)
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}
