//! A real node: containerd, kubelet, kube-proxy and DNS, with traffic confined to this machine.

mod config;
mod dns;
mod images;
mod leftovers;
mod machine;
mod network;
mod node_id;

use super::{cluster::Cluster, control_plane::succeeds, directory::Directory};
use crate::{Failure, Unavailable, ports};
pub(crate) use machine::requirements;
pub(crate) use node_id::{ALL, FIRST, Node, SECOND};
use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::Command,
};

/// Owner of the node's bridge, routes and firewall table, of which a machine has one each.
const CLAIM: &str = "/run/gantry-k8s-node";
/// Unix socket paths are limited to 108 bytes, and those of containerd and kubelet start with the directory.
const MAX_DIRECTORY_LENGTH: usize = 64;

/// Claims the machine's node resources and creates the node's network.
pub(crate) fn claim(directory: &Directory) -> Result<(), Failure> {
    let place = directory.path().display().to_string();
    if place.len() > MAX_DIRECTORY_LENGTH {
        return Err(format!(
            "a node's --dir may have {MAX_DIRECTORY_LENGTH} letters, because of its sockets; {place} has {}",
            place.len()
        )
        .into());
    }
    if let Some(owner) = owner().filter(|owner| *owner != place) {
        let other = Directory::at(Path::new(&owner))?;
        if other.processes()?.iter().any(|(_, p)| p.runs()) {
            return Err(Unavailable(format!(
                "a machine has room for one node, and {owner} has it: `cargo xtask k8s down --dir {owner}` stops it"
            ))
            .into());
        }
        // The previous owner has exited without releasing it.
        release(&other)?;
    }
    if leftovers::pods_run() {
        let remedy = "a second kubelet would fight with it: use a machine without one";
        return Err(Unavailable(format!("another kubelet's pods run on this machine, and {remedy}")).into());
    }
    fs::write(CLAIM, &place)?;
    network::set_up(directory)
}

/// Releases the claim and removes leftovers of pods. No-op if this directory has no node.
pub(crate) fn release(directory: &Directory) -> Result<(), Failure> {
    if owner().is_none_or(|owner| owner != directory.path().display().to_string()) {
        return Ok(());
    }
    // The kubelet has stopped, so nothing restarts them; no graceful shutdown is needed.
    leftovers::remove_containers(directory)?;
    leftovers::unmount(directory)?;
    network::take_down(directory)?;
    fs::remove_file(CLAIM)?;
    Ok(())
}

fn owner() -> Option<String> {
    fs::read_to_string(CLAIM).ok()
}

/// Starts the node and waits until cluster DNS responds.
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

/// Starts another node; the host's Service rules apply to both.
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

/// Imports an image on a node; there is no registry.
pub(crate) fn import(directory: &Directory, node: Node, archive: &Path) -> Result<(), Failure> {
    let mut command = ctr(directory, node);
    let output = command.args(["images", "import"]).arg(archive).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{} cannot be imported: {}", archive.display(), String::from_utf8_lossy(&output.stderr))
        .into())
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
    directory.wait("kube-proxy", 60, || super::control_plane::is_healthy(health, "/healthz"))
}

/// Runs a command; its stderr is the error.
fn call(program: &str, arguments: &[&str]) -> Result<(), Failure> {
    let output = Command::new(program).args(arguments).output().map_err(|e| match e.kind() {
        ErrorKind::NotFound => format!("there is no {program}"),
        _ => format!("{program}: {e}"),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(format!("{program} {}: {stderr}", arguments.join(" ")).into())
}
