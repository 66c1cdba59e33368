//! Gantry installed as docs/install.md says, and something to serve with.

use super::{volumes, world::World};
use crate::{Failure, manifests};
use serde_json::{Value, json};
use std::{fs, path::PathBuf};

/// What the chart gave, and was applied.
pub(super) struct Installed {
    manifests: PathBuf,
}

/// Installs the kinds, then the chart with these values beside the image's name; waits until the operator is ready.
pub(super) fn install(world: &World, values: &[&str]) -> Result<Installed, Failure> {
    let kinds = manifests::directory().join("crds.yaml");
    world.apply_file(&kinds, &["--server-side", "--force-conflicts"])?;
    let kinds = kinds.display().to_string();
    world.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "--filename", &kinds])?;
    let (repository, tag) = world.image().rsplit_once(':').ok_or("the image has no tag")?;
    let image = format!("image.repository={repository},image.tag={tag}");
    let values = [&["--set", &image], values].concat();
    let installed = Installed { manifests: world.place("chart")?.join("manifests.yaml") };
    fs::write(&installed.manifests, manifests::render(&world.namespace(), &values)?)?;
    world.apply_file(&installed.manifests, &[])?;
    world.kubectl(&["rollout", "status", "deployment/gantry-operator", "--timeout=120s"])?;
    Ok(installed)
}

impl Installed {
    /// Removes everything, in the order that docs/install.md has: first what needs an operator to go.
    pub(super) fn uninstall(&self, world: &World) -> Result<(), Failure> {
        world.kubectl(&["delete", "models,servers,seldonruntimes", "--all", "--timeout=120s"])?;
        let manifests = self.manifests.display().to_string();
        world.kubectl(&["delete", "--filename", &manifests, "--timeout=120s"]).map(drop)
    }
}

/// A runtime with two gateways, a Server with two replicas of the built-in runtime and the volume of models; all ready.
pub(super) fn serve(world: &World) -> Result<(), Failure> {
    // One for the scheduler's state.
    volumes::offer(world, 1)?;
    volumes::with_models(world)?;
    world.apply(object(
        "SeldonRuntime",
        "seldon",
        &json!({
            "seldonConfig": "default",
            "overrides": [{ "name": "seldon-gateway", "replicas": 2 }],
        }),
    ))?;
    world.apply(object("Server", "gantry", &json!({
        "serverConfig": "gantry",
        "replicas": 2,
        "podSpec": {
            "containers": [{
                "name": "agent",
                "volumeMounts": [{ "name": "shop", "mountPath": "/mnt/shop", "readOnly": true }],
            }],
            "volumes": [{ "name": "shop", "persistentVolumeClaim": { "claimName": "models", "readOnly": true } }],
        },
    })))?;
    world.wait_for("condition=Ready", &["seldonruntime/seldon", "server/gantry"], 180)
}

/// A model from a folder of the mounted volume on so many replicas, ready.
pub(super) fn model(
    world: &World,
    name: &str,
    folder: &str,
    requirement: &str,
    replicas: u32,
) -> Result<(), Failure> {
    world.apply(object(
        "Model",
        name,
        &json!({
            "storageUri": format!("/mnt/shop/{folder}"),
            "requirements": [requirement],
            "replicas": replicas,
        }),
    ))?;
    world.wait_for("condition=Ready", &[&format!("model/{name}")], 60)
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "mlops.seldon.io/v1alpha1",
        "kind": kind,
        "metadata": { "name": name },
        "spec": spec,
    })
}
