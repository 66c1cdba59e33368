//! How a pod gets its model: an init container that downloads, or a volume.

mod oci;

use super::{
    config::Config,
    credentials::{Credentials, CredentialsBuilder},
    pod::{MAIN, MODEL_DIR, TRANSFORMER, add_env, set},
};
use crate::workload::merge;
use gantry_api::kserve::{ClusterStorageContainerSpec, FrameworkSpec, StorageUri, UriFormat};
use regex::Regex;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const INIT: &str = "storage-initializer";
const VOLUME: &str = "kserve-provision-location";
const CLAIM_VOLUME: &str = "kserve-pvc-source";
/// URI schemes of `gantry fetch`.
const SCHEMES: [&str; 8] = ["gs://", "s3://", "az://", "hf://", "https://", "http://", "file://", "abfs://"];

/// The surroundings of an artifact.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage<'a> {
    pub config: &'a Config,
    /// Our own image.
    pub image: &'a str,
    pub containers: &'a [ClusterStorageContainerSpec],
    pub annotations: &'a BTreeMap<String, String>,
    pub credentials: &'a Credentials,
}

impl Storage<'_> {
    /// Adds the artifact of a model to its pod.
    pub(super) fn add_model(&self, pod: &mut Value, model: &FrameworkSpec) -> Result<(), String> {
        if let Some(storage) = &model.storage {
            let (secret, key) = self.credentials_builder().storage_config(storage)?;
            let path = storage.path.as_deref().unwrap_or_default();
            let overrides = serde_json::to_string(&storage.parameters).unwrap_or_default();
            // The bucket may be in the Secret, whose values only the container reads.
            let kind = storage.parameters.get("type").map_or("s3", String::as_str);
            if kind != "s3" {
                return Err(format!("storage of type {kind} is not supported: use s3"));
            }
            let uri = storage.parameters.get("bucket").map_or_else(
                || format!("<scheme-placeholder>://{path}"),
                |bucket| format!("{kind}://{bucket}/{path}"),
            );
            let mut init = self.initializer(&[(uri, MODEL_DIR.to_owned())])?;
            let source = json!({ "secretKeyRef": { "name": secret, "key": key } });
            let env = json!([
                { "name": "STORAGE_CONFIG", "valueFrom": source },
                { "name": "STORAGE_OVERRIDE_CONFIG", "value": overrides },
            ]);
            init = merge(&init, &json!({ "env": env }));
            self.add_initializer(pod, init, MODEL_DIR);
            return Ok(());
        }
        match model.storage_uri.as_deref().map(str::trim).filter(|uri| !uri.is_empty()) {
            Some(uri) => self.add_uri(pod, uri, MODEL_DIR),
            None => Ok(()),
        }
    }

    /// Adds several artifacts; all that are downloaded share one volume.
    pub(super) fn add_uris(&self, pod: &mut Value, uris: &[StorageUri]) -> Result<(), String> {
        let mut downloads = Vec::new();
        for storage in uris {
            let mount = storage.mount_path.as_deref().unwrap_or(MODEL_DIR);
            if storage.uri.starts_with("pvc://") || self.is_image(&storage.uri) {
                self.add_uri(pod, &storage.uri, mount)?;
            } else {
                downloads.push((storage.uri.clone(), mount.to_owned()));
            }
        }
        if downloads.is_empty() {
            return Ok(());
        }
        let directories: Vec<&str> = downloads.iter().map(|(_, mount)| mount.as_str()).collect();
        let parent = common_parent(&directories);
        if parent == "/" {
            return Err("the mount paths of storageUris need a common directory other than /".into());
        }
        let mut init = self.initializer(&downloads)?;
        self.credentials_builder().add(pod, &mut init)?;
        self.add_initializer(pod, init, &parent);
        Ok(())
    }

    fn add_uri(&self, pod: &mut Value, uri: &str, mount: &str) -> Result<(), String> {
        if let Some(claim) = uri.strip_prefix("pvc://") {
            let (name, path) = claim.split_once('/').unwrap_or((claim, ""));
            if name.is_empty() {
                return Err(format!(
                    "storageUri {uri} names no PersistentVolumeClaim: write pvc://NAME/PATH"
                ));
            }
            let volume = if mount == MODEL_DIR { CLAIM_VOLUME.into() } else { volume_name(mount) };
            let source = json!({ "claimName": name });
            let added = json!({ "volumes": [{ "name": volume, "persistentVolumeClaim": source }] });
            *pod = merge(pod, &added);
            let mut at = json!({ "name": volume, "mountPath": mount, "readOnly": self.is_read_only() });
            if !path.trim_matches('/').is_empty() {
                set(&mut at, "subPath", path.trim_matches('/').into());
            }
            mount_volume(pod, &at);
            return Ok(());
        }
        if self.is_image(uri) {
            return self.add_oci(pod, uri, mount);
        }
        let mut init = self.initializer(&[(uri.to_owned(), mount.to_owned())])?;
        self.credentials_builder().add(pod, &mut init)?;
        self.add_initializer(pod, init, mount);
        Ok(())
    }

    /// A container of the cluster for these URIs comes first.
    fn is_image(&self, uri: &str) -> bool {
        oci::is_oci(uri) && !self.containers.iter().any(|container| supports(container, uri))
    }

    const fn credentials_builder(&self) -> CredentialsBuilder<'_> {
        CredentialsBuilder {
            config: self.config,
            annotations: self.annotations,
            credentials: self.credentials,
        }
    }

    fn is_read_only(&self) -> bool {
        self.annotations.get("storage.kserve.io/readonly").is_none_or(|value| value != "false")
    }

    /// The container that downloads: of the cluster if one supports the URI, else ours.
    fn initializer(&self, downloads: &[(String, String)]) -> Result<Value, String> {
        let pairs = downloads.iter().flat_map(|(uri, path)| [uri.clone(), path.clone()]);
        let uri = downloads.first().map(|(uri, _)| uri.as_str()).unwrap_or_default();
        let resources = &self.config.storage_initializer.resources;
        let base = json!({
            "name": INIT,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": {
                "requests": { "cpu": resources.cpu_request, "memory": resources.memory_request },
                "limits": { "cpu": resources.cpu_limit, "memory": resources.memory_limit },
            },
        });
        if let Some(custom) = self.containers.iter().find(|c| supports(c, uri)) {
            let mut init = merge(&base, &custom.container);
            set(&mut init, "name", INIT.into());
            set(&mut init, "args", pairs.collect::<Vec<_>>().into());
            return Ok(init);
        }
        if let Some((uri, _)) = downloads.iter().find(|(uri, _)| !is_supported(uri)) {
            return Err(format!(
                "storageUri {uri} is not supported: use one of {}, pvc://, oci://, or install a ClusterStorageContainer for it",
                SCHEMES.join(", ")
            ));
        }
        let args: Vec<String> = std::iter::once("fetch".to_owned()).chain(pairs).collect();
        let mut init = merge(&base, &json!({ "image": self.image, "args": args }));
        // The temporary directory of downloads is beside their target.
        add_env(&mut init, "HOME", "/tmp");
        Ok(init)
    }

    fn add_initializer(&self, pod: &mut Value, mut init: Value, mount: &str) {
        let at = json!({ "name": VOLUME, "mountPath": mount });
        // A namespace that restricts pods restricts their init containers too.
        if let Some(context) = main_container(pod).and_then(|main| main.get("securityContext"))
            && init.get("securityContext").is_none()
        {
            set(&mut init, "securityContext", context.clone());
        }
        init = merge(&init, &json!({ "volumeMounts": [at] }));
        let added = json!({ "initContainers": [init], "volumes": [{ "name": VOLUME, "emptyDir": {} }] });
        *pod = merge(&added, pod);
        mount_volume(pod, &json!({ "name": VOLUME, "mountPath": mount, "readOnly": self.is_read_only() }));
    }
}

