//! Loading and eviction: one operation per model at a time, shared by all waiters.

use super::{Inner, LoadResult, ModelCache, Residency, channel, lru::Admission};
use crate::backend::Failure;
use gantry_transport::Backoff;
use std::{sync::Arc, time::Duration, time::SystemTime};
use tokio::time::Instant;

const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// Why a request cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    Unknown,
    Failed(String),
}

/// Keeps a model in memory for a request until dropped.
pub(crate) struct InFlightGuard {
    inner: Arc<Inner>,
    name: Arc<str>,
}

impl InFlightGuard {
    /// For a model that is pinned already.
    pub(super) fn new(inner: &Arc<Inner>, name: &Arc<str>) -> Self {
        Self { inner: inner.clone(), name: name.clone() }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.inner.lock().memory.unpin(&self.name);
        self.inner.changed.notify_waiters();
    }
}

impl ModelCache {
    /// Returns once the model is in memory, loading it if needed. Dropping the future cancels the request, not the
    /// shared load.
    pub(crate) async fn acquire(&self, name: &str) -> Result<InFlightGuard, Rejected> {
        let inner = &self.inner;
        let guard = {
            let mut state = inner.lock();
            let Some((name, entry)) = state.entries.get_key_value(name) else {
                return Err(Rejected::Unknown);
            };
            if entry.removing || !entry.loaded_once {
                return Err(Rejected::Unknown);
            }
            let name = name.clone();
            state.memory.pin(&name);
            state.entry(&name, |e| {
                e.used = SystemTime::now();
                e.idle_since = Instant::now();
            });
            InFlightGuard::new(inner, &name)
        };
        // The guard prevents eviction from here on.
        while inner.lock().memory.residency(&guard.name) != Some(Residency::Memory) {
            let Some(result) = inner.start_load(&guard.name) else { return Err(Rejected::Unknown) };
            if let Err(failure) = wait_loaded(result).await {
                return Err(Rejected::Failed(failure.message().to_owned()));
            }
        }
        Ok(guard)
    }

    /// Handles a "not found" from the server: verifies it and marks the model for reload. Returns whether a retry
    /// makes sense.
    pub(crate) async fn handle_missing(&self, name: &str) -> bool {
        match self.inner.setup.repository.serves(name).await {
            Ok(true) => false,
            Ok(false) => self.inner.with(|state| {
                let known = state.entries.contains_key(name);
                if state.memory.residency(name) == Some(Residency::Memory) {
                    tracing::warn!(model = %name, "model missing on the server");
                    state.memory.set_residency(name, Residency::Disk);
                    // Other models may be missing, too.
                    self.request_health_check();
                }
                known
            }),
            Err(_) => {
                self.request_health_check();
                false
            }
        }
    }
}

pub(super) async fn wait_loaded(mut result: LoadResult) -> Result<(), Failure> {
    match result.wait_for(Option::is_some).await {
        Ok(result) => result.clone().unwrap_or(Ok(())),
        Err(_) => Err(Failure::Unreachable("the agent is stopping".into())),
    }
}

impl Inner {
    /// Starts loading a model, or joins the load in progress; `None` for an unknown model.
    pub(super) fn start_load(self: &Arc<Self>, name: &Arc<str>) -> Option<LoadResult> {
        let mut state = self.lock();
        let misses = state.memory.residency(name) != Some(Residency::Memory);
        let entry = state.entries.get_mut(name)?;
        if let Some(result) = &entry.load {
            return Some(result.clone());
        }
        if misses && entry.loaded_once {
            self.setup.metrics.misses.inc();
        }
        let (sender, result) = channel::channel(None);
        entry.load = Some(result.clone());
        drop(state);
        let (inner, name) = (self.clone(), name.clone());
        // A separate task: the load completes even if the request is cancelled.
        tokio::spawn(async move {
            let limit = inner.setup.limits.load;
            let result = match tokio::time::timeout(limit, inner.load_into_memory(&name)).await {
                Ok(result) => result,
                Err(_) => Err(Failure::Unreachable(format!("not loaded within {} s", limit.as_secs()))),
            };
            if let Err(failure) = &result {
                tracing::warn!(model = %name, reason = failure.message(), "failed to load model");
            }
            inner.with(|state| {
                if state.memory.residency(&name) == Some(Residency::Loading) {
                    let residency = if result.is_ok() { Residency::Memory } else { Residency::Disk };
                    state.memory.set_residency(&name, residency);
                }
                state.entry(&name, |e| e.load = None);
            });
            sender.send_replace(Some(result));
        });
        Some(result)
    }

