//! Host requirements of a node, installed where possible.

use crate::{Failure, Unavailable, debian};
use std::{fs, os::unix::fs::MetadataExt as _, path::PathBuf};

/// Debian packages of the programs that are not built.
const PACKAGES: &[&str] = &["containerd", "runc", "containernetworking-plugins", "nftables", "iproute2"];
const PROGRAMS: &[&str] = &["containerd", "ctr", "containerd-shim-runc-v2", "runc", "nft", "ip"];
/// Debian's directory, and the upstream default.
const PLUGIN_DIRECTORIES: &[&str] = &["/usr/lib/cni", "/opt/cni/bin"];
const PLUGINS: &[&str] = &["ptp", "host-local", "loopback"];

/// Ensures that a node can run, or reports what is missing.
pub(crate) fn requirements() -> Result<(), Failure> {
    if fs::metadata("/proc/self")?.uid() != 0 {
        return Err(
            Unavailable("a real node needs root: run this as root, or leave out --node".into()).into()
        );
    }
    if missing().is_empty() {
        return Ok(());
    }
    if find("apt-get").is_some() {
        debian::install(PACKAGES)?;
    }
    match missing().as_slice() {
        [] => Ok(()),
        missing => {
            let (missing, packages) = (missing.join(", "), PACKAGES.join(" "));
            Err(Unavailable(format!("a real node needs {missing}: apt-get install {packages}")).into())
        }
    }
}

/// The directory of the CNI plug-ins.
pub(crate) fn network_plugins() -> Option<PathBuf> {
    let complete = |place: &&PathBuf| PLUGINS.iter().all(|p| place.join(p).is_file());
    PLUGIN_DIRECTORIES.iter().map(PathBuf::from).collect::<Vec<_>>().iter().find(complete).cloned()
}

fn missing() -> Vec<&'static str> {
    let mut missing: Vec<&str> = PROGRAMS.iter().copied().filter(|p| find(p).is_none()).collect();
    if network_plugins().is_none() {
        missing.push("CNI plug-ins");
    }
    missing
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|p| p.join(program))
        .find(|p| p.is_file())
}
