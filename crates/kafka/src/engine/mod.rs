//! Pipelines as consumers of topics.
//!
//! For each pipeline the engine has a member of its consumer group. Several processes share the partitions by Kafka's group
//! protocol. A record is done when the broker has acknowledged its results; only then its offset can be committed, so that
//! every record is processed at least once.

mod client;
mod executor;
#[cfg(feature = "failpoints")]
pub mod failpoint;
mod joiner;
mod metrics;
mod partition;
mod process;
mod rebalance;
mod worker;

pub use client::{Client, ProduceError};
pub use executor::{
    ExecuteError, Execution, Executor, Pipeline, Pipelines, RecordSpan, RunRequest, RunResult, StepRecord,
};
pub use metrics::Metrics;
pub use process::request_id;

use crate::{settings::Settings, topics::Side};
use process::Backoff;
use std::{collections::HashMap, sync::Arc};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// Shared by the workers of all pipelines.
struct Context<E> {
    settings: Arc<Settings>,
    executor: Arc<E>,
    client: Client,
    metrics: Metrics,
}

struct Running {
    pipeline: Arc<Pipeline>,
    stop: CancellationToken,
    worker: JoinHandle<()>,
}

/// Consumes all pipelines of the executor until `shutdown` is cancelled, then commits what is done.
pub async fn run<E: Executor>(
    settings: Settings,
    executor: Arc<E>,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let settings = Arc::new(settings);
    for warning in &settings.warnings {
        tracing::warn!(warning, "kafka.json");
    }
    let Some(client) = connect(&settings, &shutdown).await else { return };
    let context = Arc::new(Context { settings, executor, client, metrics });
    let mut pipelines = context.executor.pipelines();
    let mut running: HashMap<Arc<str>, Running> = HashMap::new();
    let mut ending = JoinSet::new();
    loop {
        let wanted = Arc::clone(&pipelines.borrow_and_update());
        reconcile(&context, &mut running, &mut ending, &wanted);
        tokio::select! {
            () = shutdown.cancelled() => break,
            changed = pipelines.changed() => if changed.is_err() { break },
        }
    }
    for running in running.values() {
        running.stop.cancel();
    }
    for (_, running) in running {
        let _ = running.worker.await;
    }
    while ending.join_next().await.is_some() {}
    context.client.close().await;
}

async fn connect(settings: &Arc<Settings>, shutdown: &CancellationToken) -> Option<Client> {
    let mut backoff = Backoff::new();
    loop {
        let connected = tokio::select! {
            connected = Client::connect(settings) => connected,
            () = shutdown.cancelled() => return None,
        };
        match connected {
            Ok(client) => return Some(client),
            Err(error) => {
                tracing::warn!(brokers = settings.bootstrap_servers, %error, "cannot connect to Kafka: retrying");
            }
        }
        tokio::select! {
            () = backoff.wait() => {}
            () = shutdown.cancelled() => return None,
        }
    }
}

/// Starts and stops workers. A pipeline whose topics changed gets a new one, after the old one has ended; a new version alone
/// does not need that. No pipeline waits for the records in flight of another.
fn reconcile<E: Executor>(
    context: &Arc<Context<E>>,
    running: &mut HashMap<Arc<str>, Running>,
    ending: &mut JoinSet<()>,
    wanted: &[Arc<Pipeline>],
) {
    let is_unchanged = |old: &Running| wanted.contains(&old.pipeline);
    let changed: Vec<Arc<str>> =
        running.iter().filter(|(_, old)| !is_unchanged(old)).map(|(name, _)| Arc::clone(name)).collect();
    let mut previous = HashMap::new();
    for old in changed.iter().filter_map(|name| running.remove(name)) {
        old.stop.cancel();
        if wanted.iter().any(|new| new.name == old.pipeline.name) {
            previous.insert(Arc::clone(&old.pipeline.name), old.worker);
        } else {
            ending.spawn(end(Arc::clone(context), old));
        }
    }
    for pipeline in wanted {
        running.entry(Arc::clone(&pipeline.name)).or_insert_with(|| {
            let stop = CancellationToken::new();
            let previous = previous.remove(&pipeline.name);
            let working = work(Arc::clone(context), Arc::clone(pipeline), previous, stop.clone());
            Running { pipeline: Arc::clone(pipeline), stop, worker: tokio::spawn(working) }
        });
    }
    // Those that have ended.
    while ending.try_join_next().is_some() {}
}

async fn work<E: Executor>(
    context: Arc<Context<E>>,
    pipeline: Arc<Pipeline>,
    previous: Option<JoinHandle<()>>,
    stop: CancellationToken,
) {
    if let Some(previous) = previous {
        let _ = previous.await;
    }
    let joining = pipeline
        .external
        .clone()
        .map(|spec| joiner::run(Arc::clone(&context), Arc::clone(&pipeline), spec, stop.clone()));
    let working = worker::run(context, pipeline, stop);
    match joining {
        Some(joining) => drop(tokio::join!(working, joining)),
        None => working.await,
    }
}

/// Waits for the worker of a pipeline that is gone, and deletes its topics if that is configured.
async fn end<E: Executor>(context: Arc<Context<E>>, old: Running) {
    let _ = old.worker.await;
    let name = &old.pipeline.name;
    // It may be there again.
    let is_gone = !context.executor.pipelines().borrow().iter().any(|pipeline| pipeline.name == *name);
    if old.pipeline.clean_topics_on_delete && is_gone && context.executor.is_deleted(name) {
        delete_topics(&context, &old.pipeline).await;
    }
}

/// The topics of the pipeline itself; those of models belong to all pipelines.
async fn delete_topics<E: Executor>(context: &Context<E>, pipeline: &Pipeline) {
    let topics =
        [Side::Inputs, Side::Outputs].map(|side| context.settings.topics.pipeline(&pipeline.name, side));
    if let Err(error) = context.client.delete_topics(&topics).await {
        tracing::warn!(pipeline = &*pipeline.name, error, "topics of a deleted pipeline are left");
    }
}
