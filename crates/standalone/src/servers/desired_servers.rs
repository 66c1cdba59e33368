//! Desired servers: launch specs from manifests, replica counts from manifests and the scheduler.

use super::launch_spec::LaunchSpec;
use gantry_proto::scheduler::ServerNotify;
use std::collections::BTreeMap;
use tokio::sync::watch;

/// Launch spec and replica count by server.
pub(super) type Specs = BTreeMap<String, (LaunchSpec, u32)>;

#[derive(Clone, Debug)]
pub(crate) struct DesiredServers(watch::Sender<Specs>);

impl DesiredServers {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(BTreeMap::new()))
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Specs> {
        self.0.subscribe()
    }

    /// Replaces the launch specs. A server whose manifest has the same replicas as before keeps its scaled size.
    pub(crate) fn set(&self, specs: &BTreeMap<String, LaunchSpec>) {
        self.0.send_if_modified(|current| {
            let next: Specs = specs
                .iter()
                .map(|(name, spec)| {
                    let kept = current
                        .get(name)
                        .filter(|(old, _)| old.replicas == spec.replicas && old.bounds == spec.bounds);
                    (name.clone(), (spec.clone(), kept.map_or(spec.replicas, |(_, size)| *size)))
                })
                .collect();
            let changed = next != *current;
            *current = next;
            changed
        });
    }

    /// Scales a server within its bounds; returns the new size and its announcement, if it changed.
    pub(crate) fn scale(&self, server: &str, requested: u32) -> Option<(u32, ServerNotify)> {
        let mut announcement = None;
        self.0.send_if_modified(|current| {
            let Some((spec, size)) = current.get_mut(server) else { return false };
            let (min_replicas, max_replicas) = spec.bounds;
            let next = requested.clamp(min_replicas, max_replicas);
            if next == *size {
                return false;
            }
            *size = next;
            let notify = ServerNotify {
                name: server.to_owned(),
                expected_replicas: next,
                shared: true,
                min_replicas,
                max_replicas,
                ..ServerNotify::default()
            };
            announcement = Some((next, notify));
            true
        });
        announcement
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(replicas: u32, bounds: (u32, u32)) -> LaunchSpec {
        LaunchSpec {
            command: vec!["a".into()],
            env: BTreeMap::new(),
            directory: "/".into(),
            kind: "oip".into(),
            capabilities: vec![],
            memory: 1,
            over_commit: 0,
            replicas,
            bounds,
        }
    }

    #[test]
    fn scheduler_scales_within_the_bounds_of_the_manifest() {
        let servers = DesiredServers::new();
        let size = || servers.subscribe().borrow().get("s").map(|(_, size)| *size);
        let set = |spec| servers.set(&[("s".to_owned(), spec)].into());
        set(spec(2, (1, 4)));
        assert_eq!(size(), Some(2));
        let (replicas, announced) = servers.scale("s", 9).unwrap();
        assert_eq!((replicas, announced.expected_replicas, announced.max_replicas), (4, 4, 4));
        assert_eq!(servers.scale("s", 7), None, "already at its maximum");
        assert_eq!(servers.scale("other", 1), None, "unknown server");
        // A manifest change that leaves the replicas alone keeps the scaled size.
        set(LaunchSpec { memory: 2, ..spec(2, (1, 4)) });
        assert_eq!(size(), Some(4));
        set(spec(3, (1, 4)));
        assert_eq!(size(), Some(3));
        assert_eq!(servers.scale("s", 0).map(|(replicas, _)| replicas), Some(1));
        servers.set(&BTreeMap::new());
        assert_eq!(size(), None);
    }
}
