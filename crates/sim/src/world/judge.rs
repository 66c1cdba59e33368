//! The properties: which hold at every moment, and which when nothing more goes wrong.

use super::{
    Event, World,
    facts::ModelFacts,
    gateway_host,
    inference::{Fate, InferenceServer},
    user::{Desk, Errand, is_asked},
};
use crate::plan::{Artifact, Asked};
use gantry_proto::scheduler::{
    ModelStatusRequest, ModelStatusResponse, ModelVersionStatus, model_status::ModelState,
    scheduler_client::SchedulerClient,
};
use std::{collections::BTreeMap, time::Duration};
use tonic::{Status, transport::Channel};

/// How long the world may take to come to rest when nothing more goes wrong.
const REST: u64 = 600_000;
/// How long it is left alone before that: what nobody hears from is given up, what nobody asks is scaled
/// down.
const SETTLE: Duration = Duration::from_secs(720);
/// How long it is watched at rest.
const QUIET: Duration = Duration::from_secs(180);
/// How long the scheduler may take to answer somebody beside it.
const ANSWER: Duration = Duration::from_secs(5);

/// Somebody beside the scheduler who only looks.
pub(super) struct Observer {
    desk: Desk,
    client: Option<SchedulerClient<Channel>>,
}

type Statuses = BTreeMap<String, ModelStatusResponse>;

impl Observer {
    pub(super) const fn new(desk: Desk) -> Self {
        Self { desk, client: None }
    }

    async fn ask(&mut self) -> Result<Statuses, Status> {
        let client = match self.client.take() {
            Some(client) => client,
            None => self.desk.connect().await?,
        };
        let client = self.client.insert(client);
        let request = ModelStatusRequest { subscriber_name: "observer".into(), ..Default::default() };
        let mut stream = client.model_status(request).await?.into_inner();
        let mut statuses = Statuses::new();
        while let Some(status) = stream.message().await? {
            statuses.insert(status.model_name.clone(), status);
        }
        Ok(statuses)
    }

    /// The status of every model; a connection to a scheduler that died is made anew.
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
    version.state.as_ref().map_or(ModelState::Unknown, |s| s.state())
}

/// What the scheduler says is asked for is what may be asked for.
fn is_possible(facts: &ModelFacts, status: Option<&ModelStatusResponse>) -> bool {
    let definition = status.and_then(latest).and_then(|v| v.model_defn.as_ref());
    let matches = |possible: &Option<Asked>| match (possible, definition) {
        (None, None) => true,
        (Some(asked), Some(definition)) => is_asked(definition, asked),
        _ => false,
    };
    facts.possible.is_empty() && definition.is_none() || facts.possible.iter().any(matches)
}

impl World {
    /// What must hold at every moment.
    pub(super) async fn look(&mut self) {
        let Some(scheduler) = &self.scheduler else { return };
        let progress = scheduler.progress();
        if !progress.is_moving() {
            self.trace.violate("the_writer_moves", format!("{progress:?}"));
        }
        let Some(statuses) = self.statuses().await else { return };
        let now = self.now();
        for model in self.errands.keys() {
            let status = statuses.get(model);
            let mut facts = self.facts.lock();
            let facts = facts.models.entry(model.clone()).or_default();
            if !is_possible(facts, status) {
                let what = format!("{model} may be {:?}, and the scheduler says {status:?}", facts.possible);
                self.trace.violate("acknowledged_is_durable", what);
                return;
            }
            let available = status.and_then(latest).is_some_and(|v| state(v) == ModelState::ModelAvailable);
            if available && facts.certain().is_some_and(|c| c.as_ref().is_some_and(|a| a.replicas > 0)) {
                facts.available_since.get_or_insert(now);
            }
        }
        for (model, status) in &statuses {
            let available = latest(status).filter(|v| state(v) == ModelState::ModelAvailable);
            self.routes_are_true(model, available, now);
        }
    }

