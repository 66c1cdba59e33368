//! The last routes on disk, so that a gateway serves after a restart while the scheduler is unreachable.
//!
//! The file contains the events that restore the routes: Reset, one Upsert per object, Synced. It is replaced as a whole, by
//! rename: at most one write is in flight, and the next one waits for [`INTERVAL`], longer if writes are slow. A crash
//! therefore loses at most the changes of the last moments, which the scheduler repeats when it is reachable.

use crate::Routes;
use gantry_proto::gantry::{Reset, RouteEvent, Synced, route_event::Event};
use prost::Message as _;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;

const FILE: &str = "routes.bin";
/// Format of the file; others are ignored.
const MAGIC: &[u8; 8] = b"gantryr1";
const INTERVAL: Duration = Duration::from_secs(1);
/// Writes take at most this part of the time.
const WRITE_SHARE: u32 = 10;

/// Kind and name of a routed object.
type Key = (u8, String);

/// Routes in a directory.
pub struct StoredRoutes {
    file: PathBuf,
    state_id: u64,
    epoch: u64,
    sequence: u64,
    /// The Upsert of each object, encoded.
    objects: BTreeMap<Key, Vec<u8>>,
    /// Objects received since Reset; the others are current until Synced.
    replay: Option<BTreeMap<Key, Vec<u8>>>,
    is_dirty: bool,
    write: Option<JoinHandle<io::Result<Duration>>>,
    next_write: tokio::time::Instant,
    last_error: Option<String>,
}

