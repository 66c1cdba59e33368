//! Looking after the server: whether it is there, and whether it holds what it should.

use super::{Health, Inner, Place, Shelf, bring::arrived};
use crate::backend::Failure;
use futures::{StreamExt as _, stream};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often a server that does not answer is asked again.
const SOON: Duration = Duration::from_millis(250);
/// How often it may fail to answer before it counts as gone: a busy server is not a dead one.
const MISSES: u32 = 3;
/// How often the server is asked what it holds, when nobody has a reason to doubt it: some read all files for that.
const LOOK: Duration = Duration::from_mins(1);
/// Models that are loaded again at the same time.
const PARALLEL: usize = 4;

impl Shelf {
    /// Looks after the server until `stop` is cancelled.
    pub(crate) async fn watch(&self, stop: CancellationToken) {
        let inner = &self.inner;
        let watching = async {
            loop {
                inner.wait_until_ready().await;
                match self.restore().await {
                    Ok(()) => inner.wait_until_lost(self).await,
                    Err(reason) => {
                        tracing::warn!(%reason, "the server cannot be looked after yet");
                        tokio::time::sleep(SOON).await;
                    }
                }
            }
        };
        tokio::select! {
            () = watching => {}
            () = stop.cancelled() => {}
        }
    }

    /// Makes what the server holds what it should hold: what this agent placed stays or comes back, all else goes.
    async fn restore(&self) -> Result<(), String> {
        let inner = &self.inner;
        let there = inner.there().await.map_err(|f| f.words().to_owned())?;
        let foreign: Vec<String> = {
            let state = inner.lock();
            there.iter().filter(|name| !state.entries.contains_key(name.as_str())).cloned().collect()
        };
        for name in foreign {
            tracing::info!(model = %name, "unloaded: nobody here asked for it");
            inner.unload(&name).await.map_err(|f| f.words().to_owned())?;
        }
        let absent: Vec<Arc<str>> = inner.with(|state| {
            let mut absent = Vec::new();
            for name in state.memory.by_use() {
                let proven = state.entries.get(&name).is_some_and(|e| e.proven && !e.closing);
                match (state.memory.place(&name), there.contains(&*name)) {
                    // Somebody is at it.
                    (None | Some(Place::Coming | Place::Leaving), _) => {}
                    (Some(_), true) => state.memory.set_place(&name, Place::Memory),
                    (Some(_), false) => {
                        state.memory.set_place(&name, Place::Disk);
                        if proven {
                            absent.push(name);
                        }
                    }
                }
            }
            // A server that loads all that it finds may hold more than it should.
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
            let arrival = inner.bring(&name);
            let result = match arrival {
                Some(arrival) => arrived(arrival).await,
                None => Ok(()),
            };
            (name, result)
        });
        let mut loading = stream::iter(loading).buffer_unordered(PARALLEL);
        while let Some((name, result)) = loading.next().await {
            match result {
                Ok(()) => tracing::info!(model = %name, "loaded again"),
                Err(Failure::Gone(reason)) => return Err(reason),
                Err(Failure::Refused(reason)) => {
                    tracing::warn!(model = %name, %reason, "given up: the server does not take it any more");
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
    /// The models that the server can answer for.
    async fn there(&self) -> Result<BTreeSet<String>, Failure> {
        if let Some(there) = self.setup.repository.index().await? {
            return Ok(there);
        }
        // It keeps no index: each is asked about.
        let names: Vec<Arc<str>> = self.lock().entries.keys().cloned().collect();
        let mut there = BTreeSet::new();
        for name in names {
            if self.setup.repository.serves(&name).await? {
                there.insert(name.to_string());
            }
        }
        Ok(there)
    }

    pub(super) async fn wait_until_ready(&self) {
        while !self.setup.repository.ready().await {
            tokio::time::sleep(SOON).await;
        }
    }

    /// Returns when the server is gone, or has lost all that it should have.
    async fn wait_until_lost(self: &Arc<Self>, shelf: &Shelf) {
        let mut looked = Instant::now();
        loop {
            let doubted = tokio::select! {
                () = tokio::time::sleep(self.setup.limits.check) => false,
                () = self.doubt.notified() => true,
            };
            let mut misses = 0;
            while !self.setup.repository.ready().await {
                misses += 1;
                if misses >= MISSES {
                    tracing::warn!("the inference server does not answer");
                    self.lost("the inference server does not answer");
                    return;
                }
                tokio::time::sleep(SOON).await;
            }
            if !doubted && misses == 0 && looked.elapsed() < LOOK {
                continue;
            }
            looked = Instant::now();
            let Ok(there) = self.there().await else { continue };
            let (kept, forgotten): (Vec<Arc<str>>, Vec<Arc<str>>) = {
                let state = self.lock();
                let resident = |name: &&Arc<str>| state.memory.place(name) == Some(Place::Memory);
                state.entries.keys().filter(resident).cloned().partition(|name| there.contains(&**name))
            };
            // An index is no snapshot: what seems to be missing is asked about by name.
            let mut missing = Vec::new();
            for name in forgotten {
                if shelf.missing(&name).await {
                    missing.push(name);
                }
            }
            if kept.is_empty() && !missing.is_empty() {
                self.lost("the inference server came back without its models");
                return;
            }
            for name in missing {
                self.bring_back(shelf, &name).await;
            }
        }
    }

    /// Loads a model that the server lost, among others that it kept.
    async fn bring_back(self: &Arc<Self>, shelf: &Shelf, name: &Arc<str>) {
        let Some(arrival) = self.bring(name) else { return };
        if let Err(Failure::Refused(reason)) = arrived(arrival).await {
            tracing::warn!(model = %name, %reason, "given up: the server does not take it any more");
            shelf.forget(name).await;
            self.health.send_modify(|h| {
                h.epoch += 1;
                h.reason = format!("the server lost {name} and does not take it any more");
            });
        }
    }

    fn lost(&self, reason: &str) {
        self.with(|state| {
            for name in state.memory.by_use() {
                if state.memory.place(&name) == Some(Place::Memory) {
                    state.memory.set_place(&name, Place::Disk);
                }
            }
        });
        self.health.send_modify(|h| {
            h.alive = false;
            reason.clone_into(&mut h.reason);
        });
    }
}
