//! The manager: watches, links, controllers, and the order in which they begin and end.

use crate::{
    cluster::{Cache, Change, ChildKind, Custom, CustomKind, Leadership, MANAGED_BY, Writer, follow},
    controller::{self, Controller},
    election::Election,
    health::Health,
    house::{Clock, House},
    kinds::{
        config::{SeldonConfigs, ServerConfigs},
        later::{Experiments, Pipelines},
        model::Models,
        runtime::Runtimes,
        server::{self, Servers},
    },
    metrics::Metrics,
    queue::Queue,
    queues::Queues,
    schedulers::{Link, Reach},
    settings::Settings,
    world::World,
};
use gantry_core::mutant;
use kube::{Api, Client, core::ApiResource, runtime::watcher};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long what is under way may take when the operator stops.
const FAREWELL: Duration = Duration::from_secs(5);
/// How often everything is looked at although nothing changed.
const REVIEW: Duration = Duration::from_mins(10);

/// An operator: build it, then [`run`](Self::run) it.
pub struct Operator {
    house: Arc<House>,
    queues: Queues,
    health: Health,
    reach: Arc<dyn Reach>,
    client: Client,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator").field("health", &self.health).finish_non_exhaustive()
    }
}

/// Why an operator ended by itself.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Ended {
    /// Another operator leads, or may.
    #[error("no longer leads: {0}")]
    Lost(String),
    /// A part of it ended that never should.
    #[error("{0} ended")]
    Broken(&'static str),
}

impl Operator {
    /// An operator for a cluster, which reaches schedulers in a certain way.
    pub fn new(
        client: Client,
        settings: Settings,
        reach: Arc<dyn Reach>,
        leadership: Leadership,
        clock: Clock,
    ) -> Self {
        let metrics = Arc::new(Metrics::default());
        let queues = Queues::new(settings.seed);
        let house = House {
            world: World::new(settings),
            writer: Writer::new(client.clone(), leadership.clone(), Arc::clone(&metrics)),
            metrics,
            clock,
            leadership,
            links: Mutex::default(),
        };
        Self { house: Arc::new(house), queues, health: Health::default(), reach, client }
    }

    /// What all parts of it share.
    pub(crate) fn house(&self) -> Arc<House> {
        Arc::clone(&self.house)
    }

