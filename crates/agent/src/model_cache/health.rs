//! Health checks of the server, and restoring its models.

use super::{Health, Inner, ModelCache, Residency, load::wait_loaded};
use crate::backend::Failure;
use futures::{StreamExt as _, stream};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Failed checks before the server counts as lost: a busy server may miss one.
const MAX_MISSES: u32 = 3;
/// How often the index is compared without a trigger; some servers read all files for it.
const INDEX_INTERVAL: Duration = Duration::from_mins(1);
/// Concurrent reloads.
const PARALLEL_LOADS: usize = 4;

impl ModelCache {
    /// Runs until `stop` is cancelled.
    pub(crate) async fn watch(&self, stop: CancellationToken) {
        let inner = &self.inner;
        let watching = async {
            loop {
                inner.wait_until_responsive().await;
                match self.restore().await {
                    Ok(()) => inner.wait_unhealthy(self).await,
                    Err(reason) => {
                        tracing::warn!(%reason, "failed to restore models; retrying");
                        tokio::time::sleep(RETRY_INTERVAL).await;
                    }
                }
            }
        };
        tokio::select! {
            () = watching => {}
            () = stop.cancelled() => {}
        }
    }

    /// Reconciles the server's models: unloads foreign ones, reloads missing ones.
    async fn restore(&self) -> Result<(), String> {
        let inner = &self.inner;
        let there = inner.loaded_models().await.map_err(|f| f.message().to_owned())?;
        let foreign: Vec<String> = {
            let state = inner.lock();
            there.iter().filter(|name| !state.entries.contains_key(name.as_str())).cloned().collect()
        };
        for name in foreign {
            tracing::info!(model = %name, "unloaded foreign model");
            inner.unload(&name).await.map_err(|f| f.message().to_owned())?;
        }
        let absent: Vec<Arc<str>> = inner.with(|state| {
            let mut absent = Vec::new();
            for name in state.memory.by_recency() {
                let loaded_once = state.entries.get(&name).is_some_and(|e| e.loaded_once && !e.removing);
                match (state.memory.residency(&name), there.contains(&*name)) {
                    // Load or unload in progress.
                    (None | Some(Residency::Loading | Residency::Unloading), _) => {}
                    (Some(_), true) => state.memory.set_residency(&name, Residency::Memory),
                    (Some(_), false) => {
                        state.memory.set_residency(&name, Residency::Disk);
                        if loaded_once {
                            absent.push(name);
                        }
                    }
                }
            }
            // A server that autoloads its repository may exceed the capacity.
            for name in state.memory.excess() {
                inner.evict(&mut state.memory, name);
            }
            absent
        });
        let mut room = self.memory_free();
        let fitting = absent.into_iter().filter(|name| {
            let size = inner.lock().memory.size(name);
            let fits = size <= room;
            room = room.saturating_sub(if fits { size } else { 0 });
            fits
        });
        let fitting: Vec<Arc<str>> = fitting.collect();
        let loading = fitting.into_iter().map(|name| async move {
            let result = inner.start_load(&name);
            let result = match result {
                Some(result) => wait_loaded(result).await,
                None => Ok(()),
            };
            (name, result)
        });
        let mut loading = stream::iter(loading).buffer_unordered(PARALLEL_LOADS);
        while let Some((name, result)) = loading.next().await {
            match result {
                Ok(()) => tracing::info!(model = %name, "loaded again"),
                Err(Failure::Unreachable(reason)) => return Err(reason),
                Err(Failure::Rejected(reason) | Failure::Overloaded(reason)) => {
                    tracing::warn!(model = %name, %reason, "removed: the server no longer accepts it");
                    self.forget(&name).await;
                }
            }
        }
        inner.health.send_modify(|h| {
            *h = Health { alive: true, epoch: h.epoch + 1, reason: "the server's models changed".into() };
        });
        Ok(())
    }
}

impl Inner {
    async fn loaded_models(&self) -> Result<BTreeSet<String>, Failure> {
        if let Some(there) = self.setup.repository.index().await? {
            return Ok(there);
        }
        // No index: query each model.
        let names: Vec<Arc<str>> = self.lock().entries.keys().cloned().collect();
        let mut there = BTreeSet::new();
        for name in names {
            if self.setup.repository.serves(&name).await? {
                there.insert(name.to_string());
            }
        }
        Ok(there)
    }

    pub(super) async fn wait_until_responsive(&self) {
        while !self.setup.repository.ready().await {
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Returns when the server is lost or has lost all its models.
    async fn wait_unhealthy(self: &Arc<Self>, cache: &ModelCache) {
        let mut compared = Instant::now();
        loop {
            let requested = tokio::select! {
                () = tokio::time::sleep(self.setup.limits.check) => false,
                () = self.health_check.notified() => true,
            };
            let mut misses = 0;
            while !self.setup.repository.ready().await {
                misses += 1;
                if misses >= MAX_MISSES {
                    tracing::warn!("the inference server does not respond");
                    self.mark_lost("the inference server does not respond");
                    return;
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            if !requested && misses == 0 && compared.elapsed() < INDEX_INTERVAL {
                continue;
            }
            compared = Instant::now();
            let Ok(there) = self.loaded_models().await else { continue };
            let (kept, forgotten): (Vec<Arc<str>>, Vec<Arc<str>>) = {
                let state = self.lock();
                let resident = |name: &&Arc<str>| state.memory.residency(name) == Some(Residency::Memory);
                state.entries.keys().filter(resident).cloned().partition(|name| there.contains(&**name))
            };
            // An index is not a snapshot: confirm missing models by name.
            let mut missing = Vec::new();
            for name in forgotten {
                if cache.handle_missing(&name).await {
                    missing.push(name);
                }
            }
            if kept.is_empty() && !missing.is_empty() {
                self.mark_lost("the inference server restarted without its models");
                return;
            }
            for name in missing {
                self.reload(cache, &name).await;
            }
        }
    }

    /// Reloads a model that the server lost.
    async fn reload(self: &Arc<Self>, cache: &ModelCache, name: &Arc<str>) {
        let Some(result) = self.start_load(name) else { return };
        if let Err(Failure::Rejected(reason) | Failure::Overloaded(reason)) = wait_loaded(result).await {
            tracing::warn!(model = %name, %reason, "removed: the server no longer accepts it");
            cache.forget(name).await;
            self.health.send_modify(|h| {
                h.epoch += 1;
                h.reason = format!("the server lost {name} and no longer accepts it");
            });
        }
    }

    fn mark_lost(&self, reason: &str) {
        self.with(|state| {
            for name in state.memory.by_recency() {
                if state.memory.residency(&name) == Some(Residency::Memory) {
                    state.memory.set_residency(&name, Residency::Disk);
                }
            }
        });
        self.health.send_modify(|h| {
            h.alive = false;
            reason.clone_into(&mut h.reason);
        });
    }
}
