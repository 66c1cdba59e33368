//! The operator: watches, scheduler connections, controllers, and the order in which they start and stop.

use crate::{
    caches::Caches,
    certificates::{self, CertificateSettings},
    cluster::{
        Algorithm, Cache, Custom, CustomKind, KindId, MANAGED_BY, OwnedObject, ResourceKind, ResourceScope,
        WatchSource, WriteFence, Writer, run_watch, strip_metadata,
    },
    connections,
    context::{Clock, Context},
    controller::Controller,
    controllers::{
        Registry,
        algorithm::AlgorithmController,
        inference_service::{InferenceServiceController, strip_pod},
    },
    election::Election,
    evidence::{self, EvidenceProvider, EvidenceSources, Prometheus},
    health::{Health, SyncChange, WatchReport},
    metrics::Metrics,
    schedulers::{SchedulerCache, SchedulerConnector},
    settings::Settings,
    triggers::WorkQueues,
    workload::strip_autoscaler,
};
use kube::{Api, Client, runtime::watcher};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Time for reconciliations in hand when the operator stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
const RESYNC_PERIOD: Duration = Duration::from_mins(10);
const SYNC_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of the search for optional kinds that the API server does not serve yet.
const DISCOVERY_INTERVAL: Duration = Duration::from_mins(1);
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Concurrent first lists: bounds memory and the load on the API server with many namespaces.
const MAX_FIRST_LISTS: usize = 32;
/// Namespaces whose watches share a client. With 15 watches each, they stay below 100, the streams that an API server allows
/// on a connection; a request beyond them would wait for another one to end.
pub const NAMESPACES_PER_CLIENT: usize = 4;
/// Beyond so many namespaces one watch of the cluster costs less.
const MANY_NAMESPACES: usize = 50;
/// Workers of a controller that expects few objects.
const FEW_WORKERS: usize = 4;

/// Build an operator, then [`run`](Self::run) it.
pub struct Operator {
    context: Arc<Context>,
    client: Client,
    /// Clients of the watches; without any, that of the writes.
    watch_clients: Vec<Client>,
    first_lists: Arc<Semaphore>,
    evidence_provider: Arc<dyn EvidenceProvider>,
    certificates: Option<CertificateSettings>,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator").field("health", &self.context.health).finish_non_exhaustive()
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
    /// An operator of the built-in kinds; with those of KServe if the settings have them.
    pub fn new(
        client: Client,
        settings: Settings,
        connector: Arc<dyn SchedulerConnector>,
        fence: WriteFence,
        clock: Clock,
    ) -> Self {
        let registry = Registry::of(&settings);
        Self::with_registry(client, settings, connector, fence, clock, registry)
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
        let schedulers = Arc::new(SchedulerCache::new(&settings.namespace, connector.serves_all()));
        let mut caches = Caches::with_registry(settings, registry);
        caches.schedulers = schedulers;
        let context = Arc::new(Context {
            queues: WorkQueues::new(&caches.registry, caches.settings.seed),
            health: Health::new(&caches.settings.namespace, Arc::clone(&metrics)),
            caches,
            writer: Writer::new(client.clone(), fence.clone(), Arc::clone(&metrics)),
            metrics,
            clock,
            fence,
            connector,
            connections: Mutex::default(),
        });
        context.caches.registry.iter().for_each(|registration| (registration.subscribe)(&context));
        let first_lists = Arc::new(Semaphore::new(MAX_FIRST_LISTS));
        let evidence_provider = Arc::new(Prometheus::default());
        Self {
            context,
            client,
            watch_clients: Vec::new(),
            first_lists,
            evidence_provider,
            certificates: None,
        }
    }

    /// Watches with these clients instead of the one that writes: one for every [`NAMESPACES_PER_CLIENT`] scopes, so that
    /// watches share connections without filling them.
    #[must_use]
    pub fn with_watch_clients(mut self, clients: Vec<Client>) -> Self {
        self.watch_clients = clients;
        self
    }

