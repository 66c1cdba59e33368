//! Makes the scheduler want what the files ask for, now and whenever they change.

use super::{
    record::Record,
    sources::{Asked, Problems, Sources},
};
use futures::StreamExt as _;
use gantry_api::{Kind, Object};
use gantry_proto::scheduler::{
    LoadModelRequest, ModelReference, ServerNotify, ServerNotifyRequest, UnloadModelRequest,
    scheduler_client::SchedulerClient,
};
use std::{collections::BTreeMap, time::Duration};
use tokio::sync::mpsc;
use tonic::{Code, Request, Status, transport::Channel};

/// How often the files are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How long the scheduler may take for one call.
const DEADLINE: Duration = Duration::from_secs(30);
/// Calls under way at the same time: they share a write to the disk.
const AT_ONCE: usize = 64;

/// What the scheduler was asked for on behalf of the files.
pub(crate) struct Follower {
    sources: Sources,
    client: SchedulerClient<Channel>,
    record: Record,
    applied: BTreeMap<(Kind, String), Object>,
    seen: u64,
    complained: Option<Problems>,
}

/// Something that happened to the files, for a person to read.
pub(crate) enum News {
    /// The objects that were applied or removed, such as `model/iris changed`.
    Changed(Vec<String>),
    /// What is wrong; what was good before still serves.
    Broken(Problems),
}

impl Follower {
    pub(crate) fn new(sources: Sources, client: SchedulerClient<Channel>, record: Record) -> Self {
        let seen = sources.fingerprint();
        Self { sources, client, record, applied: BTreeMap::new(), seen, complained: None }
    }

    /// Applies what the files ask for; returns what changed.
    pub(crate) async fn apply(&mut self, asked: &Asked) -> Result<Vec<String>, Status> {
        let roots = self.sources.roots().to_vec();
        let mut news = Vec::new();
        let vanished: Vec<(Kind, String)> = self
            .record
            .vanished(&roots, &asked.objects)
            .chain(self.applied.keys().filter(|k| !asked.objects.contains_key(*k)).cloned())
            .collect();
        // Noted before it is asked for: whatever ends this process in between, the next start knows whose it is.
        self.record.write(&roots, asked.objects.keys().chain(&vanished).cloned());
        for (kind, name) in vanished {
            self.remove(kind, &name).await?;
            self.applied.remove(&(kind, name.clone()));
            news.push(format!("{}/{name} removed", kind.name().to_lowercase()));
        }
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
                    let client = self.client.clone();
                    async move { put(client, &object).await.map(|()| (key, object)) }
                })
                .buffer_unordered(AT_ONCE);
            let mut refused = None;
            let mut taken = Vec::new();
            while let Some(result) = putting.next().await {
                match result {
                    Ok(done) => taken.push(done),
                    Err(error) => refused = refused.or(Some(error)),
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
        Ok(news)
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
                        Ok(news) => {
                            self.seen = now;
                            if !news.is_empty() {
                                return News::Changed(news);
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

    async fn remove(&mut self, kind: Kind, name: &str) -> Result<(), Status> {
        match kind {
            Kind::Model => {
                let model = Some(ModelReference { name: name.to_owned(), version: None });
                let removed = self
                    .client
                    .unload_model(timed(UnloadModelRequest { model, kubernetes_meta: None }))
                    .await;
                match removed {
                    // It is gone already, which is what is wanted.
                    Err(error) if error.code() == Code::FailedPrecondition => Ok(()),
                    other => other.map(drop),
                }
            }
            Kind::Server => {
                let going = ServerNotify { name: name.to_owned(), shared: true, ..ServerNotify::default() };
                notify(self.client.clone(), going).await
            }
        }
    }
}

async fn put(mut client: SchedulerClient<Channel>, object: &Object) -> Result<(), Status> {
    match object {
        Object::Model(model) => {
            let request = LoadModelRequest { model: Some(model.to_proto()) };
            client.load_model(timed(request)).await.map(drop)
        }
        Object::Server(server) => notify(client, server.to_proto()).await,
    }
}

async fn notify(mut client: SchedulerClient<Channel>, server: ServerNotify) -> Result<(), Status> {
    let request = ServerNotifyRequest { servers: vec![server], is_first_sync: false };
    client.server_notify(timed(request)).await.map(drop)
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}
