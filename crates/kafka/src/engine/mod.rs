//! Pipelines as consumers of topics.
//!
//! For each pipeline the engine has a member of its consumer group. Several processes share the partitions by Kafka's group
//! protocol. A record is done when the broker has acknowledged its results; only then its offset can be committed, so that
//! every record is processed at least once.

mod client;
mod executor;
mod joiner;
mod metrics;
mod partition;
mod process;
mod rebalance;
mod worker;

pub use client::{Client, ProduceError};
pub use executor::{
    ExecuteError, Execution, Executor, Pipeline, Pipelines, RunRequest, RunResult, StepRecord,
};
pub use metrics::Metrics;
pub use process::request_id;

use crate::{settings::Settings, topics::Side};
use process::Backoff;
use std::{collections::HashMap, sync::Arc};
use tokio::task::JoinHandle;
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
    loop {
        let wanted = Arc::clone(&pipelines.borrow_and_update());
        reconcile(&context, &mut running, &wanted).await;
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

/// Starts and stops workers. A pipeline whose topics changed gets a new one; a new version alone does not need that.
async fn reconcile<E: Executor>(
    context: &Arc<Context<E>>,
    running: &mut HashMap<Arc<str>, Running>,
    wanted: &[Arc<Pipeline>],
) {
    let is_unchanged = |old: &Running| wanted.contains(&old.pipeline);
    let changed: Vec<Arc<str>> =
        running.iter().filter(|(_, old)| !is_unchanged(old)).map(|(name, _)| Arc::clone(name)).collect();
    let stopped: Vec<Running> = changed.iter().filter_map(|name| running.remove(name)).collect();
    for old in &stopped {
        old.stop.cancel();
    }
    for old in stopped {
        let _ = old.worker.await;
        let is_deleted = !wanted.iter().any(|new| new.name == old.pipeline.name);
        if is_deleted
            && old.pipeline.clean_topics_on_delete
            && context.executor.is_deleted(&old.pipeline.name)
        {
            delete_topics(context, &old.pipeline).await;
        }
    }
    for pipeline in wanted {
        running.entry(Arc::clone(&pipeline.name)).or_insert_with(|| {
            let stop = CancellationToken::new();
            let working = worker::run(Arc::clone(context), Arc::clone(pipeline), stop.clone());
            let joining = pipeline
                .external
                .clone()
                .map(|spec| joiner::run(Arc::clone(context), Arc::clone(pipeline), spec, stop.clone()));
            let worker = tokio::spawn(async move {
                match joining {
                    Some(joining) => drop(tokio::join!(working, joining)),
                    None => working.await,
                }
            });
            Running { pipeline: Arc::clone(pipeline), stop, worker }
        });
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
