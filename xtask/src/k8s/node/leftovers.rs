//! Cleanup after pods that containerd did not remove: processes, networks, mounts, cgroups.

use super::{super::directory::Directory, call, config::NETWORK, node_id::ALL, socket};
use crate::Failure;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Kills every container of this node, identified by the socket argument of its shim; works without containerd.
pub(super) fn remove_containers(directory: &Directory) -> Result<(), Failure> {
    let shims = || -> Result<Vec<i32>, Failure> {
        let sockets = ALL.map(|node| socket(directory, node).display().to_string());
        Ok(pids()?.into_iter().filter(|pid| sockets.iter().any(|s| is_shim_of(*pid, s))).collect())
    };
    let parents: Vec<(i32, i32)> = pids()?.into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let ours = descendants(&shims()?, &parents);
    let networks: BTreeSet<u64> = ours.iter().filter_map(|pid| network(*pid)).collect();
    for pid in ours.iter().chain(&shims()?) {
        // It may have exited.
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
    crate::k8s::until("the end of every container", 20, || {
        shims().is_ok_and(|shims| shims.is_empty()) && ours.iter().all(|pid| !runs(*pid))
    })?;
    remove_networks(&networks)?;
    remove_cni_records()
}

fn pids() -> Result<Vec<i32>, Failure> {
    let names = fs::read_dir("/proc")?.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    Ok(names.collect())
}

fn is_shim_of(pid: i32, socket: &str) -> bool {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = words.split(|byte| *byte == 0);
    let named = words.next().is_some_and(|program| program.ends_with(b"containerd-shim-runc-v2"));
    named && runs(pid) && words.any(|word| word == socket.as_bytes())
}

/// A zombie has no executable.
fn runs(pid: i32) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// All descendants of these processes.
fn descendants(roots: &[i32], parents: &[(i32, i32)]) -> Vec<i32> {
    let mut found: Vec<i32> = Vec::new();
    let mut above = roots.to_vec();
    while !above.is_empty() {
        above = parents.iter().filter(|(_, p)| above.contains(p)).map(|(pid, _)| *pid).collect();
        above.retain(|pid| !found.contains(pid));
        found.extend(&above);
    }
    found
}

/// The network namespace of a process, unless it is the host's.
fn network(pid: i32) -> Option<u64> {
    let of = |pid: &str| fs::metadata(format!("/proc/{pid}/ns/net")).ok().map(|m| m.ino());
    of(&pid.to_string()).filter(|number| of("self") != Some(*number))
}

fn remove_networks(networks: &BTreeSet<u64>) -> Result<(), Failure> {
    for entry in fs::read_dir("/run/netns").into_iter().flatten() {
        let entry = entry?;
        if entry.metadata().is_ok_and(|m| networks.contains(&m.ino())) {
            call("ip", &["netns", "delete", &entry.file_name().to_string_lossy()])?;
        }
    }
    Ok(())
}

/// Removes the CNI plug-ins' records: two files per pod, named after its container.
fn remove_cni_records() -> Result<(), Failure> {
    let remembered = Path::new("/var/lib/cni/results");
    for entry in fs::read_dir(remembered).into_iter().flatten() {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Some(container) = container_of(&name) {
            fs::remove_file(remembered.join(&name))?;
            // Written by another plug-in; may not exist.
            let _ = fs::remove_file(remembered.join(format!("cni-loopback-{container}-lo")));
        }
    }
    Ok(())
}

/// The container id in the file name of a record of our network.
fn container_of(name: &str) -> Option<&str> {
    name.strip_prefix(NETWORK)?.strip_prefix('-')?.strip_suffix("-eth0")
}

/// Unmounts everything below the directory, then removes empty pod cgroups.
pub(super) fn unmount(directory: &Directory) -> Result<(), Failure> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mut below = mounted_below(directory.path(), &mounts);
    // Nested mounts first.
    below.reverse();
    for place in below {
        call("umount", &["--lazy", &place])?;
    }
    for cgroup in cgroups() {
        remove_empty(&cgroup);
    }
    Ok(())
}

