//! The world of a scenario: a cluster with a real node that has Gantry's image, and a namespace.

use crate::{
    Failure,
    image::Made,
    k8s::{self, Cluster},
};
use serde_json::{Value, json};
use std::{cell::RefCell, fs, path::Path};

/// A cluster, and the namespace of the scenario that runs.
pub(crate) struct World {
    cluster: Cluster,
    image: String,
    namespace: RefCell<String>,
}

impl World {
    /// Brings the image to the node.
    pub(crate) fn new(cluster: Cluster, image: &Made) -> Result<Self, Failure> {
        k8s::import(cluster.directory(), &image.file)?;
        Ok(Self { cluster, image: image.name.clone(), namespace: RefCell::default() })
    }

    /// The name of Gantry's image on the node.
    pub(crate) fn image(&self) -> &str {
        &self.image
    }

    /// Runs a scenario in a new namespace, which enforces the strictest of the Pod Security standards.
    pub(crate) fn in_namespace(
        &self,
        scenario: &str,
        run: impl Fn(&Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let name = namespace(scenario);
        self.cluster.apply(&json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": { "name": name, "labels": { "pod-security.kubernetes.io/enforce": "restricted" } },
        }))?;
        self.namespace.replace(name);
        run(self)
    }

    /// Hands a manifest to the cluster, for this scenario's namespace.
    pub(crate) fn apply(&self, mut manifest: Value) -> Result<(), Failure> {
        if let Some(metadata) = manifest.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("namespace".into(), json!(*self.namespace.borrow()));
        }
        self.cluster.apply(&manifest)
    }

    /// What kubectl says, in this scenario's namespace; an error is what it complains about.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String, Failure> {
        let mut command = self.cluster.kubectl();
        let said = command.arg("--namespace").arg(&*self.namespace.borrow()).args(arguments).output()?;
        if said.status.success() {
            return Ok(String::from_utf8(said.stdout)?);
        }
        Err(format!("kubectl {}: {}", arguments.join(" "), String::from_utf8_lossy(&said.stderr)).into())
    }

    /// Waits until kubectl says what is expected.
    pub(crate) fn until(
        &self,
        what: &str,
        seconds: u64,
        arguments: &[&str],
        expected: impl Fn(&str) -> bool,
    ) -> Result<(), Failure> {
        let mut last = String::new();
        let waited = k8s::until(what, seconds, || {
            last = self.kubectl(arguments).unwrap_or_else(|failure| failure.to_string());
            expected(&last)
        });
        waited.map_err(|failure| format!("{failure}; kubectl says: {last}").into())
    }

    /// What there is in a scenario's namespace and what happened there: for the person who has to find out why.
    pub(crate) fn story(&self, scenario: &str) -> String {
        let mut command = self.cluster.kubectl();
        command.arg("--namespace").arg(namespace(scenario));
        let told = command.args(["get", "pods,events", "--output=wide"]).output();
        told.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
    }
}

fn namespace(scenario: &str) -> String {
    format!("e2e-{scenario}")
}

/// The name of Gantry's image in manifests: the image that is made gets it, so that they can be applied as they are.
pub(crate) fn image_of_manifests(directory: &Path) -> Option<String> {
    let mut files: Vec<_> = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.into_iter().filter_map(|file| fs::read_to_string(file).ok()).find_map(|text| image_in(&text))
}

fn image_in(manifest: &str) -> Option<String> {
    let images =
        manifest.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("image:"));
    let mut names = images.map(|name| name.trim().trim_matches(['"', '\'']));
    names.find(|name| name.rsplit('/').next().is_some_and(|n| n.starts_with("gantry:"))).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_of_a_manifest_is_found() {
        for (manifest, found) in [
            (
                "spec:\n  - image: example.org/mlserver:1\n  - image: \"example.org/gantry:0.1.0\"",
                Some("example.org/gantry:0.1.0"),
            ),
            ("    image: gantry:1\n", Some("gantry:1")),
            ("    image: gantryish:1\n", None),
            ("kind: Service\n", None),
        ] {
            assert_eq!(image_in(manifest).as_deref(), found, "{manifest}");
        }
    }
}
