//! Test harness: a cluster with two real nodes that have Gantry's image, and a namespace per scenario.

use crate::{
    Failure,
    image::Made,
    k8s::{self, Cluster},
};
use serde_json::{Value, json};
use std::{
    cell::RefCell,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
};

pub(crate) struct Harness {
    cluster: Cluster,
    image: String,
    program: PathBuf,
    namespace: RefCell<String>,
}

impl Harness {
    /// Adds a second node and the image.
    pub(crate) fn new(cluster: Cluster, image: &Made) -> Result<Self, Failure> {
        cluster.add_node()?;
        cluster.import(&image.file)?;
        let (program, image) = (image.program.clone(), image.name.clone());
        let harness = Self { cluster, image, program, namespace: RefCell::default() };
        super::volumes::create_class(&harness)?;
        Ok(harness)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.cluster.kubeconfig()
    }

    /// Makes an image archive available on every node.
    pub(crate) fn import(&self, image: &Path) -> Result<(), Failure> {
        self.cluster.import(image)
    }

    pub(crate) fn image(&self) -> &str {
        &self.image
    }

    pub(crate) fn namespace(&self) -> String {
        self.namespace.borrow().clone()
    }

    /// A directory for the scenario's files; removed with the cluster.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.cluster.directory().join("e2e").join(self.namespace()).join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Runs a scenario in a new namespace that enforces the restricted Pod Security standard. A failure includes the state
    /// of the namespace. Afterwards the namespace is removed, unless `keep` is set.
    pub(crate) fn in_namespace(
        &self,
        scenario: &str,
        keep: bool,
        run: impl Fn(&Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let name = format!("e2e-{scenario}");
        self.cluster.apply(&json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": { "name": name, "labels": { "pod-security.kubernetes.io/enforce": "restricted" } },
        }))?;
        self.namespace.replace(name.clone());
        match run(self) {
            Err(failure) => {
                let failure = format!("{failure}\n{}", self.diagnostics());
                if !keep {
                    // Without an operator, finalizers may never be removed: do not wait.
                    self.kubectl(&["delete", "namespace", &name, "--wait=false"])?;
                }
                Err(failure.into())
            }
            Ok(()) if keep => Ok(()),
            // Pods first: the namespace controller requeues a namespace with pods only after half of their grace period.
            Ok(()) => {
                self.kubectl(&["delete", "statefulsets,deployments,pods", "--all", "--timeout=120s"])?;
                self.kubectl(&["delete", "namespace", &name, "--timeout=180s"]).map(drop)
            }
        }
    }

    /// Applies a manifest in the scenario's namespace.
    pub(crate) fn apply(&self, mut manifest: Value) -> Result<(), Failure> {
        if let Some(metadata) = manifest.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("namespace".into(), json!(self.namespace()));
        }
        self.cluster.apply(&manifest)
    }

    /// Output of kubectl in the scenario's namespace.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String, Failure> {
        let mut command = self.cluster.kubectl();
        output(command.arg("--namespace").arg(self.namespace()).args(arguments))
    }

    /// A kubectl command for the scenario's namespace.
    pub(crate) fn kubectl_command(&self) -> Command {
        let mut command = Command::new(self.cluster.kubectl_path());
        command.arg("--kubeconfig").arg(self.cluster.kubeconfig()).arg("--namespace").arg(self.namespace());
        command
    }

    /// Output of `gantry`, run on this machine.
    pub(crate) fn gantry(&self, arguments: &[&str]) -> Result<String, Failure> {
        let mut command = Command::new(&self.program);
        output(command.env("KUBECONFIG", self.cluster.kubeconfig()).args(arguments))
    }

    /// Applies a file whose objects have a namespace.
    pub(crate) fn apply_file(&self, file: &Path, more: &[&str]) -> Result<(), Failure> {
        let mut command = self.cluster.kubectl();
        output(command.args(["apply", "--filename"]).arg(file).args(more)).map(drop)
    }

    /// `kubectl wait`.
    pub(crate) fn wait_for(&self, condition: &str, objects: &[&str], seconds: u64) -> Result<(), Failure> {
        let (condition, timeout) = (format!("--for={condition}"), format!("--timeout={seconds}s"));
        let arguments = [&["wait", condition.as_str(), timeout.as_str()], objects].concat();
        self.kubectl(&arguments).map(drop)
    }

    /// Cluster IP and port of a Service.
    pub(crate) fn service(&self, name: &str, port: u16) -> Result<SocketAddr, Failure> {
        let service = format!("service/{name}");
        let address = self.kubectl(&["get", &service, "--output=jsonpath={.spec.clusterIP}"])?;
        let address: Ipv4Addr =
            address.parse().map_err(|_| format!("{service} has no address: {address}"))?;
        Ok((address, port).into())
    }

    /// Polls kubectl until its output is as expected.
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
        waited.map_err(|failure| format!("{failure}; last output: {last}").into())
    }

    /// Objects, events and logs of the namespace.
    fn diagnostics(&self) -> String {
        let output =
            |arguments: &[&str]| self.kubectl(arguments).unwrap_or_else(|failure| failure.to_string());
        let mut text = output(&["get", "pods,persistentvolumeclaims", "--output=wide"]);
        text += &output(&["get", "events", "--field-selector=type=Warning"]);
        text += &output(&["get", "seldonruntimes,servers,models", "--output=wide"]);
        // Without the CRDs, the error says so.
        let conditions =
            "--output=jsonpath={range .items[*]}{.metadata.name} {.status.conditions}{\"\\n\"}{end}";
        text += &output(&["get", "inferenceservices", conditions]);
        for pod in output(&["get", "pods", "--output=name"]).lines() {
            text += &format!("── {pod}\n");
            text += &output(&["logs", pod, "--all-containers", "--prefix", "--tail=25"]);
        }
        text
    }
}

/// Standard output of a command; on failure, the error has both streams.
fn output(command: &mut Command) -> Result<String, Failure> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout)?);
    }
    let arguments: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Err(format!("{}: {stdout}{stderr}", arguments.join(" ")).into())
}