    async fn load_into_memory(self: &Arc<Self>, name: &Arc<str>) -> Result<(), Failure> {
        // Without a queue: a model that waits for busy ones does not block those that fit. Memory that is being freed
        // counts as free, so that concurrent loads do not evict too much.
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if self.reserve_memory(name)? {
                break;
            }
            changed.await;
        }
        if self.lock().memory.residency(name) == Some(Residency::Memory) {
            return Ok(());
        }
        let limits = &self.setup.limits;
        let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
        let mut attempts = 0;
        loop {
            match self.setup.repository.load(name, limits.load).await {
                Err(Failure::Unreachable(reason)) if attempts < limits.load_retries => {
                    tracing::warn!(model = %name, %reason, "retrying load");
                    self.health_check.notify_one();
                    attempts += 1;
                    tokio::time::sleep(backoff.next_delay()).await;
                    // Waits for a restarting server, within the load timeout.
                    self.wait_until_responsive().await;
                }
                result => return result,
            }
        }
    }

    /// Reserves memory, or starts evictions and returns false.
    fn reserve_memory(self: &Arc<Self>, name: &Arc<str>) -> Result<bool, Failure> {
        let mut state = self.lock();
        match state.memory.residency(name) {
            None => return Err(Failure::Unreachable("the load was cancelled".into())),
            // Reload once the unload has finished.
            Some(Residency::Unloading) => return Ok(false),
            Some(Residency::Memory) => return Ok(true),
            Some(Residency::Disk | Residency::Loading) => {}
        }
        match state.memory.admission(name) {
            Admission::Free => {
                state.memory.set_residency(name, Residency::Loading);
                Ok(true)
            }
            Admission::Wait => Ok(false),
            Admission::Never => Err(Failure::Rejected(format!(
                "requires {} bytes of memory, the server has {}",
                state.memory.size(name),
                state.memory.capacity()
            ))),
            Admission::Evict(victims) => {
                for victim in victims {
                    self.evict(&mut state.memory, victim);
                }
                Ok(false)
            }
        }
    }

    /// Unloads a model, keeping it on disk.
    pub(super) fn evict(self: &Arc<Self>, memory: &mut super::Lru, name: Arc<str>) {
        memory.set_residency(&name, Residency::Unloading);
        let inner = self.clone();
        tokio::spawn(async move {
            let unloaded = inner.unload(&name).await;
            let residency = match unloaded {
                Ok(()) => {
                    inner.setup.metrics.evictions.inc();
                    tracing::info!(model = %name, "model evicted");
                    Residency::Disk
                }
                Err(failure) => {
                    tracing::warn!(model = %name, reason = failure.message(), "failed to evict model");
                    // Delays the next attempt.
                    tokio::time::sleep(BACKOFF_MIN).await;
                    Residency::Memory
                }
            };
            inner.with(|state| {
                if state.memory.residency(&name) == Some(Residency::Unloading) {
                    state.memory.set_residency(&name, residency);
                }
            });
        });
    }

    pub(super) async fn unload(&self, name: &str) -> Result<(), Failure> {
        let limits = &self.setup.limits;
        let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
        let mut attempts = 0;
        let unloading = async {
            loop {
                match self.setup.repository.unload(name, limits.unload).await {
                    Err(_) if attempts < limits.unload_retries => {
                        self.health_check.notify_one();
                        attempts += 1;
                        tokio::time::sleep(backoff.next_delay()).await;
                    }
                    result => return result,
                }
            }
        };
        let late = || Failure::Unreachable(format!("not unloaded within {} s", limits.unload.as_secs()));
        tokio::time::timeout(limits.unload, unloading).await.unwrap_or_else(|_| Err(late()))
    }
}