    async fn statuses(&mut self) -> Option<Statuses> {
        match tokio::time::timeout(ANSWER, self.observer.statuses()).await {
            Ok(Ok(statuses)) => Some(statuses),
            Ok(Err(status)) => {
                self.trace.violate("status_is_answered", status.to_string());
                None
            }
            Err(_) => {
                self.trace.violate("status_is_answered", "no answer within 5 s");
                None
            }
        }
    }

    /// A model that is available is routed by every gateway, and routes name only replicas that hold the version.
    fn routes_are_true(&self, model: &str, available: Option<&ModelVersionStatus>, now: u64) {
        for (index, process) in &self.gateways {
            let (Some(process), host) = (process, gateway_host(*index)) else { continue };
            if !process.routes.is_synced() || self.facts.is_disturbed(&host, now) {
                continue;
            }
            let routed = process.routes.routed(model);
            for (version, server, replica) in &routed {
                let Some(inference) = self.bench.servers.get(&(server.clone(), *replica)) else { continue };
                if inference.fate(&(model.to_owned(), *version)) == Fate::Absent {
                    let what = format!("{host} routes {model} version {version} to {server}-{replica}");
                    self.trace.violate("routed_only_to_holders", what);
                }
            }
            let Some(available) = available.filter(|_| !self.facts.is_apart(&host, now)) else { continue };
            if !routed.iter().any(|(version, ..)| *version == available.version) {
                let what = format!(
                    "{model} version {} is available, and {host} routes it to {routed:?}",
                    available.version
                );
                self.trace.violate("ready_is_truthful", what);
            }
        }
    }

