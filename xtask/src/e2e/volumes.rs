//! Volumes as a cluster's storage would give them: directories of this machine, which every node reaches.

use super::world::World;
use crate::{Failure, metadata};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

/// The class of those who name none.
const CLASS: &str = "directories";

/// Makes the default class. Nobody provides its volumes on demand: [`offer`] does, beforehand.
pub(super) fn class(world: &World) -> Result<(), Failure> {
    world.apply(json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": { "name": CLASS, "annotations": { "storageclass.kubernetes.io/is-default-class": "true" } },
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "Immediate",
    }))
}

/// Makes so many empty volumes, for whoever of this scenario claims one.
pub(super) fn offer(world: &World, count: usize) -> Result<(), Failure> {
    for number in 0..count {
        let name = format!("{}-{number}", world.namespace());
        let place = world.place(&format!("volumes/{number}"))?;
        world.apply(volume(&name, &place, "ReadWriteOnce"))?;
    }
    Ok(())
}

/// A volume with the models of examples/quickstart, and the claim `models` to it.
pub(super) fn with_models(world: &World) -> Result<(), Failure> {
    let name = format!("{}-models", world.namespace());
    let place = world.place("models")?;
    for model in ["iris/model.onnx", "fraud/model.json"] {
        let file = place.join(model);
        let folder = file.parent().ok_or("a model lies in a folder")?;
        fs::create_dir_all(folder)?;
        fs::copy(metadata::root().join("examples/quickstart").join(model), &file)?;
        for (path, mode) in [(folder, 0o755), (&file, 0o644)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
    }
    world.apply(volume(&name, &place, "ReadOnlyMany"))?;
    world.apply(json!({
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

/// A directory as a volume. Unlike a directory named in a pod, it is given to the pod's group.
fn volume(name: &str, place: &Path, mode: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "5Gi" },
            "accessModes": [mode],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": CLASS,
            "local": { "path": place },
            // As with storage that is reached over a network, it does not matter on which node a pod is.
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{
                "matchExpressions": [{ "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] }],
            }]}},
        },
    })
}
