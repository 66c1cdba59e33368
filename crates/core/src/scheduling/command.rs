//! Commands applied to the state, and their effects.

use super::{
    Millis,
    experiment::{ExperimentDefinition, InvalidExperiment},
    model::{Definition, Digest},
    owner::{Kind, Owner},
    pipeline::PipelineDefinition,
    rollout::{PolicyRecord, RolloutTarget, Steer, Traffic},
    route::Removal,
    server::{ExpectedReplicas, Replica, ReplicaId},
    service::ServiceRecord,
};
use crate::rollout::{CommandRejection, Event};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

/// A request, a report or the passage of time.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Creates or updates a model.
    LoadModel {
        definition: Box<Definition>,
        by: Owner,
    },
    /// Retries a model on behalf of its owner, or restores one that a gateway unloaded; its definition stays.
    ReloadModel {
        name: Arc<str>,
    },
    /// Deletes a model.
    UnloadModel {
        name: Arc<str>,
        by: Owner,
    },
    /// Transfers ownership of a model.
    AdoptModel {
        name: Arc<str>,
        by: Owner,
    },
    /// Transfers ownership of a server.
    AdoptServer {
        name: Arc<str>,
        by: Owner,
    },
    /// Creates or updates a server.
    UpsertServer {
        name: Arc<str>,
        expected: ExpectedReplicas,
        /// Whether models without an explicit `spec.server` may be placed on it.
        shared: bool,
        namespace: Option<String>,
        by: Owner,
    },
    ReplicaJoined {
        id: ReplicaId,
        replica: Replica,
        /// Whether models without an explicit `spec.server` may be placed on the server.
        shared: bool,
        /// Model versions in its memory.
        loaded: Vec<LoadedVersion>,
    },
    /// The connection to an agent ended without deregistration. The replica keeps its routes during the grace period,
    /// because requests do not pass through the scheduler, but is not available; afterwards it is lost.
    ReplicaDisconnected {
        id: ReplicaId,
    },
    /// An agent deregistered, or its grace period ended.
    ReplicaLost {
        id: ReplicaId,
    },
    /// A replica is about to terminate: its models are served elsewhere first, then unloaded. The result is reported in
    /// [`Effects::drained`], now or later.
    DrainReplica {
        id: ReplicaId,
    },
    ReplicaReported {
        id: ReplicaId,
        model: Arc<str>,
        version: u32,
        event: ReplicaEvent,
        memory_free: u64,
    },
    /// Every gateway has applied routes up to sequence `applied`, and has no requests in flight on routes removed up to
    /// sequence `drained`, except on those in `undrained`.
    RoutesAcknowledged {
        applied: u64,
        drained: u64,
        undrained: BTreeSet<Removal>,
    },
    /// Every connected gateway has applied routes up to sequence `applied`; `None` when none is connected. Unlike
    /// [`Command::RoutesAcknowledged`], the absence of gateways acknowledges nothing.
    GatewaysAcknowledged {
        applied: Option<u64>,
    },
    /// An external autoscaling trigger changes the number of replicas.
    ScaleModel {
        name: Arc<str>,
        /// Ignored unless it is the latest version.
        version: u32,
        change: i32,
    },
    /// Request load of a model, summed over all gateways.
    DemandReported {
        model: Arc<str>,
        /// Mean requests in flight, times 1,000.
        in_flight_milli: u64,
        answered: u64,
        /// A request is queued for a model that is scaled to zero.
        waiting: bool,
    },
    /// Creates or updates a pipeline.
    LoadPipeline {
        definition: Box<PipelineDefinition>,
        /// The UID of a new version.
        uid: Arc<str>,
        by: Owner,
    },
    /// Deletes a pipeline.
    UnloadPipeline {
        name: Arc<str>,
        by: Owner,
    },
    /// Transfers ownership of a pipeline.
    AdoptPipeline {
        name: Arc<str>,
        by: Owner,
    },
    /// A gateway's report about a pipeline version: why it cannot execute it, or `None` if it can.
    PipelineReported {
        name: Arc<str>,
        uid: Arc<str>,
        failure: Option<String>,
    },
    /// Creates or updates an experiment.
    StartExperiment {
        definition: Box<ExperimentDefinition>,
        by: Owner,
    },
    /// Deletes an experiment.
    StopExperiment {
        name: Arc<str>,
        by: Owner,
    },
    /// Transfers ownership of an experiment.
    AdoptExperiment {
        name: Arc<str>,
        by: Owner,
    },
    /// Creates or updates the route of a service.
    PutService(Box<ServiceRecord>),
    /// Deletes the route of a service, if there is one.
    DeleteService {
        name: Arc<str>,
    },
    /// A gateway's report about requests of a service.
    ServiceDemanded {
        name: Arc<str>,
        /// Whether any wait for a component that is scaled to zero.
        waiting: bool,
        /// Whether there were any since the last report.
        is_active: bool,
    },
    /// Creates or updates a rollout policy.
    PutRolloutPolicy(PolicyRecord),
    /// Deletes a rollout policy, if there is one.
    DeleteRolloutPolicy {
        name: Arc<str>,
    },
    /// Promotes, pauses, aborts, … a rollout.
    SteerRollout {
        target: RolloutTarget,
        steer: Steer,
    },
    /// A gateway's statistics of an object with a rollout policy.
    TrafficObserved {
        target: RolloutTarget,
        traffic: Traffic,
    },
    Tick,
}