    /// Nothing more goes wrong: everything comes to rest, and stays there.
    pub(super) async fn rest(&mut self) {
        self.trace.note("world", "nothing more goes wrong");
        self.heal();
        let deadline = self.now() + REST;
        let mut stands_out;
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            while let Ok(event) = self.reports.1.try_recv() {
                self.happen(event);
            }
            self.everything_starts();
            self.look().await;
            if self.trace.violation().is_some() {
                return;
            }
            stands_out = match self.scheduler {
                Some(_) => match self.statuses().await {
                    Some(statuses) => self.unsettled(&statuses),
                    None => return,
                },
                None => Some("the scheduler is down".into()),
            };
            match &stands_out {
                None => break,
                Some(what) if self.now() >= deadline => {
                    self.trace.violate("converges", what.clone());
                    return;
                }
                Some(_) => {}
            }
        }
        self.trace.note("world", "is at rest");
        tokio::time::sleep(SETTLE).await;
        self.stays_quiet().await;
    }

    fn heal(&mut self) {
        let agenda = std::mem::take(&mut self.agenda);
        self.disk.heal();
        for event in agenda.into_values() {
            if !matches!(event, Event::Look | Event::Step(_) | Event::End) {
                self.happen(event);
            }
        }
        self.agenda.clear();
        for errands in self.errands.values() {
            let _ = errands.send(Errand::MakeSure);
        }
    }

    async fn stays_quiet(&mut self) {
        let operations =
            |world: &Self| world.bench.servers.values().map(InferenceServer::operations).sum::<u64>();
        let before = (self.disk.writes(), operations(self));
        tokio::time::sleep(QUIET).await;
        self.look().await;
        let after = (self.disk.writes(), operations(self));
        if before != after {
            let what = format!(
                "at rest the disk was written {} times and servers got {} orders",
                after.0 - before.0,
                after.1 - before.1
            );
            self.trace.violate("steady_state_writes_nothing", what);
        }
        let Some(statuses) = self.statuses().await else { return };
        if let Some(what) = self.unsettled(&statuses) {
            self.trace.violate("rest_lasts", what);
        }
        for (model, status) in &statuses {
            if self.heard.of(model).as_ref() != Some(status) {
                let what =
                    format!("{model} is {status:?}, and a subscriber heard last {:?}", self.heard.of(model));
                self.trace.violate("subscribers_end_in_the_truth", what);
            }
        }
    }

    /// What is not as it must be at rest; the first of it.
    fn unsettled(&self, statuses: &Statuses) -> Option<String> {
        self.errands.keys().find_map(|model| {
            let certain = self.facts.lock().models.get(model)?.certain().cloned();
            let Some(wanted) = certain else {
                return (!self.facts.lock().models.get(model)?.possible.is_empty())
                    .then(|| format!("what is asked for as {model} is in doubt"));
            };
            let problem = match &wanted {
                None => self.not_gone(model, statuses.get(model)),
                Some(asked) => self.not_as_asked(model, asked, statuses.get(model)),
            };
            problem.map(|problem| format!("{model}: {problem}"))
        })
    }

    fn holders(&self, model: &str) -> Vec<(u32, String)> {
        let held = |server: &InferenceServer| {
            let host = server.host.to_string();
            let of_model = server.holdings().into_iter().filter(|((m, _), _)| m == model);
            of_model.map(move |((_, version), _)| (version, host.clone())).collect::<Vec<_>>()
        };
        self.bench.servers.values().flat_map(held).collect()
    }

    fn not_gone(&self, model: &str, status: Option<&ModelStatusResponse>) -> Option<String> {
        if let Some(status) = status {
            let last = status.versions.first().map(state);
            if !status.deleted || last.is_some_and(|s| s != ModelState::ModelTerminated) {
                return Some(format!("it was deleted, and its state is {last:?}"));
            }
        }
        let holders = self.holders(model);
        if !holders.is_empty() {
            return Some(format!("it was deleted, and is still on {holders:?}"));
        }
        self.gateways.values().flatten().find_map(|gateway| {
            let routed = gateway.routes.routed(model);
            (!routed.is_empty()).then(|| format!("it was deleted, and is routed to {routed:?}"))
        })
    }

    fn not_as_asked(
        &self,
        model: &str,
        asked: &Asked,
        status: Option<&ModelStatusResponse>,
    ) -> Option<String> {
        let Some(version) = status.and_then(latest) else { return Some("it is not known".into()) };
        let (state, number) = (state(version), version.version);
        let reason = version.state.as_ref().map(|s| s.reason.clone()).unwrap_or_default();
        match state {
            ModelState::ModelAvailable if asked.replicas > 0 && asked.artifact != Artifact::Broken => {
                let stray: Vec<_> =
                    self.holders(model).into_iter().filter(|(held, _)| *held != number).collect();
                if !stray.is_empty() {
                    return Some(format!("version {number} is available, and others are on {stray:?}"));
                }
                let available = version.state.as_ref().map_or(0, |s| s.available_replicas);
                let enough = if asked.min > 0 { asked.min } else { asked.replicas };
                (available < enough).then(|| format!("it is available in {available} replicas of {enough}"))
            }
            ModelState::ModelScaledDown if asked.replicas == 0 => None,
            ModelState::ModelFailed if asked.artifact == Artifact::Broken => None,
            ModelState::ScheduleFailed | ModelState::ModelProgressing if asked.replicas > 0 => self
                .room_for(model, number, asked)
                .map(|server| format!("it is {state:?} ({reason}), and {server} could take it")),
            _ => Some(format!("it is {state:?}: {reason}")),
        }
    }

    /// A server that could take a version now.
    fn room_for(&self, model: &str, version: u32, asked: &Asked) -> Option<String> {
        let enough = if asked.min > 0 { asked.min } else { asked.replicas };
        let servers = self.plan.servers.iter().filter(|server| {
            let meant = asked.server.as_ref().map_or(server.shared, |only| *only == server.name);
            meant && server.capabilities.contains(&asked.requirement)
        });
        servers
            .filter(|server| {
                let fits = (0..server.replicas).filter(|index| {
                    let replica = self.bench.servers.get(&(server.name.clone(), *index));
                    replica.is_some_and(|r| {
                        let holds = r.holdings().iter().any(|((m, v), _)| m == model && *v == version);
                        holds || r.memory_free() >= asked.memory
                    })
                });
                fits.count() >= enough as usize
            })
            .map(|server| server.name.clone())
            .next()
    }
}
