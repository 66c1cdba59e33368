//! Into memory and out of it: one at a time for each model, whoever asks for it.

use super::{Arrival, Inner, Place, Shelf, channel, memory::Room};
use crate::backend::Failure;
use std::{sync::Arc, time::Duration, time::SystemTime};
use tokio::time::Instant;

/// The wait before a server that could not be reached is asked again; it doubles with each attempt.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Why a request may not go to a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// This replica does not have it.
    Unknown,
    /// It could not be brought into memory.
    Failed(String),
}

/// A request that needs its model where it is. Letting go of it ends the request.
pub(crate) struct Hold {
    inner: Arc<Inner>,
    name: Arc<str>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.inner.lock().memory.release(&self.name);
        self.inner.changed.notify_waiters();
    }
}

impl Shelf {
    /// Lets a request to its model, after bringing that into memory if need be. Dropping the future gives up the
    /// request, not the work that others may wait for.
    pub(crate) async fn enter(&self, name: &str) -> Result<Hold, Refused> {
        let inner = &self.inner;
        let hold = {
            let mut state = inner.lock();
            let Some((name, entry)) = state.entries.get_key_value(name) else { return Err(Refused::Unknown) };
            if entry.closing || !entry.proven {
                return Err(Refused::Unknown);
            }
            let name = name.clone();
            state.memory.hold(&name);
            state.entry(&name, |e| {
                e.used = SystemTime::now();
                e.idle_since = Instant::now();
            });
            Hold { inner: inner.clone(), name }
        };
        // Held, so once in memory it stays.
        while inner.lock().memory.place(&hold.name) != Some(Place::Memory) {
            let Some(arrival) = inner.bring(&hold.name) else { return Err(Refused::Unknown) };
            if let Err(failure) = arrived(arrival).await {
                return Err(Refused::Failed(failure.words().to_owned()));
            }
        }
        Ok(hold)
    }

    /// The server said that it does not have a model that it should have. Asks it again, and if that is so, lets the
    /// next request bring it back; says whether that makes sense.
    pub(crate) async fn missing(&self, name: &str) -> bool {
        match self.inner.setup.repository.serves(name).await {
            Ok(true) => false,
            Ok(false) => self.inner.with(|state| {
                let known = state.entries.contains_key(name);
                if state.memory.place(name) == Some(Place::Memory) {
                    tracing::warn!(model = %name, "the server has forgotten it");
                    state.memory.set_place(name, Place::Disk);
                    // It may have forgotten the others too.
                    self.doubt();
                }
                known
            }),
            Err(_) => {
                self.doubt();
                false
            }
        }
    }
}

/// Waits for a model that is on its way.
pub(super) async fn arrived(mut arrival: Arrival) -> Result<(), Failure> {
    match arrival.wait_for(Option::is_some).await {
        Ok(result) => result.clone().unwrap_or(Ok(())),
        Err(_) => Err(Failure::Gone("the agent is stopping".into())),
    }
}

impl Inner {
    /// Brings a model into memory, unless that is under way already; `None` when there is no such model.
    pub(super) fn bring(self: &Arc<Self>, name: &Arc<str>) -> Option<Arrival> {
        let mut state = self.lock();
        let misses = state.memory.place(name) != Some(Place::Memory);
        let entry = state.entries.get_mut(name)?;
        if let Some(arrival) = &entry.coming {
            return Some(arrival.clone());
        }
        if misses && entry.proven {
            self.setup.metrics.misses.inc();
        }
        let (sender, arrival) = channel::channel(None);
        entry.coming = Some(arrival.clone());
        drop(state);
        let (inner, name) = (self.clone(), name.clone());
        // A task of its own: it is finished even when the request that began it gives up.
        tokio::spawn(async move {
            let limit = inner.setup.limits.load;
            let result = match tokio::time::timeout(limit, inner.bring_in(&name)).await {
                Ok(result) => result,
                Err(_) => Err(Failure::Gone(format!("it was not loaded within {} s", limit.as_secs()))),
            };
            if let Err(failure) = &result {
                tracing::warn!(model = %name, reason = failure.words(), "not brought into memory");
            }
            inner.with(|state| {
                if state.memory.place(&name) == Some(Place::Coming) {
                    let place = if result.is_ok() { Place::Memory } else { Place::Disk };
                    state.memory.set_place(&name, place);
                }
                state.entry(&name, |e| e.coming = None);
            });
            sender.send_replace(Some(result));
        });
        Some(arrival)
    }

