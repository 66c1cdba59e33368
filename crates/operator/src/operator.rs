//! The operator: watches, scheduler connections, controllers, and the order in which they start and stop.

use crate::{
    caches::Caches,
    cluster::{
        Cache, Custom, CustomKind, MANAGED_BY, OwnedObject, ResourceKind, ResourceScope, WriteFence, Writer,
        run_watch,
    },
    connections,
    context::{Clock, Context},
    controllers::Registry,
    election::Election,
    health::{Health, WatchReport},
    metrics::Metrics,
    schedulers::SchedulerConnector,
    settings::Settings,
    triggers::WorkQueues,
};
use kube::{Api, Client, runtime::watcher};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Time for reconciliations in hand when the operator stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
const RESYNC_PERIOD: Duration = Duration::from_mins(10);
const SYNC_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of the search for optional kinds that the API server does not serve yet.
const DISCOVERY_INTERVAL: Duration = Duration::from_mins(1);
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Workers of a controller that expects few objects.
const FEW_WORKERS: usize = 4;

/// Build an operator, then [`run`](Self::run) it.
pub struct Operator {
    context: Arc<Context>,
    health: Health,
    client: Client,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator").field("health", &self.health).finish_non_exhaustive()
    }
}

/// Why an operator ended without a request to stop.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum RunError {
    #[error("lost leadership: {0}")]
    LeadershipLost(String),
    #[error("stopped: {0} ended")]
    TaskEnded(&'static str),
}

impl Operator {
    /// An operator of the built-in kinds.
    pub fn new(
        client: Client,
        settings: Settings,
        connector: Arc<dyn SchedulerConnector>,
        fence: WriteFence,
        clock: Clock,
    ) -> Self {
        Self::with_registry(client, settings, connector, fence, clock, Registry::built_in())
    }

    /// An operator of the registered kinds.
    pub fn with_registry(
        client: Client,
        settings: Settings,
        connector: Arc<dyn SchedulerConnector>,
        fence: WriteFence,
        clock: Clock,
        registry: Registry,
    ) -> Self {
        let metrics = Arc::new(Metrics::default());
        let context = Arc::new(Context {
            queues: WorkQueues::new(&registry, settings.seed),
            caches: Caches::with_registry(settings, registry),
            writer: Writer::new(client.clone(), fence.clone(), Arc::clone(&metrics)),
            metrics,
            clock,
            fence,
            connector,
            connections: Mutex::default(),
        });
        context.caches.registry.iter().for_each(|registration| (registration.subscribe)(&context));
        Self { context, health: Health::default(), client }
    }