/// An agent's report about a model version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaEvent {
    Loaded {
        /// Memory multiplier reported by the runtime (one copy per worker).
        multiplier: Option<u64>,
    },
    LoadFailed {
        reason: String,
    },
    /// The load fails again until the definition, the artifact or the server changes.
    LoadRejected {
        reason: String,
    },
    /// Loading failed for lack of memory.
    LoadFailedMemory {
        reason: String,
    },
    Unloaded,
    UnloadFailed {
        reason: String,
    },
}

/// A model version in the memory of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedVersion {
    pub model: Arc<str>,
    pub version: u32,
    /// Digest of the spec that was loaded: after a loss of the scheduler's state, its number may belong to another one.
    /// `None` when the agent does not report it.
    pub spec: Option<Digest>,
}

/// A load or unload order for an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub replica: ReplicaId,
    pub model: Arc<str>,
    pub version: u32,
    /// The definition to load; `None` to unload.
    pub load: Option<Arc<Definition>>,
    /// Whether the agent may trigger autoscaling for it.
    pub autoscaled: bool,
}

/// Consequences of a command, to be carried out by the caller.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// Models whose stored record is out of date; it must be durable before the command is acknowledged.
    pub store_models: BTreeSet<Arc<str>>,
    /// Servers whose stored record is out of date.
    pub store_servers: BTreeSet<Arc<str>>,
    /// Pipelines whose stored record is out of date.
    pub store_pipelines: BTreeSet<Arc<str>>,
    /// Experiments whose stored record is out of date.
    pub store_experiments: BTreeSet<Arc<str>>,
    /// Services whose stored record is out of date.
    pub store_services: BTreeSet<Arc<str>>,
    /// Rollout policies whose stored record is out of date.
    pub store_rollout_policies: BTreeSet<Arc<str>>,
    /// In the order in which agents must receive them.
    pub orders: Vec<Order>,
    /// Models whose status changed.
    pub models: BTreeSet<Arc<str>>,
    /// Servers whose status changed.
    pub servers: BTreeSet<Arc<str>>,
    /// Pipelines whose status changed.
    pub pipelines: BTreeSet<Arc<str>>,
    /// Experiments whose status changed.
    pub experiments: BTreeSet<Arc<str>>,
    /// Services whose status changed.
    pub services: BTreeSet<Arc<str>>,
    /// Objects whose rollout changed.
    pub rollouts: BTreeSet<RolloutTarget>,
    /// Events of rollouts.
    pub rollout_events: Vec<(RolloutTarget, Event)>,
    /// Models whose route changed.
    pub routes: BTreeSet<Arc<str>>,
    /// Pipelines whose route changed.
    pub pipeline_routes: BTreeSet<Arc<str>>,
    /// Experiments whose route changed.
    pub experiment_routes: BTreeSet<Arc<str>>,
    /// Services whose route changed or ended, with the sequence number: a deleted service leaves no tombstone.
    pub service_routes: BTreeMap<Arc<str>, u64>,
    /// Servers to scale, with the requested number of replicas.
    pub scale_servers: BTreeMap<Arc<str>, u32>,
    /// Results of [`Command::DrainReplica`]: whether every model was moved.
    pub drained: Vec<(ReplicaId, bool)>,
    /// When the next [`Command::Tick`] is due.
    pub wake_at: Option<Millis>,
}

impl Effects {
    /// Adds the effects of a later command.
    pub fn merge(&mut self, later: Self) {
        self.store_models.extend(later.store_models);
        self.store_servers.extend(later.store_servers);
        self.store_pipelines.extend(later.store_pipelines);
        self.store_experiments.extend(later.store_experiments);
        self.store_services.extend(later.store_services);
        self.store_rollout_policies.extend(later.store_rollout_policies);
        self.orders.extend(later.orders);
        self.models.extend(later.models);
        self.servers.extend(later.servers);
        self.pipelines.extend(later.pipelines);
        self.experiments.extend(later.experiments);
        self.services.extend(later.services);
        self.rollouts.extend(later.rollouts);
        self.rollout_events.extend(later.rollout_events);
        self.routes.extend(later.routes);
        self.pipeline_routes.extend(later.pipeline_routes);
        self.experiment_routes.extend(later.experiment_routes);
        self.service_routes.extend(later.service_routes);
        self.scale_servers.extend(later.scale_servers);
        self.drained.extend(later.drained);
        // The later command computed it over all timers.
        self.wake_at = later.wake_at;
    }
}