    /// The way to the API server.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// What it counts.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.house.metrics)
    }

    /// Whether it sees what it has to see.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Works until it is told to stop, or until it no longer leads.
    pub async fn run(self, election: Option<Election>, stop: CancellationToken) -> Result<(), Ended> {
        let mut watches = JoinSet::new();
        self.watch(&mut watches);
        let mut election = election;
        if let Some(election) = &mut election {
            // Caches fill meanwhile: who waits to lead can begin at once.
            tokio::select! {
                () = election.win() => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
        tokio::select! {
            () = self.seen() => {}
            () = stop.cancelled() => return Ok(()),
        }
        let work = CancellationToken::new();
        let mut workers = JoinSet::new();
        self.connect();
        self.start_controllers(&mut workers, &work);
        let outcome = tokio::select! {
            () = stop.cancelled() => Ok(()),
            why = hold(&mut election) => Err(Ended::Lost(why)),
            _ = watches.join_next() => Err(Ended::Broken("a watch")),
            _ = workers.join_next() => Err(Ended::Broken("a controller")),
            () = self.review() => Err(Ended::Broken("the review")),
        };
        if outcome.is_err() {
            // Whoever leads now must not be disturbed for a moment.
            self.house.leadership.end();
        }
        work.cancel();
        let _ = tokio::time::timeout(FAREWELL, async { while workers.join_next().await.is_some() {} }).await;
        self.close_links();
        if let (Ok(()), Some(election)) = (&outcome, &mut election) {
            election.resign().await;
        }
        outcome
    }

    fn scopes(&self) -> BTreeSet<String> {
        let settings = &self.house.world.settings;
        settings.scope.watched(&settings.namespace)
    }

    /// Waits until every list is complete: before that, what is not known is not known to be absent.
    async fn seen(&self) {
        while !self.health.not_ready().is_empty() && !mutant::is("begins_before_it_has_seen") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn review(&self) {
        loop {
            tokio::time::sleep(REVIEW).await;
            self.queues.all(&self.house.world);
        }
    }

    fn watch(&self, tasks: &mut JoinSet<()>) {
        let world = &self.house.world;
        let q = &self.queues;
        let queue = |queue: &Arc<Queue>| {
            let queue = Arc::clone(queue);
            move |key| queue.add(key)
        };
        let models = queue(&q.models);
        let links = self.linker();
        self.custom(tasks, &world.models, move |change| {
            links(&change.key.namespace);
            models(change.key);
        });
        let (house, queues, links) = (Arc::clone(&self.house), q.clone(), self.linker());
        self.custom(tasks, &world.servers, move |change| {
            links(&change.key.namespace);
            queues.server(&house.world, &change);
        });
        let (house, queues, links) = (Arc::clone(&self.house), q.clone(), self.linker());
        self.custom(tasks, &world.runtimes, move |change| {
            links(&change.key.namespace);
            queues.runtime(&house.world, &change);
        });
        let (house, queues) = (Arc::clone(&self.house), q.clone());
        self.custom(tasks, &world.server_configs, move |change| queues.server_config(&house.world, &change));
        let (house, queues) = (Arc::clone(&self.house), q.clone());
        self.custom(tasks, &world.configs, move |change| queues.config(&house.world, &change));
        let pipelines = queue(&q.pipelines);
        self.custom(tasks, &world.pipelines, move |change| pipelines(change.key));
        let experiments = queue(&q.experiments);
        self.custom(tasks, &world.experiments, move |change| experiments(change.key));
        let ours = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
        for kind in ChildKind::ALL {
            let (house, queues) = (Arc::clone(&self.house), q.clone());
            let config = self.config().labels(&ours);
            self.dynamic(tasks, &kind.resource(), &world.children_cache(kind), &config, move |change| {
                queues.child(&house.world, kind, &change);
            });
        }
        let autoscalers = ApiResource {
            group: "autoscaling".into(),
            version: "v2".into(),
            api_version: "autoscaling/v2".into(),
            kind: "HorizontalPodAutoscaler".into(),
            plural: "horizontalpodautoscalers".into(),
        };
        let (house, queues) = (Arc::clone(&self.house), q.clone());
        self.dynamic(tasks, &autoscalers, &world.autoscalers, &self.config(), move |change| {
            queues.autoscaler(&house.world, &change);
        });
    }

    fn config(&self) -> watcher::Config {
        let seconds = u32::try_from(self.house.world.settings.watch_time.as_secs()).unwrap_or(290);
        watcher::Config::default().timeout(seconds.clamp(1, 294))
    }

    fn custom<K: CustomKind>(
        &self,
        tasks: &mut JoinSet<()>,
        cache: &Arc<Cache<Custom<K>>>,
        changed: impl Fn(Change<Custom<K>>) + Send + Sync + Clone + 'static,
    ) {
        for scope in self.scopes() {
            let api: Api<Custom<K>> = if scope.is_empty() {
                Api::all(self.client.clone())
            } else {
                Api::namespaced(self.client.clone(), &scope)
            };
            let report = self.health.watch(named(K::PLURAL, &scope));
            tasks.spawn(follow(api, self.config(), scope, Arc::clone(cache), report, changed.clone()));
        }
    }

    fn dynamic(
        &self,
        tasks: &mut JoinSet<()>,
        resource: &ApiResource,
        cache: &Arc<Cache<crate::cluster::Child>>,
        config: &watcher::Config,
        changed: impl Fn(Change<crate::cluster::Child>) + Send + Sync + Clone + 'static,
    ) {
        for scope in self.scopes() {
            let api = if scope.is_empty() {
                Api::all_with(self.client.clone(), resource)
            } else {
                Api::namespaced_with(self.client.clone(), &scope, resource)
            };
            let report = self.health.watch(named(&resource.plural, &scope));
            tasks.spawn(follow(api, config.clone(), scope, Arc::clone(cache), report, changed.clone()));
        }
    }

    fn start_controllers(&self, workers: &mut JoinSet<()>, stop: &CancellationToken) {
        let count = self.house.world.settings.workers.max(1);
        let few = count.min(4);
        self.start::<SeldonConfigs>(workers, &self.queues.configs, few, stop);
        self.start::<ServerConfigs>(workers, &self.queues.server_configs, few, stop);
        self.start::<Runtimes>(workers, &self.queues.runtimes, few, stop);
        self.start::<Servers>(workers, &self.queues.servers, count, stop);
        self.start::<Models>(workers, &self.queues.models, count, stop);
        self.start::<Pipelines>(workers, &self.queues.pipelines, few, stop);
        self.start::<Experiments>(workers, &self.queues.experiments, few, stop);
    }

    fn start<C: Controller>(
        &self,
        workers: &mut JoinSet<()>,
        queue: &Arc<Queue>,
        count: usize,
        stop: &CancellationToken,
    ) {
        for _ in 0..count {
            let (house, queue) = (Arc::clone(&self.house), Arc::clone(queue));
            workers.spawn(controller::work::<C>(house, queue, stop.clone()));
        }
    }

    /// Links for every namespace that has a use for one, once this operator leads.
    fn connect(&self) {
        let world = &self.house.world;
        let mut namespaces: BTreeSet<String> = BTreeSet::new();
        namespaces.extend(world.runtimes.all().iter().map(|o| o.key().namespace));
        namespaces.extend(world.servers.all().iter().map(|o| o.key().namespace));
        namespaces.extend(world.models.all().iter().map(|o| o.key().namespace));
        // What was deleted while nobody looked has left nothing here: its namespace has to be asked about.
        namespaces.extend(self.scopes().into_iter().filter(|scope| !scope.is_empty()));
        let linker = self.linker();
        for namespace in &namespaces {
            linker(namespace);
        }
    }

    /// Opens or closes a namespace's link, as its objects ask for.
    fn linker(&self) -> impl Fn(&str) + Send + Sync + Clone + 'static {
        let (house, queues, reach) = (Arc::clone(&self.house), self.queues.clone(), Arc::clone(&self.reach));
        move |namespace: &str| {
            if !house.may_write() {
                return;
            }
            let world = &house.world;
            let used = !world.runtimes.in_namespace(namespace).is_empty()
                || (reach.serves_all()
                    && (world.settings.scope.names(namespace)
                        || !world.models.in_namespace(namespace).is_empty()
                        || !world.servers.in_namespace(namespace).is_empty()));
            let mut links = house.links.lock().unwrap_or_else(PoisonError::into_inner);
            match (used, links.contains_key(namespace)) {
                (true, false) => {
                    let (to, queues, name) = (Arc::clone(&house), queues.clone(), namespace.to_owned());
                    let news = move |news| queues.news(&to.world, &name, news);
                    let (of, name) = (Arc::clone(&house), namespace.to_owned());
                    let servers = move || of.may_write().then(|| server::deployed(&of.world, &name));
                    let book = Arc::clone(&world.schedulers);
                    let link = Link::open(namespace, Arc::clone(&reach), book, servers, news);
                    links.insert(namespace.to_owned(), link);
                }
                (false, true) => {
                    if let Some(link) = links.remove(namespace) {
                        link.close();
                    }
                    drop(links);
                    world.schedulers.forget(namespace);
                    queues.namespace(world, namespace);
                }
                _ => {}
            }
        }
    }

    fn close_links(&self) {
        let links = std::mem::take(&mut *self.house.links.lock().unwrap_or_else(PoisonError::into_inner));
        let links: BTreeMap<String, Link> = links;
        links.values().for_each(Link::close);
    }
}

async fn hold(election: &mut Option<Election>) -> String {
    match election {
        Some(election) => election.hold().await,
        None => std::future::pending().await,
    }
}

fn named(plural: &str, scope: &str) -> String {
    if scope.is_empty() { plural.to_owned() } else { format!("{plural} in {scope}") }
}
