//! Applies route events of the scheduler.

use super::{
    Experiment, Inner, Kind, ModelSlot, Pipeline, Route, Routes, Target, Version, VersionMirror,
    WeightedVersion, pipeline::Observers, service, traffic::Counted,
};
use futures::future::BoxFuture;
use gantry_proto::gantry::{self as pb, route_event::Event};
use http::{HeaderValue, Uri};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};
use tokio::sync::Notify;

/// Names of deleted pipelines.
const MAX_DELETED: usize = 1024;

#[derive(Default)]
pub(super) struct Writer {
    state_id: u64,
    epoch: u64,
    /// Routes received since Reset; current routes stay in place until Synced.
    pending: Option<Pending>,
    /// Keys of services that this process serves beside those of the scheduler.
    pub(super) local_services: BTreeSet<String>,
    /// Active experiments by the name that they take over.
    takeovers: HashMap<(Kind, Arc<str>), Arc<Experiment>>,
}

#[derive(Default)]
struct Pending {
    models: HashMap<String, pb::Route>,
    pipelines: HashMap<String, pb::PipelineRoute>,
    experiments: HashMap<String, pb::ExperimentRoute>,
    /// By `<namespace>/<name>`.
    services: HashMap<String, pb::ServiceRoute>,
}

impl Pending {
    /// Returns an event that starts or ends a replay.
    fn apply(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Upsert(route) => drop(self.models.insert(route.model.clone(), route)),
            Event::Delete(model) => drop(self.models.remove(&model)),
            Event::UpsertPipeline(route) => drop(self.pipelines.insert(route.pipeline.clone(), route)),
            Event::DeletePipeline(name) => drop(self.pipelines.remove(&name)),
            Event::UpsertExperiment(route) => drop(self.experiments.insert(experiment_name(&route), route)),
            Event::DeleteExperiment(name) => drop(self.experiments.remove(&name)),
            Event::UpsertService(route) => {
                drop(self.services.insert(service::key(&route.namespace, &route.name), route));
            }
            Event::DeleteService(name) => {
                drop(self.services.remove(&service::key(&name.namespace, &name.name)));
            }
            Event::Reset(_) | Event::Synced(_) => return Some(event),
        }
        None
    }
}

fn experiment_name(route: &pb::ExperimentRoute) -> String {
    route.definition.as_ref().map(|definition| definition.name.clone()).unwrap_or_default()
}

/// Targets removed by an event; requests may still be in flight there.
#[derive(Default)]
pub struct Removed {
    targets: Vec<Arc<Target>>,
}

impl Removed {
    pub fn is_drained(&self) -> bool {
        self.targets.iter().all(|t| t.is_idle())
    }

    /// Resolves when no request is in flight on any of them.
    pub async fn drained(&self) {
        for target in &self.targets {
            target.drained().await;
        }
    }

    /// The targets with requests in flight, each with a future that resolves when it has none.
    pub(crate) fn undrained(self) -> impl Iterator<Item = (pb::Removal, BoxFuture<'static, ()>)> {
        self.targets.into_iter().filter(|target| !target.is_idle()).map(|target| {
            let removal = pb::Removal {
                model: target.version.model.to_string(),
                version: target.version.number,
                server: target.endpoint.server.clone(),
                replica: target.endpoint.replica,
            };
            let drained: BoxFuture<'static, ()> = Box::pin(async move { target.drained().await });
            (removal, drained)
        })
    }
}

impl Routes {
    /// Applies one event and returns the removed targets. Events of an older epoch of the same state are ignored; after a
    /// loss of the scheduler's state its epochs begin again.
    pub fn apply(&self, event: pb::RouteEvent) -> Removed {
        let mut removed = Removed::default();
        let mut writer = self.inner.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if event.state_id == writer.state_id && event.epoch < writer.epoch {
            return removed;
        }
        (writer.state_id, writer.epoch) = (event.state_id, event.epoch);
        self.inner.traffic.set_state(event.state_id);
        let event = match (event.event, &mut writer.pending) {
            (Some(event), Some(pending)) => pending.apply(event),
            (event, _) => event,
        };
        if let Some(event) = event {
            self.inner.apply(&mut writer, event, &mut removed);
        }
        self.inner.metrics.sweep();
        removed
    }
}

