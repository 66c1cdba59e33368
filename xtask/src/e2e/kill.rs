//! Ways to end a pod that nobody expects.

use super::world::World;
use crate::{Failure, k8s};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::fs;

/// The names of the pods with these labels, of those that are not on their way out.
pub(super) fn pods(world: &World, labels: &str) -> Result<Vec<String>, Failure> {
    let template = "--output=go-template={{range .items}}{{if not .metadata.deletionTimestamp}}{{.metadata.name}}\
                    {{\"\\n\"}}{{end}}{{end}}";
    let said = world.kubectl(&["get", "pods", "--selector", labels, template])?;
    let names: Vec<String> = said.lines().map(str::to_owned).collect();
    if names.is_empty() { Err(format!("there is no pod with {labels}").into()) } else { Ok(names) }
}

/// Makes the API server forget pods, as if their node had burnt down. Their node hears of it, and ends what is left.
pub(super) fn by_force(world: &World, pods: &[String]) -> Result<(), Failure> {
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    let words =
        [&["delete", "pods", "--grace-period=0", "--force", "--wait=false"], pods.as_slice()].concat();
    world.kubectl(&words).map(drop)
}

/// Kills every process of these pods' containers, without a warning; Kubernetes starts them again in place.
pub(super) fn processes(world: &World, pods: &[String]) -> Result<(), Failure> {
    for pod in pods {
        let template = "--output=jsonpath={.status.containerStatuses[*].containerID}";
        let said = world.kubectl(&["get", "pod", pod, template])?;
        let containers: Vec<&str> =
            said.split_whitespace().filter_map(|id| Some(id.split_once("://")?.1)).collect();
        end(|cgroups| containers.iter().any(|id| cgroups.contains(id)))
            .map_err(|failure| format!("{pod}: {failure}"))?;
    }
    Ok(())
}

/// Kills everything of a pod, also what holds its network: as if the machine under it had lost power for a moment.
pub(super) fn whole(world: &World, pod: &str) -> Result<(), Failure> {
    let uid = world.kubectl(&["get", "pod", pod, "--output=jsonpath={.metadata.uid}"])?;
    end(|cgroups| cgroups.contains(&format!("pod{uid}")))
        .map_err(|failure| format!("{pod}: {failure}").into())
}

/// Kills the processes whose cgroups are such, all at once, and sees that they are gone.
fn end(chosen: impl Fn(&str) -> bool) -> Result<(), Failure> {
    let cgroups = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mut doomed = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if chosen(&cgroups(pid)) {
            doomed.push(pid);
        }
    }
    if doomed.is_empty() {
        return Err("none of its processes was found".into());
    }
    for pid in &doomed {
        // It may be gone already, with its parent.
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
    k8s::until("the end of what was killed", 10, || doomed.iter().all(|pid| !chosen(&cgroups(*pid))))
}
