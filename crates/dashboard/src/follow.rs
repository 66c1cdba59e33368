//! Follows the scheduler's statuses while a page is open.

use crate::{
    inventory::{Inventory, Link},
    rows::{self, ExperimentRow, ModelRow, Observed, PipelineRow, RolloutRow, ServerRow},
    scheduler::{SUBSCRIBER, Scheduler, is_missing, within},
};
use futures::{StreamExt as _, stream::BoxStream};
use gantry_proto::{
    gantry::{RolloutEvent, WatchRolloutsRequest, rollout_event::Event as RolloutChange},
    scheduler::{
        ExperimentSubscriptionRequest, ModelSubscriptionRequest, PipelineSubscriptionRequest,
        ServerSubscriptionRequest,
    },
};
use std::{
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard},
    time::{Duration, Instant},
};
use tokio::sync::watch;
use tonic::{Status, Streaming};

/// A page waits this long for the first rows.
const FIRST_WAIT: Duration = Duration::from_secs(5);
/// Without a page for this long, the subscriptions end.
const IDLE: Duration = Duration::from_mins(5);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Follower {
    scheduler: Scheduler,
    shared: Arc<Shared>,
}

struct Shared {
    inventory: RwLock<Inventory>,
    /// The last request of a page; `None` while nothing follows.
    used: Mutex<Option<Instant>>,
    /// Whether there are rows.
    filled: watch::Sender<bool>,
}

enum Change {
    Model(Observed<ModelRow>),
    Server(Observed<ServerRow>),
    Pipeline(Observed<PipelineRow>),
    Experiment(Observed<ExperimentRow>),
    Rollouts,
    Rollout(Box<Observed<RolloutRow>>),
}

type Changes = BoxStream<'static, Result<Change, Status>>;

impl Follower {
    pub(crate) fn new(scheduler: Scheduler) -> Self {
        let shared = Shared {
            inventory: RwLock::default(),
            used: Mutex::default(),
            filled: watch::Sender::new(false),
        };
        Self { scheduler, shared: Arc::new(shared) }
    }

    /// Starts following if nothing does, and waits for the first rows; not for long if there are none.
    pub(crate) async fn ready(&self) {
        let is_followed = {
            let mut used = self.shared.used.lock().unwrap_or_else(PoisonError::into_inner);
            used.replace(Instant::now()).is_some()
        };
        if !is_followed {
            tokio::spawn(follow(self.scheduler.clone(), Arc::clone(&self.shared)));
        }
        let mut filled = self.shared.filled.subscribe();
        // The rows may be those of a lost connection, or none: the page shows which.
        let _ = tokio::time::timeout(FIRST_WAIT, filled.wait_for(|filled| *filled)).await;
    }

    pub(crate) fn inventory(&self) -> RwLockReadGuard<'_, Inventory> {
        self.shared.read()
    }
}