    /// Issues the certificates of the control plane; the settings of the operator must say so, too.
    #[must_use]
    pub fn with_certificates(mut self, settings: CertificateSettings) -> Self {
        self.certificates = Some(settings);
        self
    }

    /// Measures revisions of Algorithms with another source than Prometheus.
    #[must_use]
    pub fn with_evidence_provider(mut self, provider: Arc<dyn EvidenceProvider>) -> Self {
        self.evidence_provider = provider;
        self
    }

    /// The client of a scope's watches.
    fn watch_client(&self, scope: &str) -> Client {
        let index = self.scopes().iter().position(|s| s == scope).unwrap_or_default();
        let clients = &self.watch_clients;
        let of_group = clients.iter().cycle().nth(index / NAMESPACES_PER_CLIENT);
        of_group.unwrap_or(&self.client).clone()
    }

    pub(crate) fn context(&self) -> Arc<Context> {
        Arc::clone(&self.context)
    }

    pub(crate) fn evidence_provider(&self) -> Arc<dyn EvidenceProvider> {
        Arc::clone(&self.evidence_provider)
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.context.metrics)
    }

    pub fn health(&self) -> Health {
        self.context.health.clone()
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
        let work = CancellationToken::new();
        let mut workers = JoinSet::new();
        // The lease is renewed from now on, also while lists are incomplete.
        let outcome = tokio::select! {
            () = stop.cancelled() => Ok(()),
            why = renew(&mut election) => Err(RunError::LeadershipLost(why)),
            _ = watches.join_next() => Err(RunError::TaskEnded("a watch")),
            ended = self.lead(&mut workers, &work) => Err(RunError::TaskEnded(ended)),
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

    /// Reconciles once the caches are synced; returns what ended.
    async fn lead(&self, workers: &mut JoinSet<()>, stop: &CancellationToken) -> &'static str {
        let mut openings = self.context.fence.openings();
        self.caches_synced().await;
        connections::open_all(&self.context);
        self.start_workers(workers, stop);
        // A lease that had lapsed is valid again: workers continue, and connections were not opened meanwhile.
        let reopen = async {
            while openings.changed().await.is_ok() {
                connections::open_all(&self.context);
            }
        };
        tokio::select! {
            _ = workers.join_next() => "a controller",
            () = self.resync() => "the resync",
            () = reopen => "the write fence",
        }
    }

    /// Waits until every list is complete: an object missing from an incomplete cache is unknown, not absent.
    async fn caches_synced(&self) {
        while !self.context.health.not_ready().is_empty() {
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
        if caches.registry.iter().any(|registration| registration.id == KindId::of::<Algorithm>()) {
            let prometheus = Arc::clone(&self.evidence_provider);
            let provider = Arc::new(EvidenceSources::new(Arc::clone(&self.context), prometheus));
            workers.spawn(evidence::run(Arc::clone(&self.context), provider, stop.clone()));
        }
        if let Some(settings) = &self.certificates {
            let (client, settings) = (self.client.clone(), settings.clone());
            workers.spawn(certificates::run(Arc::clone(&self.context), client, settings, stop.clone()));
        }
    }

    fn start_watches(&self, tasks: &mut JoinSet<()>) {
        let caches = &self.context.caches;
        let scopes = self.scopes().len();
        if scopes > MANY_NAMESPACES {
            tracing::warn!(
                namespaces = scopes,
                "each watched namespace costs 15 watches: watch the whole cluster (--clusterwide without --watch-namespaces), \
                 which costs 17 in total"
            );
        }
        caches.registry.iter().for_each(|registration| (registration.watch)(self, tasks));
        let ours = self.watch_config().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1));
        for kind in caches.registry.owned_kinds() {
            self.watch_resource(tasks, kind, &caches.owned(kind), &ours, strip_metadata);
        }
        for kind in caches.registry.read_kinds() {
            let config = self.watch_config().labels(kind.with_label);
            let strip = match kind {
                ResourceKind::HORIZONTAL_POD_AUTOSCALER => strip_autoscaler,
                InferenceServiceController::PODS | AlgorithmController::PODS => strip_pod,
                _ => strip_metadata,
            };
            self.watch_resource(tasks, kind, &caches.read(kind), &config, strip);
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

    pub(crate) fn watch_custom<C: Controller>(&self, tasks: &mut JoinSet<()>) {
        let settings = &self.context.caches.settings;
        let scopes = match C::Kind::SCOPE {
            ResourceScope::Cluster => BTreeSet::from([String::new()]),
            ResourceScope::Namespaced if C::OPERATOR_NAMESPACE_ONLY => {
                BTreeSet::from([settings.scope.of(&settings.namespace).to_owned()])
            }
            ResourceScope::Namespaced => self.scopes(),
        };
        for scope in scopes {
            let api = Custom::<C::Kind>::api(self.watch_client(&scope), &scope);
            let report = self.context.health.watch(C::Kind::PLURAL, &scope);
            let cache = self.context.caches.of::<C::Kind>();
            let notify = self.notify(&scope);
            let source = WatchSource { api, config: self.watch_config(), scope, strip: strip_metadata };
            let first_lists = Arc::clone(&self.first_lists);
            let client = self.client.clone();
            tasks.spawn(async move {
                if C::OPTIONAL {
                    let KindId { group, version, kind, plural, .. } = KindId::of::<C::Kind>();
                    let kind = ResourceKind::new(group, version, kind, plural);
                    discovered(&client, kind, &report, &notify).await;
                }
                let permit = first_lists.acquire_owned().await.ok();
                run_watch(source, cache, report, permit, notify).await;
            });
        }
    }

    /// Passes on the state of a watch.
    fn notify(&self, scope: &str) -> impl Fn(SyncChange) + Send + Sync + use<> {
        let (context, scope) = (Arc::clone(&self.context), scope.to_owned());
        move |change| context.watch_changed(&scope, change)
    }

    fn watch_resource(
        &self,
        tasks: &mut JoinSet<()>,
        kind: ResourceKind,
        cache: &Arc<Cache<OwnedObject>>,
        config: &watcher::Config,
        strip: fn(OwnedObject) -> OwnedObject,
    ) {
        for scope in self.scopes() {
            let resource = kind.api_resource();
            let client = self.watch_client(&scope);
            let api: Api<OwnedObject> = if scope.is_empty() {
                Api::all_with(client, &resource)
            } else {
                Api::namespaced_with(client, &scope, &resource)
            };
            // Knative has Services, too.
            let group = if kind.optional { format!(".{}", kind.group) } else { String::new() };
            // Others have pods, too.
            let group = if kind == AlgorithmController::PODS { " of Algorithms".into() } else { group };
            let report = self.context.health.watch(&format!("{}{group}", kind.plural), &scope);
            let cache = Arc::clone(cache);
            let notify = self.notify(&scope);
            let source = WatchSource { api, config: config.clone(), scope, strip };
            let (client, context) = (self.client.clone(), Arc::clone(&self.context));
            let first_lists = Arc::clone(&self.first_lists);
            tasks.spawn(async move {
                if kind.optional {
                    discovered(&client, kind, &report, &notify).await;
                }
                let permit = first_lists.acquire_owned().await.ok();
                let notify = move |change: SyncChange| {
                    notify(change);
                    // Controllers that wait for the kind get their turn, also when no object of it exists.
                    if kind.optional && change.is_listed {
                        context.queues.add_users_of(&context.caches, kind);
                    }
                };
                run_watch(source, cache, report, permit, notify).await;
            });
        }
    }
}

/// Waits until the API server serves a kind. Readiness does not wait for one that is not served.
async fn discovered(
    client: &Client,
    kind: ResourceKind,
    report: &WatchReport,
    notify: &(impl Fn(SyncChange) + Sync),
) {
    loop {
        match tokio::time::timeout(DISCOVERY_TIMEOUT, is_served(client, kind)).await {
            Ok(Ok(true)) => return,
            Ok(Ok(false)) => notify(report.not_served()),
            Ok(Err(error)) => report.discovery_failed(&error.to_string()),
            Err(_) => report.discovery_failed("discovery timed out"),
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
