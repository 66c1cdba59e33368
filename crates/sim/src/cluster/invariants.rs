//! The invariants: those that always hold, and those that hold after the last fault.

use super::{
    Cluster, Event,
    client::{Operation, SchedulerApi, is_desired},
    gateway_host,
    ground_truth::ModelTruth,
    inference::{InferenceServer, Presence},
};
use crate::scenario::{Artifact, DesiredModel};
use gantry_proto::scheduler::{
    ExperimentStatusRequest, ExperimentStatusResponse, ModelStatus, ModelStatusRequest, ModelStatusResponse,
    ModelVersionStatus, PipelineStatusRequest, PipelineStatusResponse,
    model_replica_status::ModelReplicaState, model_status::ModelState, scheduler_client::SchedulerClient,
};
use std::{collections::BTreeMap, time::Duration};
use tonic::{Status, transport::Channel};

/// After the last fault.
const CONVERGENCE_TIMEOUT: u64 = 600_000;
/// Time for expiry and scale-down before the steady state is checked.
const IDLE_PERIOD: Duration = Duration::from_mins(4);
const STEADY_STATE_PERIOD: Duration = Duration::from_mins(2);
pub(super) const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads statuses over a connection without latency and faults.
pub(super) struct Observer {
    api: SchedulerApi,
    client: Option<SchedulerClient<Channel>>,
}

type Statuses = BTreeMap<String, ModelStatusResponse>;

#[derive(Debug, Default)]
pub(super) struct DependantStatuses {
    pub(super) pipelines: BTreeMap<String, PipelineStatusResponse>,
    pub(super) experiments: BTreeMap<String, ExperimentStatusResponse>,
}

impl Observer {
    pub(super) const fn new(api: SchedulerApi) -> Self {
        Self { api, client: None }
    }

    async fn connected(&mut self) -> Result<&mut SchedulerClient<Channel>, Status> {
        let client = match self.client.take() {
            Some(client) => client,
            None => self.api.connect().await?,
        };
        Ok(self.client.insert(client))
    }

    async fn ask(&mut self) -> Result<Statuses, Status> {
        let client = self.connected().await?;
        let request = ModelStatusRequest { subscriber_name: "observer".into(), ..Default::default() };
        let mut stream = client.model_status(request).await?.into_inner();
        let mut statuses = Statuses::new();
        while let Some(status) = stream.message().await? {
            statuses.insert(status.model_name.clone(), status);
        }
        Ok(statuses)
    }

    async fn ask_dependants(&mut self) -> Result<DependantStatuses, Status> {
        let client = self.connected().await?;
        let mut statuses = DependantStatuses::default();
        let mut stream = client.pipeline_status(PipelineStatusRequest::default()).await?.into_inner();
        while let Some(status) = stream.message().await? {
            statuses.pipelines.insert(status.pipeline_name.clone(), status);
        }
        let mut stream = client.experiment_status(ExperimentStatusRequest::default()).await?.into_inner();
        while let Some(status) = stream.message().await? {
            statuses.experiments.insert(status.experiment_name.clone(), status);
        }
        Ok(statuses)
    }

    /// The status of every pipeline and experiment.
    pub(super) async fn dependants(&mut self) -> Result<DependantStatuses, Status> {
        let asked = match self.ask_dependants().await {
            Err(_) => {
                self.client = None;
                self.ask_dependants().await
            }
            statuses => statuses,
        };
        asked.inspect_err(|_| self.client = None)
    }

    /// The status of every model; reconnects after a crash of the scheduler.
    async fn statuses(&mut self) -> Result<Statuses, Status> {
        for _ in 0..2 {
            match self.ask().await {
                Ok(statuses) => return Ok(statuses),
                Err(_) => self.client = None,
            }
        }
        self.ask().await
    }
}

fn latest(status: &ModelStatusResponse) -> Option<&ModelVersionStatus> {
    status.versions.first().filter(|_| !status.deleted)
}

fn state(version: &ModelVersionStatus) -> ModelState {
    version.state.as_ref().map_or(ModelState::Unknown, ModelStatus::state)
}