    async fn bring_in(self: &Arc<Self>, name: &Arc<str>) -> Result<(), Failure> {
        if !self.take_room(name)? {
            // Others have to leave first: one model after the other is given room.
            let _door = self.door.lock().await;
            loop {
                let changed = self.changed.notified();
                let mut changed = std::pin::pin!(changed);
                changed.as_mut().enable();
                if self.take_room(name)? {
                    break;
                }
                changed.await;
            }
        }
        if self.lock().memory.place(name) == Some(Place::Memory) {
            return Ok(());
        }
        let limits = &self.setup.limits;
        let mut wait = FIRST_WAIT;
        let mut tries = 0;
        loop {
            match self.setup.repository.load(name, limits.load).await {
                Err(Failure::Gone(reason)) if tries < limits.load_retries => {
                    tracing::warn!(model = %name, %reason, "loading is tried again");
                    self.doubt.notify_one();
                    tries += 1;
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(LONGEST_WAIT);
                    // A server that is being started again is worth waiting for, as long as the model may take.
                    self.wait_until_ready().await;
                }
                result => return result,
            }
        }
    }

    /// Takes room for a model if there is some; else sends away who may go, and says false.
    fn take_room(self: &Arc<Self>, name: &Arc<str>) -> Result<bool, Failure> {
        let mut state = self.lock();
        match state.memory.place(name) {
            None => return Err(Failure::Gone("it is not wanted any more".into())),
            // It is on its way out: it can turn around when it is out.
            Some(Place::Leaving) => return Ok(false),
            Some(Place::Memory) => return Ok(true),
            Some(Place::Disk | Place::Coming) => {}
        }
        match state.memory.room_for(name) {
            Room::Free => {
                state.memory.set_place(name, Place::Coming);
                Ok(true)
            }
            Room::Wait => Ok(false),
            Room::Never => Err(Failure::Refused(format!(
                "it takes {} bytes of memory, and the server has {}",
                state.memory.size(name),
                state.memory.capacity()
            ))),
            Room::Evict(victims) => {
                for victim in victims {
                    self.evict(&mut state.memory, victim);
                }
                Ok(false)
            }
        }
    }

    /// Sends a model from memory to disk.
    pub(super) fn evict(self: &Arc<Self>, memory: &mut super::Memory, name: Arc<str>) {
        memory.set_place(&name, Place::Leaving);
        let inner = self.clone();
        tokio::spawn(async move {
            let unloaded = inner.unload(&name).await;
            let place = match unloaded {
                Ok(()) => {
                    inner.setup.metrics.evictions.inc();
                    tracing::info!(model = %name, "evicted from memory");
                    Place::Disk
                }
                Err(failure) => {
                    tracing::warn!(model = %name, reason = failure.words(), "could not be evicted");
                    // Nobody tries again at once.
                    tokio::time::sleep(FIRST_WAIT).await;
                    Place::Memory
                }
            };
            inner.with(|state| {
                if state.memory.place(&name) == Some(Place::Leaving) {
                    state.memory.set_place(&name, place);
                }
            });
        });
    }

    /// Has the server unload a model.
    pub(super) async fn unload(&self, name: &str) -> Result<(), Failure> {
        let limits = &self.setup.limits;
        let mut wait = FIRST_WAIT;
        let mut tries = 0;
        let unloading = async {
            loop {
                match self.setup.repository.unload(name, limits.unload).await {
                    Err(_) if tries < limits.unload_retries => {
                        self.doubt.notify_one();
                        tries += 1;
                        tokio::time::sleep(wait).await;
                        wait = (wait * 2).min(LONGEST_WAIT);
                    }
                    result => return result,
                }
            }
        };
        let late = || Failure::Gone(format!("it was not unloaded within {} s", limits.unload.as_secs()));
        tokio::time::timeout(limits.unload, unloading).await.unwrap_or_else(|_| Err(late()))
    }
}