impl Inner {
    fn apply(&self, writer: &mut Writer, event: Event, removed: &mut Removed) {
        match event {
            Event::Reset(_) => writer.pending = Some(Pending::default()),
            Event::Upsert(route) => self.upsert(writer, &route, removed),
            Event::Delete(model) => self.delete(&model, removed),
            Event::UpsertPipeline(route) => self.upsert_pipeline(writer, &route),
            Event::DeletePipeline(name) => {
                self.remember_deleted(&name);
                self.delete_pipeline(&name);
            }
            Event::UpsertExperiment(route) => self.upsert_experiment(writer, &route),
            Event::DeleteExperiment(name) => self.delete_experiment(writer, &name),
            Event::UpsertService(route) => self.upsert_service(&route, removed),
            Event::DeleteService(name) => {
                self.delete_service(&service::key(&name.namespace, &name.name), removed);
            }
            Event::Synced(_) => {
                let pending = writer.pending.take().unwrap_or_default();
                self.sync(writer, &pending, removed);
                self.synced.store(true, Ordering::Release);
                self.pipeline_changes.send_modify(|changes| *changes += 1);
            }
        }
    }

    /// Replaces all routes.
    fn sync(&self, writer: &mut Writer, pending: &Pending, removed: &mut Removed) {
        let Pending { models: routes, pipelines, experiments, services } = pending;
        for route in routes.values() {
            self.upsert(writer, route, removed);
        }
        for route in pipelines.values() {
            self.upsert_pipeline(writer, route);
        }
        // After their candidates.
        for route in experiments.values() {
            self.upsert_experiment(writer, route);
        }
        for experiment in self.experiments.names() {
            if !experiments.contains_key(&experiment) {
                self.delete_experiment(writer, &experiment);
            }
        }
        for pipeline in self.pipelines.names() {
            if !pipelines.contains_key(&pipeline) {
                self.delete_pipeline(&pipeline);
            }
        }
        for model in self.models().map(|slot| slot.model.to_string()) {
            if !routes.contains_key(&model) {
                self.delete(&model, removed);
            }
        }
        for route in services.values() {
            self.upsert_service(route, removed);
        }
        for service in self.services.names() {
            let is_local = writer.local_services.contains(&service);
            if !services.contains_key(&service) && !is_local {
                self.delete_service(&service, removed);
            }
        }
    }

    fn upsert_pipeline(&self, writer: &Writer, wanted: &pb::PipelineRoute) {
        let old = self.pipelines.get(&wanted.pipeline);
        let Some(mut new) = Pipeline::new(wanted, old.as_deref(), &self.metrics, &self.traffic) else {
            return;
        };
        new.experiment = writer.takeovers.get(&(Kind::Pipeline, Arc::clone(&new.name))).cloned();
        self.observe(&new.name, old.as_deref(), Some(&new));
        self.pipelines.replace(Arc::new(new));
        self.pipeline_changes.send_modify(|changes| *changes += 1);
    }

    fn remember_deleted(&self, pipeline: &str) {
        let mut deleted = self.deleted_pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        if deleted.len() >= MAX_DELETED {
            deleted.pop_front();
        }
        deleted.push_back(pipeline.to_owned());
    }