fn available_replicas(version: &ModelVersionStatus) -> impl Iterator<Item = u32> + '_ {
    let replicas = version.model_replica_state.iter();
    replicas
        .filter(|(_, status)| status.state() == ModelReplicaState::Available)
        .filter_map(|(index, _)| u32::try_from(*index).ok())
}

fn is_possible(truth: &ModelTruth, status: Option<&ModelStatusResponse>) -> bool {
    let definition = status.and_then(latest).and_then(|v| v.model_defn.as_ref());
    let matches = |possible: &Option<DesiredModel>| match (possible, definition) {
        (None, None) => true,
        (Some(desired), Some(definition)) => is_desired(definition, desired),
        _ => false,
    };
    truth.possible.0.is_empty() && definition.is_none() || truth.possible.0.iter().any(matches)
}

impl Cluster {
    /// Checks the invariants that always hold.
    pub(super) async fn check_invariants(&mut self) {
        let Some(scheduler) = &self.scheduler else { return };
        let liveness = scheduler.liveness();
        if !liveness.is_live() && self.now() > self.stalled_until {
            self.trace.violate("engine_makes_progress", format!("{liveness:?}"));
        }
        let Some(statuses) = self.statuses().await else { return };
        let now = self.now();
        for model in self.operations.keys() {
            let status = statuses.get(model);
            let mut truth = self.truth.lock();
            let truth = truth.models.entry(model.clone()).or_default();
            if !is_possible(truth, status) {
                let what =
                    format!("{model} may be {:?}, but the scheduler reports {status:?}", truth.possible);
                self.trace.violate("acknowledged_is_durable", what);
                return;
            }
            let available = status.and_then(latest).is_some_and(|v| state(v) == ModelState::ModelAvailable);
            if available
                && truth.possible.certain().is_some_and(|c| c.as_ref().is_some_and(|a| a.replicas > 0))
            {
                truth.available_since.get_or_insert(now);
            }
        }
        self.check_dependants().await;
        for (model, status) in &statuses {
            let available = latest(status).filter(|v| state(v) == ModelState::ModelAvailable);
            self.check_routes(model, available, now);
            self.check_contents(model, status);
            self.check_lost_nodes(model, status);
        }
    }

    /// A replica that is available has the content that was applied, not that of an earlier version with its number.
    fn check_contents(&self, model: &str, status: &ModelStatusResponse) {
        for version in &status.versions {
            let applied = version.model_defn.as_ref().and_then(|d| d.model_spec.as_ref()).map(|s| &s.uri);
            for index in available_replicas(version) {
                let server = self.checker.servers.get(&(version.server_name.clone(), index));
                let held = server.and_then(|s| s.content(&(model.to_owned(), version.version)));
                if held.is_some() && held.as_ref() != applied {
                    let what = format!(
                        "{model} version {} is available on {}-{index} with {held:?} instead of {applied:?}",
                        version.version, version.server_name
                    );
                    self.trace.violate("available_replicas_have_the_applied_content", what);
                }
            }
        }
    }

    /// A replica on a node that disappeared is not available.
    fn check_lost_nodes(&self, model: &str, status: &ModelStatusResponse) {
        if self.now() <= self.stalled_until {
            return;
        }
        for version in &status.versions {
            for index in available_replicas(version) {
                let key = (version.server_name.clone(), index);
                let Some(crashes) = self.lost_nodes.get(&key) else { continue };
                let replica = self.replicas.get(&key);
                if replica.is_some_and(|r| !r.has_agent() && r.server.crashes() == *crashes) {
                    let what = format!("{model} is available on {}-{index}, whose node is gone", key.0);
                    self.trace.violate("lost_nodes_are_noticed", what);
                }
            }
        }
    }

    async fn statuses(&mut self) -> Option<Statuses> {
        match tokio::time::timeout(STATUS_TIMEOUT, self.observer.statuses()).await {
            Ok(Ok(statuses)) => Some(statuses),
            Ok(Err(status)) => {
                self.trace.violate("status_requests_succeed", status.to_string());
                None
            }
            Err(_) => {
                self.trace.violate("status_requests_succeed", "timed out");
                None
            }
        }
    }

