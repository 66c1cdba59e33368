//! Applies manifests to the scheduler, at start and after every change of the files.

use crate::{
    applied_sources::AppliedSources,
    graphs::Graphs,
    scheduler_client::{FILE_OWNER_PREFIX, FileClient, ownership_refusal},
    servers::DesiredServers,
    sources::{DesiredState, Problems, Sources},
};
use futures::StreamExt as _;
use gantry_api::{Kind, Object};
use gantry_gateway::Routes;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::sync::mpsc;
use tonic::{Code, Status};

const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Concurrent calls: the scheduler commits them in one batch.
const MAX_CONCURRENT_CALLS: usize = 64;

pub(crate) struct ManifestWatcher {
    sources: Sources,
    client: FileClient,
    servers: DesiredServers,
    routes: Routes,
    graphs: Graphs,
    applied_sources: AppliedSources,
    applied: BTreeMap<(Kind, String), Object>,
    seen: u64,
    reported: Option<Problems>,
}

/// A change of the files, to be printed.
pub(crate) enum ChangeEvent {
    Applied(Applied),
    /// The files are invalid; the last valid state is kept.
    Invalid(Problems),
}

#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// Such as `model/iris changed`.
    pub(crate) changed: Vec<String>,
    /// Messages about objects of other owners.
    pub(crate) foreign: Vec<String>,
}

impl ManifestWatcher {
    pub(crate) fn new(
        sources: Sources,
        client: FileClient,
        servers: DesiredServers,
        routes: Routes,
        applied_sources: AppliedSources,
    ) -> Self {
        let seen = sources.fingerprint();
        Self {
            sources,
            client,
            servers,
            routes,
            graphs: Graphs::default(),
            applied_sources,
            applied: BTreeMap::new(),
            seen,
            reported: None,
        }
    }

    pub(crate) async fn apply(&mut self, desired: &DesiredState) -> Result<Applied, Status> {
        let roots = self.sources.roots().to_vec();
        let first_root = roots.first().map_or(Path::new(""), PathBuf::as_path);
        let default_owner = format!("{FILE_OWNER_PREFIX}{}", first_root.display());
        let mut changes = Vec::new();
        let mut foreign = Vec::new();
        let mut vanished: Vec<(Kind, String)> = self
            .applied_sources
            .vanished(&roots, &desired.objects)
            .chain(self.applied.keys().filter(|k| !desired.objects.contains_key(*k)).cloned())
            .collect();
        // The reverse of the order of application.
        vanished.sort_by(|a, b| b.cmp(a));
        vanished.dedup();
        // Persisted before the calls: if the process dies in between, the next start still knows the owner.
        self.applied_sources.write(&roots, desired.objects.keys().chain(&vanished).cloned());
        for (kind, name) in vanished {
            self.client.remove(kind, &name, &default_owner).await?;
            self.applied.remove(&(kind, name.clone()));
            changes.push(format!("{}/{name} removed", kind.name().to_lowercase()));
        }
        // Processes are started whether or not the scheduler accepts their server.
        self.servers.set(&desired.launch_specs);
        // Servers, models, then what needs models; objects of one kind are independent.
        for kind in Kind::ALL {
            let changed: Vec<_> = desired
                .objects
                .iter()
                .filter(|(key, object)| key.0 == kind && self.applied.get(*key) != Some(*object))
                .map(|(key, object)| (key.clone(), object.clone()))
                .collect();
            let mut calls = futures::stream::iter(changed)
                .map(|(key, object)| {
                    let client = self.client.clone();
                    let file = desired.files.get(&key).map_or("", String::as_str);
                    let owner = format!("{FILE_OWNER_PREFIX}{file}");
                    async move { client.apply(&object, &owner).await.map(|()| (key, object)) }
                })
                .buffer_unordered(MAX_CONCURRENT_CALLS);
            let mut failed = None;
            let mut accepted = Vec::new();
            while let Some(result) = calls.next().await {
                match result {
                    Ok(done) => accepted.push(done),
                    // A retry does not change the owner; the other objects are still applied.
                    Err(error) => match ownership_refusal(&error) {
                        Some(message) => foreign.push(message),
                        None => failed = failed.or(Some(error)),
                    },
                }
            }
            drop(calls);
            for (key, object) in accepted {
                let verb = if self.applied.contains_key(&key) { "changed" } else { "added" };
                changes.push(format!("{}/{} {verb}", key.0.name().to_lowercase(), key.1));
                self.applied.insert(key, object);
            }
            if let Some(error) = failed {
                return Err(error);
            }
        }
        self.applied_sources.write(&roots, desired.objects.keys().cloned());
        if desired.graphs != self.graphs {
            self.routes.set_local_services(&desired.graphs.routes());
            changes.extend(desired.graphs.changes(&self.graphs));
            self.graphs = desired.graphs.clone();
        }
        changes.dedup();
        Ok(Applied { changed: changes, foreign })
    }

    /// Watches until the receiver is dropped. Runs as its own task: aborting it in the middle of a change would leave
    /// objects in the scheduler that no later run removes.
    pub(crate) async fn watch(mut self, events: mpsc::Sender<ChangeEvent>) {
        loop {
            let event = self.next().await;
            if events.send(event).await.is_err() {
                return;
            }
        }
    }

    /// Waits for a change and applies it. Invalid files change nothing.
    async fn next(&mut self) -> ChangeEvent {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let sources = self.sources.clone();
            let Ok(now) = tokio::task::spawn_blocking(move || sources.fingerprint()).await else { continue };
            if now == self.seen {
                continue;
            }
            let sources = self.sources.clone();
            let Ok(read) = tokio::task::spawn_blocking(move || sources.read()).await else { continue };
            match read {
                Ok(desired) => {
                    self.reported = None;
                    match self.apply(&desired).await {
                        Ok(applied) => {
                            self.seen = now;
                            if !applied.changed.is_empty() || !applied.foreign.is_empty() {
                                return ChangeEvent::Applied(applied);
                            }
                        }
                        // A model of that name is still terminating.
                        Err(error) if error.code() == Code::FailedPrecondition => {
                            tracing::debug!(%error, "manifest change rejected; retrying");
                        }
                        Err(error) => tracing::warn!(%error, "failed to apply manifest change; retrying"),
                    }
                }
                Err(problems) => {
                    self.seen = now;
                    if self.reported.as_ref() != Some(&problems) {
                        self.reported = Some(problems.clone());
                        return ChangeEvent::Invalid(problems);
                    }
                }
            }
        }
    }
}
