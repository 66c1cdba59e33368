//! The world of a scenario: a cluster with two real nodes that have Gantry's image, and a namespace.

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

/// A cluster, and the namespace of the scenario that runs.
pub(crate) struct World {
    cluster: Cluster,
    image: String,
    program: PathBuf,
    namespace: RefCell<String>,
}

impl World {
    /// Brings a second node and the image.
    pub(crate) fn new(cluster: Cluster, image: &Made) -> Result<Self, Failure> {
        cluster.add_node()?;
        cluster.import(&image.file)?;
        let (program, image) = (image.program.clone(), image.name.clone());
        let world = Self { cluster, image, program, namespace: RefCell::default() };
        super::volumes::class(&world)?;
        Ok(world)
    }

    /// The name of Gantry's image on the nodes.
    pub(crate) fn image(&self) -> &str {
        &self.image
    }

    /// The scenario's namespace.
    pub(crate) fn namespace(&self) -> String {
        self.namespace.borrow().clone()
    }

    /// A place for a scenario's files; it goes with the cluster.
    pub(crate) fn place(&self, name: &str) -> Result<PathBuf, Failure> {
        let place = self.cluster.directory().join("e2e").join(self.namespace()).join(name);
        fs::create_dir_all(&place)?;
        Ok(place)
    }

    /// Runs a scenario in a new namespace, which enforces the strictest of the Pod Security standards. What is said of
    /// a failure has what there was in the namespace. Afterwards it is removed, unless somebody wants to look around.
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
                let failure = format!("{failure}\n{}", self.story());
                if !keep {
                    // Its objects may wait for an operator that is not there any more: nobody waits for that.
                    self.kubectl(&["delete", "namespace", &name, "--wait=false"])?;
                }
                Err(failure.into())
            }
            Ok(()) if keep => Ok(()),
            // The next scenario needs its room. A namespace with pods in it is looked at again only after half of the time
            // that they may take to end.
            Ok(()) => {
                self.kubectl(&["delete", "statefulsets,deployments,pods", "--all", "--timeout=120s"])?;
                self.kubectl(&["delete", "namespace", &name, "--timeout=180s"]).map(drop)
            }
        }
    }

    /// Hands a manifest to the cluster, for this scenario's namespace.
    pub(crate) fn apply(&self, mut manifest: Value) -> Result<(), Failure> {
        if let Some(metadata) = manifest.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("namespace".into(), json!(self.namespace()));
        }
        self.cluster.apply(&manifest)
    }

    /// What kubectl says, in this scenario's namespace; an error is what it complains about.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String, Failure> {
        let mut command = self.cluster.kubectl();
        said(command.arg("--namespace").arg(self.namespace()).args(arguments))
    }

    /// kubectl for this scenario's namespace, to be run by the caller.
    pub(crate) fn kubectl_command(&self) -> Command {
        let mut command = Command::new(self.cluster.kubectl_path());
        command.arg("--kubeconfig").arg(self.cluster.kubeconfig()).arg("--namespace").arg(self.namespace());
        command
    }

    /// What `gantry` says, run on this machine as a person would; an error is what it complains about.
    pub(crate) fn gantry(&self, arguments: &[&str]) -> Result<String, Failure> {
        let mut command = Command::new(&self.program);
        said(command.env("KUBECONFIG", self.cluster.kubeconfig()).args(arguments))
    }

    /// Applies a file that names its namespace itself.
    pub(crate) fn apply_file(&self, file: &Path, more: &[&str]) -> Result<(), Failure> {
        let mut command = self.cluster.kubectl();
        said(command.args(["apply", "--filename"]).arg(file).args(more)).map(drop)
    }

    /// Waits for a condition of these objects, as `kubectl wait` does.
    pub(crate) fn wait_for(&self, condition: &str, objects: &[&str], seconds: u64) -> Result<(), Failure> {
        let (condition, patience) = (format!("--for={condition}"), format!("--timeout={seconds}s"));
        let words = [&["wait", condition.as_str(), patience.as_str()], objects].concat();
        self.kubectl(&words).map(drop)
    }

    /// Where a port of a Service is, as this machine and every pod reaches it.
    pub(crate) fn service(&self, name: &str, port: u16) -> Result<SocketAddr, Failure> {
        let service = format!("service/{name}");
        let address = self.kubectl(&["get", &service, "--output=jsonpath={.spec.clusterIP}"])?;
        let address: Ipv4Addr =
            address.parse().map_err(|_| format!("{service} has no address: {address}"))?;
        Ok((address, port).into())
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

    /// What there is in the namespace, what happened there and what pods said: for the person who has to find out why.
    fn story(&self) -> String {
        let told = |words: &[&str]| self.kubectl(words).unwrap_or_else(|failure| failure.to_string());
        let mut story = told(&["get", "pods,persistentvolumeclaims", "--output=wide"]);
        story += &told(&["get", "events", "--field-selector=type=Warning"]);
        story += &told(&["get", "seldonruntimes,servers,models", "--output=wide"]);
        for pod in told(&["get", "pods", "--output=name"]).lines() {
            story += &format!("── {pod}\n");
            story += &told(&["logs", pod, "--all-containers", "--prefix", "--tail=25"]);
        }
        story
    }
}

/// What a command says; an error is what it complains about.
fn said(command: &mut Command) -> Result<String, Failure> {
    let said = command.output()?;
    if said.status.success() {
        return Ok(String::from_utf8(said.stdout)?);
    }
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    let complaint = String::from_utf8_lossy(&said.stderr);
    let told = String::from_utf8_lossy(&said.stdout);
    Err(format!("{}: {told}{complaint}", words.join(" ")).into())
}
