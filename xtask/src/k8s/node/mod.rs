//! A real node: containerd, a kubelet, kube-proxy and DNS, with their traffic kept on this machine.

mod config;
mod dns;
mod images;
mod leftovers;
mod machine;
mod network;
mod which;

use super::{cluster::Cluster, control_plane::succeeds, directory::Directory};
use crate::{Failure, NotHere, ports};
pub(crate) use machine::requirements;
use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::Command,
};
pub(crate) use which::{ALL, FIRST, Node, SECOND};

/// Who has the node's bridge, routes and firewall table: there is one of each on a machine.
const CLAIM: &str = "/run/gantry-k8s-node";
/// Names of Unix sockets are short (108 bytes), and those of containerd and the kubelet begin with the directory.
const LONGEST_DIRECTORY: usize = 64;

/// Takes what there is only one of on a machine, and makes the node's network.
pub(crate) fn claim(directory: &Directory) -> Result<(), Failure> {
    let place = directory.path().display().to_string();
    if place.len() > LONGEST_DIRECTORY {
        return Err(format!(
            "a node's --dir may have {LONGEST_DIRECTORY} letters, because of its sockets; {place} has {}",
            place.len()
        )
        .into());
    }
    if let Some(owner) = owner().filter(|owner| *owner != place) {
        let other = Directory::at(Path::new(&owner))?;
        if other.processes()?.iter().any(|(_, p)| p.runs()) {
            return Err(NotHere(format!(
                "a machine has room for one node, and {owner} has it: `cargo xtask k8s down --dir {owner}` stops it"
            ))
            .into());
        }
        // Whoever had it is gone without a word.
        release(&other)?;
    }
    if leftovers::pods_run() {
        let remedy = "a second kubelet would fight with it: use a machine without one";
        return Err(NotHere(format!("another kubelet's pods run on this machine, and {remedy}")).into());
    }
    fs::write(CLAIM, &place)?;
    network::set_up(directory)
}

/// Gives back what [`claim`] took, and removes what pods left behind. Nothing happens when this directory has no node.
pub(crate) fn release(directory: &Directory) -> Result<(), Failure> {
    if owner().is_none_or(|owner| owner != directory.path().display().to_string()) {
        return Ok(());
    }
    // Nobody starts them again: the kubelet is gone. Nor are they asked to end: all of it is thrown away.
    leftovers::remove_containers(directory)?;
    leftovers::unmount(directory)?;
    network::take_down(directory)?;
    fs::remove_file(CLAIM)?;
    Ok(())
}

fn owner() -> Option<String> {
    fs::read_to_string(CLAIM).ok()
}

/// Starts the node and waits until a pod's question about a name is answered.
pub(crate) fn start(cluster: &Cluster, say: &mut dyn FnMut(&str)) -> Result<(), Failure> {
    start_containerd(cluster, FIRST)?;
    say("containerd");
    start_kubelet(cluster, FIRST)?;
    say("node");
    start_proxy(cluster)?;
    dns::start(cluster)?;
    say("names");
    Ok(())
}

/// Starts another node beside the first. What is written into the machine's firewall for Services is there for both.
pub(crate) fn add(cluster: &Cluster, node: Node) -> Result<(), Failure> {
    if let Some(cgroup) = node.cgroup() {
        leftovers::make_cgroup(&cgroup)?;
    }
    start_containerd(cluster, node)?;
    start_kubelet(cluster, node)
}

fn socket(directory: &Directory, node: Node) -> PathBuf {
    node.join(directory, "containerd/containerd.sock")
}

/// Makes an image known to a node. There is no registry: this is how images come there.
pub(crate) fn import(directory: &Directory, node: Node, archive: &Path) -> Result<(), Failure> {
    let mut command = ctr(directory, node);
    let said = command.args(["images", "import"]).arg(archive).output()?;
    if said.status.success() {
        return Ok(());
    }
    Err(format!("{} cannot be imported: {}", archive.display(), String::from_utf8_lossy(&said.stderr)).into())
}

fn ctr(directory: &Directory, node: Node) -> Command {
    let mut command = Command::new("ctr");
    command.arg("--address").arg(socket(directory, node)).args(["--namespace", "k8s.io"]);
    command
}

fn start_containerd(cluster: &Cluster, node: Node) -> Result<(), Failure> {
    let directory = cluster.directory();
    let plugins = machine::network_plugins().ok_or("the CNI plug-ins are gone")?;
    for place in ["containerd", "cni"] {
        fs::create_dir_all(node.join(directory, place))?;
    }
    let network = config::network(directory, node);
    fs::write(node.join(directory, "cni/10-gantry.conflist"), format!("{network:#}\n"))?;
    let file = node.join(directory, "containerd/config.toml");
    fs::write(&file, config::containerd(directory, node, &socket(directory, node), &plugins))?;
    let name = node.process("containerd");
    directory.start(&name, Command::new("containerd").arg("--config").arg(file))?;
    directory.wait(&name, 60, || succeeds(ctr(directory, node).arg("version")))?;
    for archive in images::ensure(cluster.programs())? {
        import(directory, node, &archive)?;
    }
    Ok(())
}

fn start_kubelet(cluster: &Cluster, node: Node) -> Result<(), Failure> {
    let directory = cluster.directory();
    for place in ["kubelet/volumeplugins", "pod-logs"] {
        fs::create_dir_all(node.join(directory, place))?;
    }
    let file = node.join(directory, "kubelet/config.json");
    let text = config::kubelet(directory, node, cluster.pki(), &socket(directory, node), ports::free()?);
    fs::write(&file, format!("{text:#}\n"))?;
    let mut command = Command::new(cluster.programs().path("kubelet"));
    command.args([
        format!("--config={}", file.display()),
        format!("--kubeconfig={}", cluster.pki().kubeconfig(&node.name()).display()),
        format!("--root-dir={}", node.join(directory, "kubelet").display()),
        format!("--cert-dir={}", node.join(directory, "kubelet/pki").display()),
        format!("--hostname-override={}", node.name()),
        format!("--node-ip={}", node.address()),
    ]);
    let name = node.process("kubelet");
    directory.start(&name, &mut command)?;
    directory.wait(&name, 120, || {
        let node = format!("node/{}", node.name());
        succeeds(cluster.kubectl().args(["wait", "--for=condition=Ready", &node, "--timeout=5s"]))
    })
}

fn start_proxy(cluster: &Cluster) -> Result<(), Failure> {
    let directory = cluster.directory();
    let [health, metrics] = ports::free()?;
    let file = directory.join("kube-proxy.json");
    fs::write(&file, format!("{:#}\n", config::proxy(cluster.pki(), health, metrics)))?;
    let mut command = Command::new(cluster.programs().path("kube-proxy"));
    directory.start("kube-proxy", command.arg(format!("--config={}", file.display())))?;
    directory.wait("kube-proxy", 60, || super::control_plane::answers(health, "/healthz"))
}

/// Runs a command of the system; what it complains about is the failure.
fn call(program: &str, arguments: &[&str]) -> Result<(), Failure> {
    let said = Command::new(program).args(arguments).output().map_err(|e| match e.kind() {
        ErrorKind::NotFound => format!("there is no {program}"),
        _ => format!("{program}: {e}"),
    })?;
    if said.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&said.stderr).trim().to_owned();
    Err(format!("{program} {}: {complaint}", arguments.join(" ")).into())
}
