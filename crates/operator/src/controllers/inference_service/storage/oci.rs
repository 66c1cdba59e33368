//! Models in OCI images: a container whose file system the model server reads ("modelcar"), or a volume of the image.

use super::{Storage, VOLUME, main_container, mount_volume, volume_name};
use crate::{
    controllers::inference_service::{
        config::OciMode,
        pod::{MAIN, MODEL_DIR, TRANSFORMER, add_env, name_of, set},
    },
    workload::merge,
};
use serde_json::{Value, json};

const MODELCAR: &str = "modelcar";
const INIT: &str = "modelcar-init";
/// Name of the image's volume at [`MODEL_DIR`].
const IMAGE_VOLUME: &str = "oci-model";
/// Where an image has its model, without the first slash.
const IMAGE_DIR: &str = "models";

/// Whether a URI names an OCI image.
pub(super) fn is_oci(uri: &str) -> bool {
    uri.starts_with("oci://") || uri.starts_with("oci+")
}

impl Storage<'_> {
    pub(super) fn add_oci(&self, pod: &mut Value, uri: &str, mount: &str) -> Result<(), String> {
        let (mode, image) = self.oci_mode(uri)?;
        if image.is_empty() {
            return Err(format!("storageUri {uri} names no image: write oci://REGISTRY/IMAGE:TAG"));
        }
        match mode {
            OciMode::Native => {
                add_image_volume(pod, image, mount);
                Ok(())
            }
            OciMode::Modelcar => self.add_modelcar(pod, uri, image, mount),
        }
    }

    /// The scheme may name the mode; else that of the `ConfigMap` counts.
    fn oci_mode<'a>(&self, uri: &'a str) -> Result<(OciMode, &'a str), String> {
        let (scheme, image) = uri.split_once("://").unwrap_or((uri, ""));
        let mode = match scheme.strip_prefix("oci+") {
            None => self.config.storage_initializer.oci_mode(),
            Some(mode) => OciMode::parse(mode),
        };
        mode.map(|mode| (mode, image)).map_err(|problem| format!("storageUri {uri}: {problem}"))
    }

    /// The containers of a pod share their processes: the model server reads the model below `/proc` of the modelcar.
    fn add_modelcar(&self, pod: &mut Value, uri: &str, image: &str, mount: &str) -> Result<(), String> {
        let parent = mount.trim_end_matches('/').rsplit_once('/').map_or("", |(parent, _)| parent);
        if parent.is_empty() {
            return Err(format!("storageUri {uri} is mounted at {mount}: use a directory below another one"));
        }
        let containers = || pod.get("containers").and_then(Value::as_array).into_iter().flatten();
        if containers().any(|container| name_of(container) == MODELCAR) {
            return Err(format!("storageUri {uri} is the second image of this pod: use oci+native://"));
        }
        let config = &self.config.storage_initializer;
        let amount = json!({ "cpu": config.cpu_modelcar, "memory": config.memory_modelcar });
        let resources = json!({ "limits": amount, "requests": amount });
        let at = json!({ "name": VOLUME, "mountPath": parent });
        // Kubernetes turns two dollars into one.
        let link = format!("ln -sfn /proc/$$$$/root/{IMAGE_DIR} {mount} && exec sleep infinity");
        let check = format!(
            "[ \"$$(ls -A /{IMAGE_DIR} 2>/dev/null)\" ] || {{ echo '{uri}: the image has no model in /{IMAGE_DIR}'; exit 1; }}"
        );
        let container = |name: &str, script: String| {
            json!({
                "name": name, "image": image, "args": ["sh", "-c", script], "resources": resources,
                "terminationMessagePolicy": "FallbackToLogsOnError",
            })
        };
        let user = config.uid_modelcar.map(|uid| json!({ "securityContext": { "runAsUser": uid } }));
        let containers = pod.get_mut("containers").and_then(Value::as_array_mut);
        for (index, container) in containers.into_iter().flatten().enumerate() {
            if index == 0 || [MAIN, TRANSFORMER].contains(&name_of(container)) {
                // The model may appear after the server has started.
                add_env(container, "MODEL_INIT_MODE", "async");
                *container = merge(container, &json!({ "volumeMounts": [at] }));
                if let Some(user) = &user {
                    *container = merge(user, container);
                }
            }
        }
        // A process reads the files of another one of the same user only.
        let context = main_container(pod).and_then(|main| main.get("securityContext")).cloned();
        let context = context.unwrap_or_default();
        let mut modelcar = merge(&container(MODELCAR, link), &json!({ "volumeMounts": [at] }));
        let mut init = container(INIT, check);
        set(&mut modelcar, "securityContext", context.clone());
        set(&mut init, "securityContext", context);
        let added = json!({ "volumes": [{ "name": VOLUME, "emptyDir": {} }], "initContainers": [init] });
        *pod = merge(&added, pod);
        set(pod, "shareProcessNamespace", true.into());
        if let Some(containers) = pod.get_mut("containers").and_then(Value::as_array_mut) {
            containers.push(modelcar);
        }
        Ok(())
    }
}

fn add_image_volume(pod: &mut Value, image: &str, mount: &str) {
    let name = if mount == MODEL_DIR { IMAGE_VOLUME.into() } else { volume_name(mount) };
    let source = json!({ "reference": image, "pullPolicy": "IfNotPresent" });
    *pod = merge(pod, &json!({ "volumes": [{ "name": name, "image": source }] }));
    let at = json!({ "name": name, "mountPath": mount, "subPath": IMAGE_DIR, "readOnly": true });
    mount_volume(pod, &at);
}