impl Shared {
    fn read(&self) -> RwLockReadGuard<'_, Inventory> {
        self.inventory.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut Inventory)) {
        change(&mut self.inventory.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Resolves without a page for some time; nothing follows from then on.
    async fn unused(&self) {
        loop {
            let rest = {
                let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
                let rest = used.map_or(Duration::ZERO, |at| IDLE.saturating_sub(at.elapsed()));
                if rest.is_zero() {
                    *used = None;
                    self.filled.send_replace(false);
                    self.update(|inventory| *inventory = Inventory::default());
                    return;
                }
                rest
            };
            tokio::time::sleep(rest).await;
        }
    }
}

async fn follow(scheduler: Scheduler, shared: Arc<Shared>) {
    let following = async {
        let mut backoff = BACKOFF_MIN;
        loop {
            let error = follow_once(&scheduler, &shared, &mut backoff).await.err();
            let reason = error.map_or_else(
                || "it closed the connection".to_owned(),
                |status| format!("{:?}: {}", status.code(), status.message()),
            );
            tracing::debug!(%reason, "the dashboard lost the scheduler");
            shared.update(|inventory| inventory.lose(reason));
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    };
    tokio::select! {
        () = following => {}
        () = shared.unused() => {}
    }
}

async fn follow_once(scheduler: &Scheduler, shared: &Shared, backoff: &mut Duration) -> Result<(), Status> {
    let mut notices = Vec::new();
    // Subscribed first, so that no change is lost between the lists and the streams.
    let mut changes = futures::stream::select_all(subscribe(scheduler, &mut notices).await?);
    let models = listed(scheduler.models(None, false).await, &mut notices)?;
    let servers = listed(scheduler.servers(None).await, &mut notices)?;
    let pipelines = listed(scheduler.pipelines(None, false).await, &mut notices)?;
    let experiments = listed(scheduler.experiments(None).await, &mut notices)?;
    notices.sort();
    notices.dedup();
    shared.update(|inventory| {
        inventory.replace(models.into_iter().map(rows::model));
        inventory.replace(servers.into_iter().map(rows::server));
        inventory.replace(pipelines.into_iter().map(rows::pipeline));
        inventory.replace(experiments.into_iter().map(rows::experiment));
        inventory.link = Link::Live;
        inventory.notices = notices;
    });
    shared.filled.send_replace(true);
    *backoff = BACKOFF_MIN;
    while let Some(change) = changes.next().await {
        let change = change?;
        shared.update(|inventory| match change {
            Change::Model(row) => inventory.observe(row),
            Change::Server(row) => inventory.observe(row),
            Change::Pipeline(row) => inventory.observe(row),
            Change::Experiment(row) => inventory.observe(row),
            Change::Rollout(row) => inventory.observe(*row),
            Change::Rollouts => inventory.rollouts.clear(),
        });
    }
    Ok(())
}

/// A stream for each kind that this process may read.
async fn subscribe(scheduler: &Scheduler, notices: &mut Vec<String>) -> Result<Vec<Changes>, Status> {
    let subscriber_name = || SUBSCRIBER.to_owned();
    let mut streams = Vec::new();
    let mut client = scheduler.client();
    let request = ModelSubscriptionRequest { subscriber_name: subscriber_name(), is_model_gateway: false };
    let models = within(client.subscribe_model_status(request)).await.map(tonic::Response::into_inner);
    streams.extend(stream(models, |status| Change::Model(rows::model(status)), notices)?);
    let request = ServerSubscriptionRequest { subscriber_name: subscriber_name() };
    let servers = within(client.subscribe_server_status(request)).await.map(tonic::Response::into_inner);
    streams.extend(stream(servers, |status| Change::Server(rows::server(status)), notices)?);
    let request = PipelineSubscriptionRequest { subscriber_name: subscriber_name(), ..Default::default() };
    let pipelines = within(client.subscribe_pipeline_status(request)).await.map(tonic::Response::into_inner);
    streams.extend(stream(pipelines, |status| Change::Pipeline(rows::pipeline(status)), notices)?);
    let request = ExperimentSubscriptionRequest { subscriber_name: subscriber_name() };
    let experiments =
        within(client.subscribe_experiment_status(request)).await.map(tonic::Response::into_inner);
    streams.extend(stream(experiments, |status| Change::Experiment(rows::experiment(status)), notices)?);
    let request = WatchRolloutsRequest { subscriber: subscriber_name() };
    let rollouts = within(scheduler.rollouts().watch_rollouts(request)).await;
    streams.extend(stream(rollouts.map(tonic::Response::into_inner), rollout, notices)?);
    Ok(streams)
}

fn rollout(event: RolloutEvent) -> Change {
    let observed = match event.event {
        Some(RolloutChange::Upsert(status)) => Ok(rows::rollout(status)),
        Some(RolloutChange::Delete(model)) => Err(model),
        Some(RolloutChange::DeletePipeline(name)) => Err(format!("pipeline/{name}")),
        Some(RolloutChange::DeleteService(name)) => Err(format!("isvc/{name}")),
        Some(RolloutChange::Reset(_)) => return Change::Rollouts,
        // Nothing changes: no rollout has this name.
        Some(RolloutChange::Synced(_)) | None => Err(String::new()),
    };
    Change::Rollout(Box::new(observed))
}

fn stream<T: Send + 'static>(
    opened: Result<Streaming<T>, Status>,
    change: fn(T) -> Change,
    notices: &mut Vec<String>,
) -> Result<Option<Changes>, Status> {
    match opened {
        Ok(stream) => {
            // The end of one stream is the end of the connection.
            let end = futures::stream::once(async { Err(Status::unavailable("it closed the connection")) });
            Ok(Some(stream.map(move |status| status.map(change)).chain(end).boxed()))
        }
        Err(status) if is_missing(&status) => {
            notices.push(status.message().to_owned());
            Ok(None)
        }
        Err(status) => Err(status),
    }
}

fn listed<T>(found: Result<Vec<T>, Status>, notices: &mut Vec<String>) -> Result<Vec<T>, Status> {
    match found {
        Err(status) if is_missing(&status) => {
            notices.push(status.message().to_owned());
            Ok(Vec::new())
        }
        other => other,
    }
}
