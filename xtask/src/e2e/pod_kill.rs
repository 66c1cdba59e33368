//! Ungraceful ways to terminate pods.

use super::harness::Harness;
use crate::{Failure, k8s};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::fs;

/// Names of the pods with these labels that are not terminating.
pub(super) fn pods(harness: &Harness, labels: &str) -> Result<Vec<String>, Failure> {
    let template = "--output=go-template={{range .items}}{{if not .metadata.deletionTimestamp}}{{.metadata.name}}\
                    {{\"\\n\"}}{{end}}{{end}}";
    let output = harness.kubectl(&["get", "pods", "--selector", labels, template])?;
    let names: Vec<String> = output.lines().map(str::to_owned).collect();
    if names.is_empty() { Err(format!("no pod with labels {labels}").into()) } else { Ok(names) }
}

/// Force-deletes pods, as after the loss of their node.
pub(super) fn force_delete(harness: &Harness, pods: &[String]) -> Result<(), Failure> {
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    let arguments =
        [&["delete", "pods", "--grace-period=0", "--force", "--wait=false"], pods.as_slice()].concat();
    harness.kubectl(&arguments).map(drop)
}

/// Kills every process of the pods' containers; the kubelet restarts them in place.
pub(super) fn kill_containers(harness: &Harness, pods: &[String]) -> Result<(), Failure> {
    for pod in pods {
        let template = "--output=jsonpath={.status.containerStatuses[*].containerID}";
        let output = harness.kubectl(&["get", "pod", pod, template])?;
        let containers: Vec<&str> =
            output.split_whitespace().filter_map(|id| Some(id.split_once("://")?.1)).collect();
        kill_cgroups(|cgroups| containers.iter().any(|id| cgroups.contains(id)))
            .map_err(|failure| format!("{pod}: {failure}"))?;
    }
    Ok(())
}

/// Kills every process of a pod including its sandbox, as after a power failure.
pub(super) fn kill_pod(harness: &Harness, pod: &str) -> Result<(), Failure> {
    let uid = harness.kubectl(&["get", "pod", pod, "--output=jsonpath={.metadata.uid}"])?;
    kill_cgroups(|cgroups| cgroups.contains(&format!("pod{uid}")))
        .map_err(|failure| format!("{pod}: {failure}").into())
}

/// Kills all processes with matching cgroups, and waits until they are gone.
fn kill_cgroups(matches: impl Fn(&str) -> bool) -> Result<(), Failure> {
    let cgroups = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if matches(&cgroups(pid)) {
            pids.push(pid);
        }
    }
    if pids.is_empty() {
        return Err("no process found".into());
    }
    for pid in &pids {
        // It may have exited with its parent.
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
    k8s::until("killed processes to exit", 10, || pids.iter().all(|pid| !matches(&cgroups(*pid))))
}