    /// Every gateway routes an available model, and only to replicas with that version loaded.
    fn check_routes(&self, model: &str, available: Option<&ModelVersionStatus>, now: u64) {
        for (index, process) in &self.gateways {
            let (Some(process), host) = (process, gateway_host(*index)) else { continue };
            if !process.routes.is_synced() || self.truth.is_expired(&host, now) {
                continue;
            }
            let routed = process.routes.routed(model);
            for (version, server, replica) in &routed {
                let Some(inference) = self.checker.servers.get(&(server.clone(), *replica)) else { continue };
                if inference.presence(&(model.to_owned(), *version)) == Presence::Absent {
                    let what = format!("{host} routes {model} version {version} to {server}-{replica}");
                    self.trace.violate("routes_only_to_loaded_replicas", what);
                }
            }
            let Some(available) = available.filter(|_| !self.truth.is_disconnected(&host, now)) else {
                continue;
            };
            if !routed.iter().any(|(version, ..)| *version == available.version) {
                let what = format!(
                    "{model} version {} is available, but {host} routes it to {routed:?}",
                    available.version
                );
                self.trace.violate("available_means_routed", what);
            }
        }
    }

    /// Ends all faults; the cluster has to converge and stay in the desired state.
    pub(super) async fn check_convergence(&mut self) {
        self.trace.note("simulation", "faults end");
        self.end_faults();
        let deadline = self.now() + CONVERGENCE_TIMEOUT;
        let mut diverging;
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            while let Ok(event) = self.reports.1.try_recv() {
                self.handle(event);
            }
            self.start_all();
            self.check_invariants().await;
            if self.trace.violation().is_some() {
                return;
            }
            diverging = match self.scheduler {
                // A drained replica restarts only after its drain has finished.
                Some(_) if self.drains_in_flight > 0 => Some("a replica is draining".into()),
                Some(_) => match self.statuses().await {
                    Some(statuses) => match self.first_divergence(&statuses) {
                        None => self.diverging_dependant().await,
                        diverging => diverging,
                    },
                    None => return,
                },
                None => Some("the scheduler is down".into()),
            };
            match &diverging {
                None => break,
                Some(what) if self.now() >= deadline => {
                    self.trace.violate("converges", what.clone());
                    return;
                }
                Some(_) => {}
            }
        }
        self.trace.note("simulation", "converged");
        tokio::time::sleep(IDLE_PERIOD).await;
        self.check_steady_state().await;
    }

    fn end_faults(&mut self) {
        let queue = std::mem::take(&mut self.queue);
        self.disk.heal();
        for event in queue.into_values() {
            if !matches!(event, Event::PeriodicCheck | Event::Check | Event::Step(_) | Event::End) {
                self.handle(event);
            }
        }
        self.queue.clear();
        for operations in self.operations.values() {
            let _ = operations.send(Operation::Confirm);
        }
        self.dependants.confirm();
    }

    async fn check_steady_state(&mut self) {
        let operations =
            |cluster: &Self| cluster.checker.servers.values().map(InferenceServer::operations).sum::<u64>();
        let before = (self.disk.writes(), operations(self));
        tokio::time::sleep(STEADY_STATE_PERIOD).await;
        self.check_invariants().await;
        let after = (self.disk.writes(), operations(self));
        if before != after {
            let what = format!(
                "{} disk writes and {} load or unload requests in the steady state",
                after.0 - before.0,
                after.1 - before.1
            );
            self.trace.violate("steady_state_writes_nothing", what);
        }
        let Some(statuses) = self.statuses().await else { return };
        let diverging = match self.first_divergence(&statuses) {
            None => self.diverging_dependant().await,
            diverging => diverging,
        };
        if let Some(what) = diverging {
            self.trace.violate("steady_state_holds", what);
        }
        self.check_final_statuses().await;
        for (model, status) in &statuses {
            if self.last_statuses.of(model).as_ref() != Some(status) {
                let what = format!(
                    "{model} is {status:?}, but the subscriber received {:?}",
                    self.last_statuses.of(model)
                );
                self.trace.violate("subscribers_see_the_final_status", what);
            }
        }
    }

    /// The first difference between desired and actual state.
    fn first_divergence(&self, statuses: &Statuses) -> Option<String> {
        self.operations.keys().find_map(|model| {
            let certain = self.truth.lock().models.get(model)?.possible.certain().cloned();
            let Some(wanted) = certain else {
                return (!self.truth.lock().models.get(model)?.possible.0.is_empty())
                    .then(|| format!("what is desired for as {model} is in doubt"));
            };
            let problem = match &wanted {
                None => self.undeleted(model, statuses.get(model)),
                Some(desired) => self.divergence(model, desired, statuses.get(model)),
            };
            problem.map(|problem| format!("{model}: {problem}"))
        })
    }

    fn holders(&self, model: &str) -> Vec<(u32, String)> {
        let held = |server: &InferenceServer| {
            let host = server.host.to_string();
            let of_model = server.versions().into_iter().filter(|((m, _), _)| m == model);
            of_model.map(move |((_, version), _)| (version, host.clone())).collect::<Vec<_>>()
        };
        self.checker.servers.values().flat_map(held).collect()
    }

    fn undeleted(&self, model: &str, status: Option<&ModelStatusResponse>) -> Option<String> {
        if let Some(status) = status {
            let last = status.versions.first().map(state);
            if !status.deleted || last.is_some_and(|s| s != ModelState::ModelTerminated) {
                return Some(format!("deleted, but in state {last:?}"));
            }
        }
        let holders = self.holders(model);
        if !holders.is_empty() {
            return Some(format!("deleted, but loaded on {holders:?}"));
        }
        self.gateways.values().flatten().find_map(|gateway| {
            let routed = gateway.routes.routed(model);
            (!routed.is_empty()).then(|| format!("deleted, but routed to {routed:?}"))
        })
    }

    fn divergence(
        &self,
        model: &str,
        desired: &DesiredModel,
        status: Option<&ModelStatusResponse>,
    ) -> Option<String> {
        let Some(version) = status.and_then(latest) else { return Some("unknown to the scheduler".into()) };
        let (state, number) = (state(version), version.version);
        let reason = version.state.as_ref().map(|s| s.reason.clone()).unwrap_or_default();
        match state {
            ModelState::ModelAvailable if desired.replicas > 0 && desired.artifact != Artifact::Broken => {
                let others: Vec<_> =
                    self.holders(model).into_iter().filter(|(held, _)| *held != number).collect();
                if !others.is_empty() {
                    return Some(format!(
                        "version {number} is available, but others are loaded on {others:?}"
                    ));
                }
                let held = self.holders(model).len();
                if held > desired.replicas as usize {
                    return Some(format!(
                        "{} replicas were desired for, and it is on {held}",
                        desired.replicas
                    ));
                }
                let available = version.state.as_ref().map_or(0, |s| s.available_replicas);
                let enough = if desired.min > 0 { desired.min } else { desired.replicas };
                (available < enough).then(|| format!("{available} of {enough} replicas are available"))
            }
            ModelState::ModelScaledDown if desired.replicas == 0 => None,
            // A retry may be under way.
            ModelState::ModelFailed | ModelState::ModelProgressing
                if desired.artifact == Artifact::Broken =>
            {
                None
            }
            ModelState::ScheduleFailed | ModelState::ModelProgressing if desired.replicas > 0 => self
                .server_with_capacity(model, number, desired)
                .map(|server| format!("{state:?} ({reason}), but {server} has capacity")),
            _ => Some(format!("{state:?}: {reason}")),
        }
    }

    fn server_with_capacity(&self, model: &str, version: u32, desired: &DesiredModel) -> Option<String> {
        let enough = if desired.min > 0 { desired.min } else { desired.replicas };
        let servers = self.scenario.servers.iter().filter(|server| {
            let is_candidate = desired.server.as_ref().map_or(server.shared, |only| *only == server.name);
            is_candidate && server.capabilities.contains(&desired.requirement)
        });
        servers
            .filter(|server| {
                let fits = (0..server.replicas).filter(|index| {
                    let replica = self.checker.servers.get(&(server.name.clone(), *index));
                    replica.is_some_and(|r| {
                        let holds = r.versions().iter().any(|((m, v), _)| m == model && *v == version);
                        holds || r.memory_free() >= desired.memory
                    })
                });
                fits.count() >= enough as usize
            })
            .map(|server| server.name.clone())
            .next()
    }
}