fn is_supported(uri: &str) -> bool {
    SCHEMES.iter().any(|scheme| uri.starts_with(scheme)) || uri.starts_with("<scheme-placeholder>://")
}

fn supports(container: &ClusterStorageContainerSpec, uri: &str) -> bool {
    let is_init = container.workload_type.as_deref().is_none_or(|t| t.is_empty() || t == "initContainer");
    let matches = |format: &UriFormat| {
        let prefix = format.prefix.as_deref().filter(|prefix| !prefix.is_empty());
        let pattern = format.regex.as_deref().filter(|pattern| !pattern.is_empty());
        prefix.is_some_and(|prefix| uri.starts_with(prefix))
            || pattern.is_some_and(|p| Regex::new(p).is_ok_and(|pattern| pattern.is_match(uri)))
    };
    is_init && container.supported_uri_formats.iter().any(matches)
}

/// Mounts a volume into the model server and the transformer beside it.
fn mount_volume(pod: &mut Value, mount: &Value) {
    let containers = pod.get_mut("containers").and_then(Value::as_array_mut);
    for (index, container) in containers.into_iter().flatten().enumerate() {
        let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
        if index == 0 || name == MAIN || name == TRANSFORMER {
            let merged = merge(container, &json!({ "volumeMounts": [mount] }));
            *container = merged;
        }
    }
}

/// The container that serves.
fn main_container(pod: &Value) -> Option<&Value> {
    let containers = pod.get("containers").and_then(Value::as_array)?;
    let main = containers.iter().find(|c| c.get("name").and_then(Value::as_str) == Some(MAIN));
    main.or_else(|| containers.first())
}

/// A volume's name from its mount path.
fn volume_name(mount: &str) -> String {
    mount.trim_matches('/').replace('/', "-").to_lowercase()
}

