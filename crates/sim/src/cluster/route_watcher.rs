//! A gateway on a connection without latency and faults, which checks the routes of pipelines and experiments in the
//! order in which it receives them.

use super::client::SchedulerApi;
use crate::{net::OBSERVER, trace::Trace};
use gantry_proto::{
    gantry::{
        ExperimentRoute, PipelineRoute, RouteAcknowledgement, RouteEvent, ServiceRoute, WatchRoutesRequest,
        route_event::Event, routing_client::RoutingClient,
    },
    scheduler::ResourceType,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tonic::Status;

#[derive(Clone, Debug, Default)]
struct Table {
    /// Whether requests of the model can succeed.
    models: BTreeMap<String, bool>,
    pipelines: BTreeMap<String, PipelineRoute>,
    experiments: BTreeMap<String, ExperimentRoute>,
    services: BTreeMap<String, ServiceRoute>,
}

#[derive(Debug, Default)]
struct State {
    table: Table,
    /// Routes received since Reset.
    pending: Option<Table>,
    seen: Seen,
}

/// What has been received at any time.
#[derive(Debug, Default)]
struct Seen {
    /// UIDs of pipeline versions that were ready.
    ready: BTreeSet<String>,
    /// Models that served.
    served: BTreeSet<String>,
}

#[derive(Clone)]
pub(crate) struct RouteWatcher {
    state: Arc<Mutex<State>>,
    trace: Trace,
}

impl RouteWatcher {
    pub(crate) fn start(api: SchedulerApi) -> Self {
        let watcher = Self { state: Arc::default(), trace: api.trace.clone() };
        tokio::spawn(watcher.clone().run(api));
        watcher
    }

    async fn run(self, api: SchedulerApi) {
        loop {
            let _ = self.watch(&api).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn watch(&self, api: &SchedulerApi) -> Result<(), Status> {
        let mut client = RoutingClient::new(api.channel().await?);
        let request = WatchRoutesRequest { subscriber: OBSERVER.into() };
        let mut events = client.watch_routes(request).await?.into_inner();
        while let Some(event) = events.message().await? {
            let RouteEvent { epoch, state_id, sequence, event } = event;
            if let Some(event) = event
                && self.apply(event)
            {
                let (applied, drained, subscriber) = (sequence, sequence, OBSERVER.to_owned());
                let acknowledged = RouteAcknowledgement {
                    subscriber,
                    epoch,
                    state_id,
                    applied,
                    drained,
                    ..Default::default()
                };
                client.acknowledge_routes(acknowledged).await?;
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the event has to be acknowledged.
    fn apply(&self, event: Event) -> bool {
        let mut state = self.lock();
        match event {
            Event::Reset(_) => state.pending = Some(Table::default()),
            Event::Synced(_) => {
                if let Some(table) = state.pending.take() {
                    state.table = table;
                }
            }
            event => {
                let synced = state.pending.is_none();
                let State { table, pending, seen } = &mut *state;
                let table = pending.as_mut().unwrap_or(table);
                if let Some((invariant, what)) = table.apply(event, synced, seen) {
                    self.trace.violate(invariant, what);
                }
            }
        }
        state.pending.is_none()
    }

    pub(crate) fn serves(&self, model: &str) -> bool {
        self.lock().table.serves(model)
    }

    pub(crate) fn pipeline(&self, name: &str) -> Option<PipelineRoute> {
        self.lock().table.pipelines.get(name).cloned()
    }

    pub(crate) fn experiment(&self, name: &str) -> Option<ExperimentRoute> {
        self.lock().table.experiments.get(name).cloned()
    }

    pub(crate) fn service(&self, name: &str) -> Option<ServiceRoute> {
        self.lock().table.services.get(name).cloned()
    }
}

impl Table {
    fn serves(&self, model: &str) -> bool {
        self.models.get(model).copied().unwrap_or(false)
    }

    fn is_ready(&self, pipeline: &str) -> bool {
        self.pipelines.get(pipeline).is_some_and(|route| route.ready)
    }

    /// Applies a change and returns the invariant that it violates. Routes before Synced are of different moments.
    fn apply(&mut self, event: Event, synced: bool, seen: &mut Seen) -> Option<(&'static str, String)> {
        let mut violation = None;
        match event {
            Event::Upsert(route) => {
                let endpoints = route.versions.iter().any(|v| v.weight > 0 && !v.endpoints.is_empty());
                if endpoints || route.sleeps {
                    seen.served.insert(route.model.clone());
                }
                self.models.insert(route.model, endpoints || route.sleeps);
            }
            Event::Delete(model) => {
                self.models.remove(&model);
            }
            Event::UpsertPipeline(route) => {
                let steps = route.definition.iter().flat_map(|d| &d.steps);
                let missing: Vec<&String> =
                    steps.map(|step| &step.name).filter(|step| !self.serves(step)).collect();
                let uid = route.definition.as_ref().map(|d| d.uid.clone());
                if route.ready && synced && (!missing.is_empty() || uid.is_none()) {
                    let what = format!("{} is ready without {missing:?}: {route:?}", route.pipeline);
                    violation = Some(("ready_pipelines_have_their_models", what));
                }
                if let Some(uid) = uid {
                    if route.ready || (!synced && missing.is_empty()) {
                        seen.ready.insert(uid);
                    } else if let Some(step) = missing.iter().find(|step| !seen.served.contains(**step))
                        && synced
                        && !seen.ready.contains(&uid)
                    {
                        // A version that was ready for less than a batch is received once, after it stopped.
                        let what =
                            format!("{} was never ready, {step} never served: {route:?}", route.pipeline);
                        violation = Some(("routed_pipelines_were_ready", what));
                    }
                }
                self.pipelines.insert(route.pipeline.clone(), route);
            }
            Event::DeletePipeline(name) => {
                self.pipelines.remove(&name);
            }
            Event::UpsertExperiment(route) => {
                let missing = self.missing(&route);
                let name = route.definition.as_ref().map(|d| d.name.clone()).unwrap_or_default();
                if route.active && synced && !missing.is_empty() {
                    let what = format!("{name} is active without {missing:?}");
                    violation = Some(("active_experiments_have_their_candidates", what));
                }
                self.experiments.insert(name, route);
            }
            Event::DeleteExperiment(name) => {
                self.experiments.remove(&name);
            }
            Event::UpsertService(route) => {
                self.services.insert(route.name.clone(), route);
            }
            Event::DeleteService(service) => {
                self.services.remove(&service.name);
            }
            Event::Reset(_) | Event::Synced(_) => {}
        }
        violation
    }

    /// Candidates and mirrors that do not serve.
    fn missing(&self, route: &ExperimentRoute) -> Vec<String> {
        let Some(definition) = &route.definition else { return Vec::new() };
        let serves = |name: &str| match definition.resource_type() {
            ResourceType::Model => self.serves(name),
            ResourceType::Pipeline => self.is_ready(name),
        };
        let candidates = definition.candidates.iter().map(|c| &c.name);
        let resources = candidates.chain(definition.mirror.iter().map(|m| &m.name));
        resources.filter(|name| !serves(name)).cloned().collect()
    }
}