impl StoredRoutes {
    /// Uses `directory`, created if needed, and restores the routes of the last start, if there are any.
    pub fn open(directory: &Path, routes: &Routes) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let file = directory.join(FILE);
        let events = match fs::read(&file) {
            Ok(bytes) => decode(&bytes).unwrap_or_else(|| {
                tracing::warn!(file = %file.display(), "stored routes are damaged or of another version; ignored");
                Vec::new()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let mut stored = Self {
            file,
            state_id: 0,
            epoch: 0,
            sequence: 0,
            objects: BTreeMap::new(),
            replay: None,
            is_dirty: false,
            write: None,
            next_write: tokio::time::Instant::now(),
            last_error: None,
        };
        for event in events {
            stored.record(&event);
            routes.apply(event);
        }
        stored.is_dirty = false;
        Ok(stored)
    }

    /// State ID and epoch of the stored routes: older ones are ignored.
    pub(super) const fn state(&self) -> (u64, u64) {
        (self.state_id, self.epoch)
    }

    /// Takes an event that the routes have applied.
    pub(super) fn record(&mut self, event: &RouteEvent) {
        (self.state_id, self.epoch, self.sequence) = (event.state_id, event.epoch, event.sequence);
        match &event.event {
            Some(Event::Reset(_)) => self.replay = Some(BTreeMap::new()),
            Some(Event::Synced(_)) => {
                if let Some(replayed) = self.replay.take() {
                    self.is_dirty = true;
                    self.objects = replayed;
                }
            }
            Some(change) => {
                let is_replay = self.replay.is_some();
                let objects = self.replay.as_mut().unwrap_or(&mut self.objects);
                let (key, is_upsert) = key(change);
                let is_changed = if is_upsert {
                    let encoded = event.encode_to_vec();
                    objects.insert(key, encoded.clone()).is_none_or(|old| old != encoded)
                } else {
                    objects.remove(&key).is_some()
                };
                self.is_dirty |= is_changed && !is_replay;
            }
            None => {}
        }
    }

    /// Writes when a write is due; otherwise waits. Cancel-safe.
    pub(super) async fn write_when_due(&mut self) {
        loop {
            if let Some(write) = &mut self.write {
                let written = write.await;
                self.write = None;
                let took = match written.map_err(io::Error::other).flatten() {
                    Ok(took) => {
                        self.last_error = None;
                        took
                    }
                    Err(error) => {
                        self.failed(&error);
                        INTERVAL
                    }
                };
                self.next_write = tokio::time::Instant::now() + INTERVAL.max(took * WRITE_SHARE);
            }
            if !self.is_dirty || self.replay.is_some() {
                return std::future::pending().await;
            }
            tokio::time::sleep_until(self.next_write).await;
            self.is_dirty = false;
            let (bytes, file) = (self.encode(), self.file.clone());
            self.write = Some(tokio::task::spawn_blocking(move || replace(&file, &bytes)));
        }
    }

    fn failed(&mut self, error: &io::Error) {
        self.is_dirty = true;
        let text = error.to_string();
        if self.last_error.as_ref() != Some(&text) {
            tracing::warn!(file = %self.file.display(), error = text, "routes cannot be stored; trying again");
            self.last_error = Some(text);
        }
    }

    fn encode(&self) -> Vec<u8> {
        let bound = |event| {
            let (state_id, epoch, sequence) = (self.state_id, self.epoch, self.sequence);
            RouteEvent { state_id, epoch, sequence, event: Some(event) }.encode_to_vec()
        };
        let (first, last) = (bound(Event::Reset(Reset {})), bound(Event::Synced(Synced {})));
        let mut body = Vec::new();
        for event in [&first].into_iter().chain(self.objects.values()).chain([&last]) {
            // Events are below 4 GiB: the scheduler's messages are limited.
            body.extend_from_slice(&(event.len() as u32).to_le_bytes());
            body.extend_from_slice(event);
        }
        let mut bytes = Vec::with_capacity(MAGIC.len() + 4 + body.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }
}

fn decode(bytes: &[u8]) -> Option<Vec<RouteEvent>> {
    let (checksum, mut body) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<4>()?;
    if crc32fast::hash(body) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let mut events = Vec::new();
    while let Some((length, rest)) = body.split_first_chunk::<4>() {
        let (event, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        events.push(RouteEvent::decode(event).ok()?);
        body = rest;
    }
    body.is_empty().then_some(events)
}

/// Key of the changed object, and whether it exists after the change.
fn key(change: &Event) -> (Key, bool) {
    let (kind, name, is_upsert) = match change {
        Event::Upsert(route) => (0, route.model.clone(), true),
        Event::Delete(name) => (0, name.clone(), false),
        Event::UpsertPipeline(route) => (1, route.pipeline.clone(), true),
        Event::DeletePipeline(name) => (1, name.clone(), false),
        Event::UpsertExperiment(route) => {
            (2, route.definition.as_ref().map(|d| d.name.clone()).unwrap_or_default(), true)
        }
        Event::DeleteExperiment(name) => (2, name.clone(), false),
        Event::UpsertService(route) => (3, format!("{}/{}", route.namespace, route.name), true),
        Event::DeleteService(name) => (3, format!("{}/{}", name.namespace, name.name), false),
        Event::Reset(_) | Event::Synced(_) => (u8::MAX, String::new(), false),
    };
    ((kind, name), is_upsert)
}

/// Replaces the file by a durable one, and returns how long that took.
fn replace(file: &Path, bytes: &[u8]) -> io::Result<Duration> {
    let start = Instant::now();
    let unfinished = file.with_extension("unfinished");
    let mut written = File::create(&unfinished)?;
    written.write_all(bytes)?;
    written.sync_all()?;
    fs::rename(&unfinished, file)?;
    if let Some(directory) = file.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::gantry::{Endpoint, Route, RouteVersion};

    fn event(sequence: u64, event: Event) -> RouteEvent {
        RouteEvent { state_id: 9, epoch: 5, sequence, event: Some(event) }
    }

    fn upsert(model: &str, version: u32) -> Event {
        let endpoints = vec![Endpoint { server: "a".into(), host: "h".into(), ..Endpoint::default() }];
        let versions = vec![RouteVersion { version, weight: 1, endpoints }];
        Event::Upsert(Route { model: model.into(), versions, ..Route::default() })
    }

    /// Records the events and waits for the write.
    async fn store(directory: &Path, events: &[RouteEvent]) {
        let mut stored = StoredRoutes::open(directory, &Routes::default()).unwrap();
        for event in events {
            stored.record(event);
        }
        while stored.is_dirty || stored.write.is_some() {
            let written = stored.write_when_due();
            let _ = tokio::time::timeout(Duration::from_millis(10), written).await;
        }
    }

    fn restored(directory: &Path) -> Vec<String> {
        let routes = Routes::default();
        StoredRoutes::open(directory, &routes).unwrap();
        assert_eq!(routes.is_synced(), directory.join(FILE).exists() && !routes.models().is_empty());
        routes.models()
    }

    #[tokio::test]
    async fn routes_of_the_last_start_are_restored() {
        let directory = tempfile::tempdir().unwrap();
        assert!(restored(directory.path()).is_empty());
        let replay = [
            event(0, Event::Reset(Reset {})),
            event(3, upsert("m", 1)),
            event(4, upsert("n", 1)),
            event(4, Event::Synced(Synced {})),
        ];
        store(directory.path(), &replay).await;
        assert_eq!(restored(directory.path()), ["m", "n"]);
        // Changes after the replay, in the same and in a new process.
        store(directory.path(), &[event(5, Event::Delete("m".into())), event(6, upsert("o", 1))]).await;
        assert_eq!(restored(directory.path()), ["n", "o"]);
        let stored = StoredRoutes::open(directory.path(), &Routes::default()).unwrap();
        assert_eq!((stored.state(), stored.sequence), ((9, 5), 6));
    }

    #[tokio::test]
    async fn interrupted_replay_leaves_the_stored_routes() {
        let directory = tempfile::tempdir().unwrap();
        let complete =
            [event(0, Event::Reset(Reset {})), event(3, upsert("m", 1)), event(3, Event::Synced(Synced {}))];
        store(directory.path(), &complete).await;
        store(directory.path(), &[event(0, Event::Reset(Reset {})), event(4, upsert("n", 1))]).await;
        assert_eq!(restored(directory.path()), ["m"]);
    }

    #[tokio::test]
    async fn damaged_file_is_ignored_at_every_byte() {
        let directory = tempfile::tempdir().unwrap();
        let replay =
            [event(0, Event::Reset(Reset {})), event(3, upsert("m", 1)), event(3, Event::Synced(Synced {}))];
        store(directory.path(), &replay).await;
        let file = directory.path().join(FILE);
        let intact = fs::read(&file).unwrap();
        for position in 0..intact.len() {
            let mut damaged = intact.clone();
            damaged[position] ^= 1;
            assert_eq!(decode(&damaged), None, "byte {position}");
            assert_eq!(decode(&intact[..position]), None, "cut at {position}");
        }
        fs::write(&file, &intact[..20]).unwrap();
        assert!(restored(directory.path()).is_empty());
    }
}