/// Whether pods run on this machine; before our node starts, they belong to another kubelet.
pub(super) fn pods_run() -> bool {
    cgroups().iter().any(|cgroup| is_used(cgroup))
}

/// cgroup hierarchies: those of version 1, and version 2.
fn hierarchies() -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let inside = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    inside.chain([root.to_path_buf()]).filter(|place| place.join("cgroup.procs").is_file()).collect()
}

/// Creates the parent cgroup of a kubelet's pods.
pub(super) fn make_cgroup(name: &str) -> Result<(), Failure> {
    for hierarchy in hierarchies() {
        let place = hierarchy.join(name);
        fs::create_dir_all(&place).map_err(|e| format!("{}: {e}", place.display()))?;
    }
    Ok(())
}

/// Pod cgroups: the first kubelet's at the root, another's below its own cgroup.
fn cgroups() -> Vec<PathBuf> {
    let tops = ALL.map(|node| node.cgroup().unwrap_or_else(|| "kubepods".to_owned()));
    let places = hierarchies().into_iter().flat_map(|h| tops.clone().map(|top| h.join(top)));
    places.filter(|cgroup| cgroup.is_dir()).collect()
}

fn below(cgroup: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cgroup).into_iter().flatten().flatten();
    entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

fn is_used(cgroup: &Path) -> bool {
    let has_processes = fs::read_to_string(cgroup.join("cgroup.procs")).is_ok_and(|t| !t.is_empty());
    has_processes || below(cgroup).iter().any(|child| is_used(child))
}

fn mounted_below(directory: &Path, mounts: &str) -> Vec<String> {
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let below = |place: &&str| Path::new(place).starts_with(directory) && Path::new(place) != directory;
    places.filter(below).map(str::to_owned).collect()
}

/// Removes cgroups from the leaves up; they become empty shortly after their processes exit.
fn remove_empty(cgroup: &Path) {
    for child in below(cgroup) {
        remove_empty(&child);
    }
    let busy = || fs::remove_dir(cgroup).is_err_and(|e| e.kind() == std::io::ErrorKind::ResourceBusy);
    // Remaining ones are reused by the next node.
    let _ = crate::k8s::until("an empty cgroup", 1, || !busy());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_descendants_of_a_shim_are_found() {
        let parents = [(10, 1), (11, 10), (12, 11), (20, 1), (21, 20), (30, 2)];
        assert_eq!(descendants(&[10], &parents), [11, 12]);
        assert_eq!(descendants(&[10, 20], &parents), [11, 21, 12]);
        assert!(descendants(&[30], &parents).is_empty());
        assert!(descendants(&[], &parents).is_empty());
        // Pid reuse during the scan can create a cycle.
        assert_eq!(descendants(&[5], &[(6, 5), (5, 6)]), [6, 5]);
    }

    #[test]
    fn mounts_of_sibling_directories_are_ignored() {
        let mounts = "36 35 98:0 / /tmp/a rw - ext4 x x\n37 35 98:0 / /tmp/a/b/c rw - overlay x x\n\
                      38 35 98:0 / /tmp/ab rw - ext4 x x\nshort\n";
        assert_eq!(mounted_below(Path::new("/tmp/a"), mounts), ["/tmp/a/b/c"]);
    }

    #[test]
    fn only_records_of_our_network_match() {
        assert_eq!(container_of("gantry-5d77-eth0"), Some("5d77"));
        for other in ["cni-loopback-5d77-lo", "gantryish-5d77-eth0", "k3s-5d77-eth0", "gantry-5d77-net1"] {
            assert_eq!(container_of(other), None, "{other}");
        }
    }

    #[test]
    fn other_process_is_not_a_shim() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(runs(own) && parent(own).is_some() && network(own).is_none());
        assert!(!is_shim_of(own, "/tmp/containerd.sock"));
    }
}
