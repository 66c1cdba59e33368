//! Makes the scheduler want what the files ask for, now and whenever they change.

use super::{
    calls::{Calls, FILE},
    record::Record,
    servers::Wishes,
    sources::{Asked, Problems, Sources},
};
use crate::client::refusal;
use futures::StreamExt as _;
use gantry_api::{Kind, Object};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::sync::mpsc;
use tonic::{Code, Status};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// Calls under way at the same time: they share a write to the disk.
const AT_ONCE: usize = 64;

/// What the scheduler was asked for on behalf of the files.
pub(crate) struct Follower {
    sources: Sources,
    calls: Calls,
    wishes: Wishes,
    record: Record,
    applied: BTreeMap<(Kind, String), Object>,
    seen: u64,
    complained: Option<Problems>,
}

/// Something that happened to the files, for a person to read.
pub(crate) enum News {
    /// What came of it.
    Applied(Applied),
    /// What is wrong; what was good before still serves.
    Broken(Problems),
}

/// What came of applying the files.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// The objects that were applied or removed, such as `model/iris changed`.
    pub(crate) changed: Vec<String>,
    /// The objects that belong to somebody else, in the scheduler's words.
    pub(crate) foreign: Vec<String>,
}

impl Follower {
    pub(crate) fn new(sources: Sources, calls: Calls, wishes: Wishes, record: Record) -> Self {
        let seen = sources.fingerprint();
        Self { sources, calls, wishes, record, applied: BTreeMap::new(), seen, complained: None }
    }

    /// Applies what the files ask for; returns what changed, and what belongs to somebody else.
    pub(crate) async fn apply(&mut self, asked: &Asked) -> Result<Applied, Status> {
        let roots = self.sources.roots().to_vec();
        let root = format!("{FILE}{}", roots.first().map_or(Path::new(""), PathBuf::as_path).display());
        let mut news = Vec::new();
        let mut foreign = Vec::new();
        let vanished: Vec<(Kind, String)> = self
            .record
            .vanished(&roots, &asked.objects)
            .chain(self.applied.keys().filter(|k| !asked.objects.contains_key(*k)).cloned())
            .collect();
        // Noted before it is asked for: whatever ends this process in between, the next start knows whose it is.
        self.record.write(&roots, asked.objects.keys().chain(&vanished).cloned());
        for (kind, name) in vanished {
            self.calls.remove(kind, &name, &root).await?;
            self.applied.remove(&(kind, name.clone()));
            news.push(format!("{}/{name} removed", kind.name().to_lowercase()));
        }
        // What a server runs does not wait for what the scheduler says of it.
        self.wishes.set(&asked.recipes);
        // Servers before models, as the keys are ordered; within a kind nothing waits for anything.
        for kind in Kind::ALL {
            let changed: Vec<_> = asked
                .objects
                .iter()
                .filter(|(key, object)| key.0 == kind && self.applied.get(*key) != Some(*object))
                .map(|(key, object)| (key.clone(), object.clone()))
                .collect();
            let mut putting = futures::stream::iter(changed)
                .map(|(key, object)| {
                    let calls = self.calls.clone();
                    let file = asked.files.get(&key).map_or("", String::as_str);
                    let manager = format!("{FILE}{file}");
                    async move { calls.put(&object, &manager).await.map(|()| (key, object)) }
                })
                .buffer_unordered(AT_ONCE);
            let mut refused = None;
            let mut taken = Vec::new();
            while let Some(result) = putting.next().await {
                match result {
                    Ok(done) => taken.push(done),
                    // Whose it is does not change by trying again, and keeps nothing else from being served.
                    Err(error) => match refusal(&error) {
                        Some(words) => foreign.push(words),
                        None => refused = refused.or(Some(error)),
                    },
                }
            }
            drop(putting);
            for (key, object) in taken {
                let verb = if self.applied.contains_key(&key) { "changed" } else { "added" };
                news.push(format!("{}/{} {verb}", key.0.name().to_lowercase(), key.1));
                self.applied.insert(key, object);
            }
            if let Some(error) = refused {
                return Err(error);
            }
        }
        self.record.write(&roots, asked.objects.keys().cloned());
        news.dedup();
        Ok(Applied { changed: news, foreign })
    }

    /// Follows the files for as long as somebody takes the news, as a task of its own: to break off half-way through a
    /// change would leave the scheduler with objects that nobody remembers having asked for.
    pub(crate) async fn follow(mut self, news: mpsc::Sender<News>) {
        loop {
            let change = self.next().await;
            if news.send(change).await.is_err() {
                return;
            }
        }
    }

    /// Waits for the files to change, and applies the change. A change that is broken changes nothing.
    async fn next(&mut self) -> News {
        loop {
            tokio::time::sleep(LOOK).await;
            let sources = self.sources.clone();
            let Ok(now) = tokio::task::spawn_blocking(move || sources.fingerprint()).await else { continue };
            if now == self.seen {
                continue;
            }
            let sources = self.sources.clone();
            let Ok(read) = tokio::task::spawn_blocking(move || sources.read()).await else { continue };
            match read {
                Ok(asked) => {
                    self.complained = None;
                    match self.apply(&asked).await {
                        Ok(applied) => {
                            self.seen = now;
                            if !applied.changed.is_empty() || !applied.foreign.is_empty() {
                                return News::Applied(applied);
                            }
                        }
                        // A model of that name is still going: look again.
                        Err(error) if error.code() == Code::FailedPrecondition => {
                            tracing::debug!(%error, "a change of the files is tried again");
                        }
                        Err(error) => {
                            tracing::warn!(%error, "a change of the files could not be applied yet");
                        }
                    }
                }
                Err(problems) => {
                    self.seen = now;
                    if self.complained.as_ref() != Some(&problems) {
                        self.complained = Some(problems.clone());
                        return News::Broken(problems);
                    }
                }
            }
        }
    }
}