/// The longest directory that contains all of these.
fn common_parent(directories: &[&str]) -> String {
    let parts = |directory: &str| -> Vec<String> {
        directory.split('/').filter(|p| !p.is_empty()).map(str::to_owned).collect()
    };
    let mut common = directories.first().map(|first| parts(first)).unwrap_or_default();
    for directory in directories {
        let shared = common.iter().zip(parts(directory)).take_while(|(a, b)| **a == *b).count();
        common.truncate(shared);
    }
    format!("/{}", common.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Known;
    use std::sync::Arc;

    fn add(model: Value) -> Result<Value, String> {
        let (config, annotations) = (Config::default(), BTreeMap::new());
        let secret = json!({ "metadata": { "name": "storage-config" }, "data": { "minio": true } });
        let secret = Known::Present(Arc::new(serde_json::from_value(secret).unwrap()));
        let secrets = BTreeMap::from([("storage-config".to_owned(), secret)]);
        let storage = Storage {
            config: &config,
            image: "gantry:1",
            containers: &[],
            annotations: &annotations,
            credentials: &Credentials { secrets, ..Credentials::default() },
        };
        let mut pod = json!({ "containers": [{ "name": MAIN }, { "name": "side" }] });
        storage.add_model(&mut pod, &serde_json::from_value(model).unwrap())?;
        Ok(pod)
    }

    #[test]
    fn artifact_is_downloaded_by_an_init_container() {
        let pod = add(json!({ "storageUri": "s3://bucket/iris" })).unwrap();
        assert_eq!(
            pod.pointer("/initContainers/0/args"),
            Some(&json!(["fetch", "s3://bucket/iris", MODEL_DIR]))
        );
        assert_eq!(pod.pointer("/initContainers/0/image"), Some(&json!("gantry:1")));
        let mount = json!([{ "name": VOLUME, "mountPath": MODEL_DIR, "readOnly": true }]);
        assert_eq!(pod.pointer("/containers/0/volumeMounts"), Some(&mount));
        assert_eq!(pod.pointer("/containers/1/volumeMounts"), None);
        assert_eq!(pod.pointer("/volumes"), Some(&json!([{ "name": VOLUME, "emptyDir": {} }])));
    }

    #[test]
    fn claim_is_mounted_without_a_download() {
        let pod = add(json!({ "storageUri": "pvc://models/iris/1" })).unwrap();
        assert_eq!(pod.get("initContainers"), None);
        let mount =
            json!([{ "name": CLAIM_VOLUME, "mountPath": MODEL_DIR, "readOnly": true, "subPath": "iris/1" }]);
        assert_eq!(pod.pointer("/containers/0/volumeMounts"), Some(&mount));
        let claim = json!({ "claimName": "models" });
        assert_eq!(pod.pointer("/volumes/0/persistentVolumeClaim"), Some(&claim));
        assert!(add(json!({ "storageUri": "pvc://" })).is_err());
    }

    #[test]
    fn storage_spec_reads_its_secret() {
        let storage =
            json!({ "key": "minio", "path": "iris", "parameters": { "type": "s3", "bucket": "b" } });
        let pod = add(json!({ "storage": storage })).unwrap();
        assert_eq!(pod.pointer("/initContainers/0/args/1"), Some(&json!("s3://b/iris")));
        let reference = pod.pointer("/initContainers/0/env/1/valueFrom/secretKeyRef").unwrap();
        assert_eq!(reference, &json!({ "name": "storage-config", "key": "minio" }));
    }

    #[test]
    fn unsupported_uri_is_an_error_with_the_remedy() {
        let error = add(json!({ "storageUri": "hdfs://a/b" })).unwrap_err();
        assert!(error.contains("hdfs://a/b is not supported"), "{error}");
        assert!(error.contains("ClusterStorageContainer"), "{error}");
    }

    #[test]
    fn several_artifacts_share_a_volume_at_their_common_directory() {
        let (config, annotations) = (Config::default(), BTreeMap::new());
        let custom: ClusterStorageContainerSpec = serde_json::from_value(json!({
            "container": { "name": "mine", "image": "mine:1" }, "supportedUriFormats": [{ "regex": "^(web)?hdfs://" }],
        }))
        .unwrap();
        let containers = [custom];
        let storage = Storage {
            config: &config,
            image: "gantry:1",
            containers: &containers,
            annotations: &annotations,
            credentials: &Credentials::default(),
        };
        let uris: Vec<StorageUri> = serde_json::from_value(json!([
            { "uri": "hdfs://a", "mountPath": "/mnt/a" }, { "uri": "hdfs://b", "mountPath": "/mnt/b" },
        ]))
        .unwrap();
        let mut pod = json!({ "containers": [{ "name": MAIN }] });
        storage.add_uris(&mut pod, &uris).unwrap();
        assert_eq!(pod.pointer("/initContainers/0/image"), Some(&json!("mine:1")));
        let args = json!(["hdfs://a", "/mnt/a", "hdfs://b", "/mnt/b"]);
        assert_eq!(pod.pointer("/initContainers/0/args"), Some(&args));
        assert_eq!(pod.pointer("/containers/0/volumeMounts/0/mountPath"), Some(&json!("/mnt")));
    }
}