    pub(crate) fn context(&self) -> Arc<Context> {
        Arc::clone(&self.context)
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.context.metrics)
    }

    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Runs until `stop`, or until leadership is lost.
    pub async fn run(self, election: Option<Election>, stop: CancellationToken) -> Result<(), RunError> {
        let mut watches = JoinSet::new();
        self.start_watches(&mut watches);
        let mut election = election;
        if let Some(election) = &mut election {
            // Caches fill meanwhile, so that a standby takes over at once.
            tokio::select! {
                () = election.acquire() => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
        tokio::select! {
            () = self.caches_synced() => {}
            () = stop.cancelled() => return Ok(()),
        }
        let work = CancellationToken::new();
        let mut workers = JoinSet::new();
        connections::open_all(&self.context);
        self.start_workers(&mut workers, &work);
        let outcome = tokio::select! {
            () = stop.cancelled() => Ok(()),
            why = renew(&mut election) => Err(RunError::LeadershipLost(why)),
            _ = watches.join_next() => Err(RunError::TaskEnded("a watch")),
            _ = workers.join_next() => Err(RunError::TaskEnded("a controller")),
            () = self.resync() => Err(RunError::TaskEnded("the resync")),
        };
        if outcome.is_err() {
            // The new leader must not compete with writes of this one.
            self.context.fence.close();
        }
        work.cancel();
        let finish = async { while workers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, finish).await;
        connections::close_all(&self.context);
        if let (Ok(()), Some(election)) = (&outcome, &mut election) {
            election.release().await;
        }
        outcome
    }

    /// Waits until every list is complete: an object missing from an incomplete cache is unknown, not absent.
    async fn caches_synced(&self) {
        while !self.health.not_ready().is_empty() {
            tokio::time::sleep(SYNC_POLL_INTERVAL).await;
        }
    }

    async fn resync(&self) {
        loop {
            tokio::time::sleep(RESYNC_PERIOD).await;
            self.context.queues.add_all(&self.context.caches);
        }
    }

    fn start_workers(&self, workers: &mut JoinSet<()>, stop: &CancellationToken) {
        let caches = &self.context.caches;
        let all = caches.settings.workers.max(1);
        for registration in &caches.registry {
            for _ in 0..if registration.many { all } else { all.min(FEW_WORKERS) } {
                workers.spawn((registration.work)(Arc::clone(&self.context), stop.clone()));
            }
        }
    }

    fn start_watches(&self, tasks: &mut JoinSet<()>) {
        let caches = &self.context.caches;
        caches.registry.iter().for_each(|registration| (registration.watch)(self, tasks));
        let ours = self.watch_config().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1));
        for kind in caches.registry.owned_kinds() {
            self.watch_resource(tasks, kind, &caches.owned(kind), &ours);
        }
        for kind in caches.registry.read_kinds() {
            self.watch_resource(tasks, kind, &caches.read(kind), &self.watch_config());
        }
    }

    fn scopes(&self) -> BTreeSet<String> {
        let settings = &self.context.caches.settings;
        settings.scope.watched(&settings.namespace)
    }

    fn watch_config(&self) -> watcher::Config {
        let seconds = u32::try_from(self.context.caches.settings.watch_timeout.as_secs()).unwrap_or(290);
        watcher::Config::default().timeout(seconds.clamp(1, 294))
    }

    pub(crate) fn watch_custom<K: CustomKind>(&self, tasks: &mut JoinSet<()>) {
        let scopes = match K::SCOPE {
            ResourceScope::Namespaced => self.scopes(),
            ResourceScope::Cluster => BTreeSet::from([String::new()]),
        };
        for scope in scopes {
            let api = Custom::<K>::api(self.client.clone(), &scope);
            let report = self.health.watch(watch_name(K::PLURAL, &scope));
            let cache = self.context.caches.of::<K>();
            tasks.spawn(run_watch(api, self.watch_config(), scope, cache, report, || {}));
        }
    }

    fn watch_resource(
        &self,
        tasks: &mut JoinSet<()>,
        kind: ResourceKind,
        cache: &Arc<Cache<OwnedObject>>,
        config: &watcher::Config,
    ) {
        for scope in self.scopes() {
            let resource = kind.api_resource();
            let api: Api<OwnedObject> = if scope.is_empty() {
                Api::all_with(self.client.clone(), &resource)
            } else {
                Api::namespaced_with(self.client.clone(), &scope, &resource)
            };
            let report = self.health.watch(watch_name(kind.plural, &scope));
            let (cache, config) = (Arc::clone(cache), config.clone());
            if !kind.optional {
                tasks.spawn(run_watch(api, config, scope, cache, report, || {}));
                continue;
            }
            let (client, context) = (self.client.clone(), Arc::clone(&self.context));
            tasks.spawn(async move {
                discovered(&client, kind, &report).await;
                // Controllers that wait for the kind get their turn, also when no object of it exists.
                let synced = move || context.queues.add_users_of(&context.caches, kind);
                run_watch(api, config, scope, cache, report, synced).await;
            });
        }
    }
}

/// Waits until the API server serves a kind. Readiness does not wait for one that is not served.
async fn discovered(client: &Client, kind: ResourceKind, report: &WatchReport) {
    loop {
        match tokio::time::timeout(DISCOVERY_TIMEOUT, is_served(client, kind)).await {
            Ok(Ok(true)) => return,
            Ok(Ok(false)) => report.not_served(),
            Ok(Err(error)) => report.failed(&error.to_string()),
            Err(_) => report.failed("discovery timed out"),
        }
        tokio::time::sleep(DISCOVERY_INTERVAL).await;
    }
}

async fn is_served(client: &Client, kind: ResourceKind) -> Result<bool, kube::Error> {
    let api_version = kind.api_version();
    let resources = if kind.group.is_empty() {
        client.list_core_api_resources(&api_version).await
    } else {
        client.list_api_group_resources(&api_version).await
    };
    match resources {
        Ok(list) => Ok(list.resources.iter().any(|resource| resource.name == kind.plural)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

async fn renew(election: &mut Option<Election>) -> String {
    match election {
        Some(election) => election.renew().await,
        None => std::future::pending().await,
    }
}

fn watch_name(plural: &str, scope: &str) -> String {
    if scope.is_empty() { plural.to_owned() } else { format!("{plural} in {scope}") }
}
