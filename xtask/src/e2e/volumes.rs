//! Persistent volumes: directories of this machine, available on every node.

use super::harness::Harness;
use crate::{Failure, metadata};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

const CLASS: &str = "directories";

/// Creates the default storage class. It has no provisioner: [`provision`] creates volumes in advance.
pub(super) fn create_class(harness: &Harness) -> Result<(), Failure> {
    harness.apply(json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": { "name": CLASS, "annotations": { "storageclass.kubernetes.io/is-default-class": "true" } },
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "Immediate",
    }))
}

/// Creates empty volumes for the claims of this scenario.
pub(super) fn provision(harness: &Harness, count: usize) -> Result<(), Failure> {
    for number in 0..count {
        let name = format!("{}-{number}", harness.namespace());
        let path = harness.directory(&format!("volumes/{number}"))?;
        harness.apply(volume(&name, &path, "ReadWriteOnce"))?;
    }
    Ok(())
}

/// A volume with the models of examples/quickstart, and the claim `models` to it.
pub(super) fn with_models(harness: &Harness) -> Result<(), Failure> {
    let name = format!("{}-models", harness.namespace());
    let path = harness.directory("models")?;
    for model in ["iris/model.onnx", "fraud/model.json"] {
        let file = path.join(model);
        let folder = file.parent().ok_or("a model has a folder")?;
        fs::create_dir_all(folder)?;
        fs::copy(metadata::root().join("examples/quickstart").join(model), &file)?;
        for (path, mode) in [(folder, 0o755), (&file, 0o644)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
    }
    harness.apply(volume(&name, &path, "ReadOnlyMany"))?;
    harness.apply(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": "models" },
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "volumeName": name,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    }))
}

/// A local volume. Unlike a hostPath, it gets the fsGroup of the pod.
fn volume(name: &str, path: &Path, mode: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "5Gi" },
            "accessModes": [mode],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": CLASS,
            "local": { "path": path },
            // Any node, like network storage.
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{
                "matchExpressions": [{ "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] }],
            }]}},
        },
    })
}