    fn delete_pipeline(&self, name: &str) {
        if let Some(old) = self.pipelines.remove(name) {
            self.observe(&old.name, Some(&old), None);
            self.pipeline_changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Updates the pipelines that this one reads.
    fn observe(&self, name: &Arc<str>, old: Option<&Pipeline>, new: Option<&Pipeline>) {
        let observed = |pipeline: Option<&Pipeline>| pipeline.map(Pipeline::observed).unwrap_or_default();
        let (before, after) = (observed(old), observed(new));
        for pipeline in before.symmetric_difference(&after) {
            let current = self.observers.get(pipeline).map(|entry| entry.observers.to_vec());
            let mut observers = current.unwrap_or_default();
            observers.retain(|observer| observer != name);
            if after.contains(pipeline) {
                observers.push(Arc::clone(name));
            }
            if observers.is_empty() {
                self.observers.remove(pipeline);
            } else {
                let (pipeline, observers) = (Arc::clone(pipeline), observers.into());
                self.observers.replace(Arc::new(Observers { pipeline, observers }));
            }
        }
    }

    fn upsert_experiment(&self, writer: &mut Writer, wanted: &pb::ExperimentRoute) {
        let Some(new) = Experiment::new(wanted, &self.metrics).map(Arc::new) else { return };
        let old = self.experiments.replace(Arc::clone(&new));
        let taken = new.takeover();
        if let Some(name) = old.and_then(|old| old.takeover()).filter(|name| Some(name) != taken.as_ref()) {
            self.end_takeover(writer, &name, &new.name);
        }
        if let Some(name) = taken {
            self.set_experiment(&name, Some(&new));
            writer.takeovers.insert(name, new);
        }
    }

    fn delete_experiment(&self, writer: &mut Writer, name: &str) {
        if let Some(taken) = self.experiments.remove(name).and_then(|old| old.takeover()) {
            self.end_takeover(writer, &taken, name);
        }
    }

    /// Unless another experiment has taken the name over since.
    fn end_takeover(&self, writer: &mut Writer, taken: &(Kind, Arc<str>), experiment: &str) {
        if writer.takeovers.get(taken).is_some_and(|current| &*current.name == experiment) {
            self.set_experiment(taken, None);
            writer.takeovers.remove(taken);
        }
    }

    fn set_experiment(&self, (kind, name): &(Kind, Arc<str>), experiment: Option<&Arc<Experiment>>) {
        let experiment = experiment.cloned();
        match kind {
            Kind::Model => {
                let found = self.table.find(name);
                let Some(slot) = found.as_ref().and_then(|f| f.slot(name)) else { return };
                if let Some(route) = slot.route.load_full() {
                    slot.route.store(Some(Arc::new(Route { experiment, ..Route::clone(&route) })));
                }
            }
            Kind::Pipeline => {
                if let Some(pipeline) = self.pipelines.get(name) {
                    self.pipelines.replace(Arc::new(Pipeline { experiment, ..Pipeline::clone(&pipeline) }));
                }
            }
        }
    }

    fn upsert(&self, writer: &Writer, wanted: &pb::Route, removed: &mut Removed) {
        let slot = self.slot(&wanted.model, false);
        let old = slot.route.load_full();
        let mut new = self.build(&slot, wanted, old.as_deref());
        new.experiment = writer.takeovers.get(&(Kind::Model, Arc::clone(&slot.model))).cloned();
        self.count_service(old.as_deref(), Some(&new));
        Self::store(&slot, old.as_deref(), new, removed);
    }

    pub(super) fn slot(&self, name: &str, is_component: bool) -> Arc<ModelSlot> {
        self.table.get_or_insert(name, || ModelSlot {
            model: name.into(),
            is_component,
            route: None.into(),
            changed: Notify::new(),
            waiting: AtomicUsize::new(0),
        })
    }

    pub(super) fn store(slot: &ModelSlot, old: Option<&Route>, new: Route, removed: &mut Removed) {
        let kept: HashSet<*const Target> = new.targets().map(Arc::as_ptr).collect();
        slot.route.store(Some(Arc::new(new)));
        slot.changed.notify_waiters();
        let gone = old.into_iter().flat_map(Route::targets).filter(|t| !kept.contains(&Arc::as_ptr(t)));
        removed.targets.extend(gone.map(Arc::clone));
    }

    pub(super) fn delete(&self, model: &str, removed: &mut Removed) {
        let Some(slot) = self.table.remove(model) else {
            return;
        };
        if let Some(old) = slot.route.swap(None) {
            self.count_service(Some(&old), None);
            removed.targets.extend(old.targets().map(Arc::clone));
        }
        slot.changed.notify_waiters();
    }

    fn count_service(&self, old: Option<&Route>, new: Option<&Route>) {
        let is_service = |route: Option<&Route>| route.is_some_and(|r| !r.service_namespace.is_empty());
        match (is_service(old), is_service(new)) {
            (false, true) => drop(self.service_count.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.service_count.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    fn build(&self, slot: &ModelSlot, wanted: &pb::Route, old: Option<&Route>) -> Route {
        let versions: Vec<WeightedVersion> = wanted
            .versions
            .iter()
            .filter_map(|v| {
                let version = self.version(&slot.model, v.version)?;
                let targets = v.endpoints.iter().map(|e| self.target(&version, e, old)).collect();
                let before = old.into_iter().flat_map(|old| &old.versions);
                let mut before = before.filter(|known| known.version.number == v.version);
                let before = before.find_map(|known| known.counters.as_ref());
                let generation = wanted.rollout_generation;
                let of_model = (Counted::Model, &slot.model);
                let observed = wanted.observed.as_ref();
                let counters = self.traffic.counters(of_model, generation, v.version, observed, before);
                Some(WeightedVersion { weight: v.weight, version, targets, counters })
            })
            .collect();
        let mirror = wanted.mirror.as_ref().map(|mirror| VersionMirror {
            version: mirror.version,
            percent: mirror.percent,
            counters: versions
                .iter()
                .find(|known| known.version.number == mirror.version)
                .and_then(|known| known.counters.clone()),
            tolerance: mirror.tolerance,
        });
        Route {
            mirror,
            scaled_to_zero: wanted.sleeps,
            failed: wanted.failed,
            service_namespace: wanted.service_namespace.clone(),
            ..Route::new(versions, &wanted.reason)
        }
    }

    fn version(&self, model: &Arc<str>, number: u32) -> Option<Arc<Version>> {
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (model.to_string(), number);
        if let Some(known) = versions.get(&key).and_then(Weak::upgrade) {
            return Some(known);
        }
        let internal = format!("{model}_{number}");
        // The scheduler only admits names that are valid header values and path segments.
        let version = Arc::new(Version {
            model: Arc::clone(model),
            number,
            internal_header: Some(HeaderValue::from_str(&internal).ok()?),
            route_header: HeaderValue::from_str(&format!(":{internal}:")).ok()?,
            infer_uri: format!("/v2/models/{internal}/infer").parse::<Uri>().ok()?,
            internal: internal.into(),
            inputs: OnceLock::new(),
            targets: Mutex::default(),
        });
        // Amortized cleanup of dead entries.
        if versions.len().is_power_of_two() {
            versions.retain(|_, v| v.strong_count() > 0);
        }
        versions.insert(key, Arc::downgrade(&version));
        Some(version)
    }

    /// Reuses the current target of this version and replica, if any.
    pub(super) fn target(
        &self,
        version: &Arc<Version>,
        wanted: &pb::Endpoint,
        old: Option<&Route>,
    ) -> Arc<Target> {
        let endpoint = self.registry.endpoint(wanted, &self.metrics);
        let current = old
            .into_iter()
            .flat_map(Route::targets)
            .find(|t| t.version.number == version.number && t.endpoint.id == endpoint.id);
        if let Some(current) = current {
            current.set_disconnected(wanted.disconnected);
            return Arc::clone(current);
        }
        let target = Arc::new(Target {
            metrics: self.metrics.version(),
            version: Arc::clone(version),
            endpoint,
            in_flight: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            busy_micros: AtomicU64::new(0),
            avoid_until: AtomicU64::new(0),
            has_waiters: AtomicBool::new(false),
            idle: Notify::new(),
        });
        target.set_disconnected(wanted.disconnected);
        let mut targets = version.targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.retain(|t| t.strong_count() > 0);
        targets.push(Arc::downgrade(&target));
        target
    }
}

impl Route {
    pub(super) fn new(versions: Vec<WeightedVersion>, reason: &str) -> Self {
        let has_alternatives = versions.iter().map(|v| v.targets.len()).sum::<usize>() > 1;
        Self {
            versions,
            experiment: None,
            reason: reason.to_owned(),
            scaled_to_zero: false,
            failed: false,
            service_namespace: String::new(),
            has_alternatives,
            mirror: None,
        }
    }

    pub(super) fn targets(&self) -> impl Iterator<Item = &Arc<Target>> {
        self.versions.iter().flat_map(|v| &v.targets)
    }

    pub(super) fn is_served(&self) -> bool {
        self.targets().next().is_some()
    }
}
