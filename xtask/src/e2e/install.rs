//! Installation as in docs/install.md, with a runtime, a server and models.

use super::{harness::Harness, volumes};
use crate::{Failure, manifests};
use serde_json::{Value, json};
use std::{fs, path::PathBuf};

/// The applied manifests of the chart.
pub(super) struct Installed {
    manifests: PathBuf,
}

/// Installs the CRDs and the chart with these values, and waits until the operator is ready.
pub(super) fn install(harness: &Harness, values: &[&str]) -> Result<Installed, Failure> {
    let crds = manifests::directory().join("crds.yaml");
    harness.apply_file(&crds, &["--server-side", "--force-conflicts"])?;
    let crds = crds.display().to_string();
    harness.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "--filename", &crds])?;
    let (repository, tag) = harness.image().rsplit_once(':').ok_or("the image has no tag")?;
    let image = format!("image.repository={repository},image.tag={tag}");
    let values = [&["--set", &image], values].concat();
    let installed = Installed { manifests: harness.directory("chart")?.join("manifests.yaml") };
    fs::write(&installed.manifests, manifests::render(&harness.namespace(), &values)?)?;
    harness.apply_file(&installed.manifests, &[])?;
    harness.kubectl(&["rollout", "status", "deployment/gantry-operator", "--timeout=120s"])?;
    Ok(installed)
}

impl Installed {
    /// Uninstalls in the order of docs/install.md: resources with finalizers first.
    pub(super) fn uninstall(&self, harness: &Harness) -> Result<(), Failure> {
        harness.kubectl(&["delete", "models,servers,seldonruntimes", "--all", "--timeout=120s"])?;
        let manifests = self.manifests.display().to_string();
        harness.kubectl(&["delete", "--filename", &manifests, "--timeout=120s"]).map(drop)
    }
}

/// Creates a runtime with two gateways and a Server with two replicas and the model volume; waits until ready.
pub(super) fn serve(harness: &Harness) -> Result<(), Failure> {
    // For the scheduler's state.
    volumes::provision(harness, 1)?;
    volumes::with_models(harness)?;
    harness.apply(object(
        "SeldonRuntime",
        "seldon",
        &json!({
            "seldonConfig": "default",
            "overrides": [{ "name": "seldon-gateway", "replicas": 2 }],
        }),
    ))?;
    harness.apply(object("Server", "gantry", &json!({
        "serverConfig": "gantry",
        "replicas": 2,
        "podSpec": {
            "containers": [{
                "name": "agent",
                "env": [{ "name": "GANTRY_LOCAL_ROOTS", "value": "/mnt/shop" }],
                "volumeMounts": [{ "name": "shop", "mountPath": "/mnt/shop", "readOnly": true }],
            }],
            "volumes": [{ "name": "shop", "persistentVolumeClaim": { "claimName": "models", "readOnly": true } }],
        },
    })))?;
    harness.wait_for("condition=Ready", &["seldonruntime/seldon", "server/gantry"], 180)
}

/// Creates a model from a folder of the mounted volume, and waits until it is ready.
pub(super) fn model(
    harness: &Harness,
    name: &str,
    folder: &str,
    requirement: &str,
    replicas: u32,
) -> Result<(), Failure> {
    harness.apply(object(
        "Model",
        name,
        &json!({
            "storageUri": format!("/mnt/shop/{folder}"),
            "requirements": [requirement],
            "replicas": replicas,
        }),
    ))?;
    harness.wait_for("condition=Ready", &[&format!("model/{name}")], 60)
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "mlops.seldon.io/v1alpha1",
        "kind": kind,
        "metadata": { "name": name },
        "spec": spec,
    })
}