/// Why a command was rejected. A rejected command changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    UnknownModel(Arc<str>),
    /// The model is being unloaded; its name is free again when that is complete.
    StillTerminating(Arc<str>),
    /// Its owner deleted the model.
    Deleted(Arc<str>),
    UnknownServer(Arc<str>),
    UnknownPipeline(Arc<str>),
    /// A gateway has not acknowledged the deletion of the pipeline.
    PipelineTerminating(Arc<str>),
    UnknownExperiment(Arc<str>),
    /// By `namespace/name`.
    UnknownService(Arc<str>),
    /// No policy selects the object.
    NoRolloutPolicy(RolloutTarget),
    /// The command has no effect.
    RolloutCommand {
        target: RolloutTarget,
        reason: CommandRejection,
    },
    InvalidExperiment(InvalidExperiment),
    /// Another experiment takes over the name of the default.
    BaselineTaken {
        resource: Arc<str>,
        experiment: Arc<str>,
    },
    /// A newer generation of the object was loaded meanwhile.
    NewerGeneration {
        kind: Kind,
        name: Arc<str>,
        known: i64,
        sent: i64,
    },
    /// The object has another owner.
    Owned {
        kind: Kind,
        name: Arc<str>,
        owner: Owner,
        /// `metadata.generation`, for objects of the operator.
        generation: Option<i64>,
        /// Whether the command was a deletion.
        delete: bool,
    },
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownModel(name) => {
                write!(f, "model {name} not found: `gantry get models` lists all")
            }
            Self::UnknownServer(name) => {
                write!(f, "server {name} not found: `gantry get servers` lists all")
            }
            Self::Deleted(name) => write!(f, "model {name} was deleted: apply it again to serve it"),
            Self::StillTerminating(name) => {
                write!(f, "model {name} is still being unloaded: load it again when it is gone")
            }
            Self::UnknownPipeline(name) => {
                write!(f, "pipeline {name} not found: `gantry get pipelines` lists all")
            }
            Self::PipelineTerminating(name) => {
                write!(f, "pipeline {name} still terminating: load it again when it is gone")
            }
            Self::UnknownExperiment(name) => {
                write!(f, "experiment {name} not found: `gantry get experiments` lists all")
            }
            Self::UnknownService(name) => {
                write!(
                    f,
                    "InferenceService {name} not found: `gantry rollout list` lists those with rollouts"
                )
            }
            Self::NoRolloutPolicy(target) => {
                let name = target.name.rsplit_once('/').map_or(&*target.name, |(_, name)| name);
                let kind = target.kind.name();
                let remedy = format!("apply a RolloutPolicy with targetRef {{kind: {kind}, name: {name}}}");
                write!(f, "{target} has no rollout: {remedy}")
            }
            Self::RolloutCommand { target, reason } => write!(f, "the rollout of {target} {reason}"),
            Self::InvalidExperiment(invalid) => invalid.fmt(f),
            Self::BaselineTaken { resource, experiment } => write!(
                f,
                "{resource} is already the default of experiment {experiment}: a model or pipeline can be the default \
                 of one experiment only"
            ),
            Self::NewerGeneration { kind, name, known, sent } => write!(
                f,
                "generation {sent} of {kind} {name} is older than generation {known}, which was loaded meanwhile: load \
                 the current generation"
            ),
            Self::Owned { kind, name, owner, generation, delete } => {
                owned(f, *kind, name, owner, *generation, *delete)
            }
        }
    }
}

fn owned(
    f: &mut fmt::Formatter<'_>,
    kind: Kind,
    name: &str,
    owner: &Owner,
    generation: Option<i64>,
    delete: bool,
) -> fmt::Result {
    let verb = if delete { "delete" } else { "change" };
    match owner {
        Owner::File(path) if delete => write!(f, "{name} belongs to the file {path}: remove it there")?,
        Owner::File(path) => write!(f, "{name} belongs to the file {path}: change it there")?,
        Owner::Cli => write!(f, "{name} belongs to the command line: {verb} it with gantry {}", {
            if delete { format!("delete {kind}/{name}") } else { "apply".to_owned() }
        })?,
        Owner::Operator { namespace } | Owner::SeldonOperator { namespace } => {
            let generation = generation.map(|g| format!(", generation {g}")).unwrap_or_default();
            let (place, flag) = if namespace.is_empty() {
                (String::new(), String::new())
            } else {
                (format!("namespace {namespace}"), format!(" -n {namespace}"))
            };
            let inner = format!("{place}{generation}");
            let inner = inner.trim_start_matches(", ");
            let inner = if inner.is_empty() { String::new() } else { format!(" ({inner})") };
            let with = if delete { "delete" } else { "edit" };
            write!(
                f,
                "{name} belongs to the operator{inner}: {verb} it there, with kubectl {with} {kind} {name}{flag}"
            )?;
        }
        // A gateway acts for the owner and never becomes one.
        Owner::Gateway | Owner::Unnamed => write!(f, "{name} has another owner")?,
        Owner::Other(word) => write!(f, "{name} belongs to {word}: {verb} it there")?,
    }
    write!(f, ".\nTo take it over on purpose: gantry adopt {kind}/{name}")
}

impl std::error::Error for Rejection {}
