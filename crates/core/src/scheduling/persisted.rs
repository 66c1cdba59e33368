//! Durable records, and the state restored from them.

use super::{
    Millis, Policy,
    command::Effects,
    dependants::Dependants,
    experiment::{Experiment, ExperimentDefinition},
    model::{Definition, Demand, Model, NEXT_CHANGE, ReplicaState, ReplicaStatus, Version},
    owner::Owner,
    pipeline::{Pipeline, PipelineDefinition, PipelineVersion},
    rollout::{PolicyRecord, RolloutRecord},
    server::{ExpectedReplicas, Replica, ReplicaId, Server},
    service::ServiceRecord,
    state::State,
};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
pub struct ModelRecord {
    pub deleted: bool,
    pub unloaded: bool,
    pub owner: Option<Owner>,
    /// Oldest first; the last one is the desired state.
    pub versions: Vec<VersionRecord>,
    pub rollout: Option<RolloutRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionRecord {
    pub number: u32,
    pub definition: Arc<Definition>,
    pub served: bool,
    /// Replicas set by autoscaling, when different from the definition.
    pub scaled: Option<u32>,
    /// The server with routed replicas.
    pub server: Option<Arc<str>>,
    /// Routed replicas on that server.
    pub replicas: Vec<u32>,
    /// Routed replicas on servers that the version was leaving.
    pub leaving: Vec<ReplicaId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRecord {
    pub name: Arc<str>,
    /// `None` when replicas joined without a server notification.
    pub expected: Option<ExpectedReplicas>,
    pub shared: bool,
    pub namespace: Option<String>,
    pub owner: Option<Owner>,
    pub replicas: Vec<(u32, Replica)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PipelineRecord {
    pub deleted: bool,
    pub owner: Option<Owner>,
    /// Oldest first; the last one is the desired state.
    pub versions: Vec<PipelineVersionRecord>,
    pub rollout: Option<RolloutRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineVersionRecord {
    pub number: u32,
    pub uid: Arc<str>,
    pub definition: Arc<PipelineDefinition>,
    pub was_ready: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExperimentRecord {
    pub deleted: bool,
    pub owner: Option<Owner>,
    pub definition: Arc<ExperimentDefinition>,
}

/// All durable records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    pub models: Vec<ModelRecord>,
    pub servers: Vec<ServerRecord>,
    pub pipelines: Vec<PipelineRecord>,
    pub experiments: Vec<ExperimentRecord>,
    pub services: Vec<ServiceRecord>,
    pub rollout_policies: Vec<PolicyRecord>,
}

impl State {
    /// The durable record of a pipeline; `None` removes it.
    pub fn pipeline_record(&self, name: &str) -> Option<PipelineRecord> {
        let Pipeline { deleted, owner, versions, rollout, .. } = self.pipelines.get(name)?;
        let versions = versions.iter().map(|v| PipelineVersionRecord {
            number: v.number,
            uid: v.uid.clone(),
            definition: v.definition.clone(),
            was_ready: v.was_ready,
        });
        let rollout = rollout.as_ref().map(|rollout| rollout.record());
        Some(PipelineRecord {
            deleted: *deleted,
            owner: owner.clone(),
            versions: versions.collect(),
            rollout,
        })
    }

    /// The durable record of an experiment; `None` removes it.
    pub fn experiment_record(&self, name: &str) -> Option<ExperimentRecord> {
        let Experiment { deleted, owner, definition, .. } = self.experiments.get(name)?;
        Some(ExperimentRecord { deleted: *deleted, owner: owner.clone(), definition: definition.clone() })
    }

    /// All durable records.
    pub fn records(&self) -> Records {
        Records {
            models: self.models.keys().filter_map(|name| self.model_record(name)).collect(),
            servers: self.servers.keys().filter_map(|name| self.server_record(name)).collect(),
            pipelines: self.pipelines.keys().filter_map(|name| self.pipeline_record(name)).collect(),
            experiments: self.experiments.keys().filter_map(|name| self.experiment_record(name)).collect(),
            services: self.services.keys().filter_map(|name| self.service_record(name)).collect(),
            rollout_policies: self.rollout_policies.values().cloned().collect(),
        }
    }

    /// The durable record of a model; `None` removes it.
    pub fn model_record(&self, name: &str) -> Option<ModelRecord> {
        let model = self.models.get(name)?;
        let latest = model.latest()?.number;
        let versions = model
            .versions
            .iter()
            .filter(|v| {
                let named = || model.rollout.as_ref().is_some_and(|rollout| rollout.names(v));
                v.number == latest || v.served || named()
            })
            .map(|v| VersionRecord {
                number: v.number,
                definition: v.definition.clone(),
                served: v.served,
                scaled: v.scaled,
                server: v.server.clone().filter(|_| v.replicas.values().any(|r| r.state.is_routed())),
                replicas: v.replicas.iter().filter(|(_, r)| r.state.is_routed()).map(|(&i, _)| i).collect(),
                leaving: v
                    .leaving
                    .iter()
                    .filter(|(_, r)| r.state.is_routed())
                    .map(|(id, _)| id.clone())
                    .collect(),
            })
            .collect();
        let Model { deleted, unloaded, ref owner, .. } = *model;
        let rollout = model.rollout.as_ref().map(|rollout| rollout.record());
        Some(ModelRecord { deleted, unloaded, owner: owner.clone(), versions, rollout })
    }

    /// The durable record of a server; `None` removes it.
    pub fn server_record(&self, name: &str) -> Option<ServerRecord> {
        let (name, server) = self.servers.get_key_value(name)?;
        if server.expected.is_none() && server.replicas.is_empty() {
            return None;
        }
        Some(ServerRecord {
            name: name.clone(),
            expected: server.expected,
            shared: server.shared,
            namespace: server.namespace.clone(),
            owner: server.owner.clone(),
            replicas: server.replicas.iter().map(|(&index, r)| (index, r.clone())).collect(),
        })
    }

    /// The state after a restart. Replicas are disconnected until their agents join or the grace period ends; until then
    /// routes contain the replicas that were loaded.
    pub fn restore(policy: Policy, records: Records, now: Millis) -> Self {
        let Records { models, servers, pipelines, experiments, services, rollout_policies } = records;
        let mut state = Self::new(policy);
        state.rollout_policies = rollout_policies.into_iter().map(|p| (p.name.clone(), p)).collect();
        state.clock.advance(now, policy.max_clock_step);
        for ServerRecord { name, expected, shared, namespace, owner, replicas } in servers {
            let replicas =
                replicas.into_iter().map(|(index, replica)| (index, silent(replica, &policy, now)));
            let replicas = replicas.collect();
            let server =
                Server { expected, namespace, shared, owner, since: now, replicas, ..Server::default() };
            state.servers.insert(name, server);
        }
        for ModelRecord { deleted, unloaded, owner, versions, rollout } in models {
            let versions: Vec<Version> = versions.into_iter().map(|v| state.restored(v, now)).collect();
            let Some(name) = versions.last().map(|v| v.definition.name.clone()) else { continue };
            let autoscaled = versions.last().is_some_and(|v| v.autoscaled);
            let mut model = Model { deleted, unloaded, ..Model::new(versions, owner) };
            model.demand = (autoscaled && !deleted).then(Box::<Demand>::default);
            model.rollout = state.restored_rollout(rollout);
            state.models.insert(name, model);
        }
        state.index = state.rebuilt_index();
        let names: Vec<Arc<str>> = state.models.keys().cloned().collect();
        let mut effects = Effects::default();
        for name in names {
            state.with(&name, now, &mut effects, |ctx, model| ctx.reconcile(model, false));
        }
        state.restore_dependants(pipelines, experiments, now);
        state.restore_services(services);
        state
    }

    /// Gateways have executed what was routed, and receive the routes when they reconnect: nothing waits for them.
    fn restore_dependants(
        &mut self,
        pipelines: Vec<PipelineRecord>,
        experiments: Vec<ExperimentRecord>,
        now: Millis,
    ) {
        for PipelineRecord { deleted, owner, versions, rollout } in pipelines {
            let restored = |v: PipelineVersionRecord| PipelineVersion {
                was_ready: v.was_ready,
                ..PipelineVersion::new(v.number, v.uid, v.definition, now)
            };
            let versions: Vec<_> = versions.into_iter().map(restored).collect();
            let Some(name) = versions.last().map(|v| v.definition.name.clone()) else { continue };
            let rollout = self.restored_rollout(rollout);
            self.pipelines.insert(name, Pipeline { rollout, deleted, ..Pipeline::new(versions, owner) });
        }
        for ExperimentRecord { deleted, owner, definition } in experiments {
            let name = definition.name.clone();
            self.experiments.insert(name, Experiment { deleted, ..Experiment::new(definition, owner, now) });
        }
        self.dependants = Dependants::rebuild(&self.pipelines, &self.experiments);
        let effects = &mut Effects::default();
        for name in self.pipelines.keys().cloned().collect::<Vec<_>>() {
            self.with_pipeline(&name, now, effects, |_| ());
            self.with_pipeline(&name, now, effects, |pipeline| pipeline.acknowledge(u64::MAX));
        }
        for name in self.experiments.keys().cloned().collect::<Vec<_>>() {
            self.with_experiment(&name, now, effects, |_| ());
            self.with_experiment(&name, now, effects, |experiment| experiment.acknowledge(u64::MAX));
        }
    }

    fn restored(&self, record: VersionRecord, now: Millis) -> Version {
        let scaling = record.definition.scaling;
        let mut version = Version::new(record.number, record.definition, now);
        version.autoscaled = self.policy.model_autoscaling && (scaling.min > 0 || scaling.max > 0);
        version.scaled = record.scaled.filter(|_| version.autoscaled);
        version.served = record.served;
        version.ever_routed = true;
        let known = |server: &str, index: u32| {
            self.servers.get(server).is_some_and(|s| s.replicas.contains_key(&index))
        };
        let status = |state, awaits| ReplicaStatus {
            state,
            reason: String::new(),
            since: now,
            awaits,
            reserved: 0,
            no_memory: false,
            rejected: false,
        };
        if let Some(server) = record.server {
            for index in record.replicas.into_iter().filter(|&i| known(&server, i)) {
                version.server = Some(server.clone());
                version.replicas.insert(index, status(ReplicaState::LoadedUnavailable, NEXT_CHANGE));
            }
        }
        for id in record.leaving.into_iter().filter(|id| known(&id.server, id.index)) {
            version.leaving.insert(id, status(ReplicaState::Draining, 0));
        }
        version
    }
}

fn silent(replica: Replica, policy: &Policy, now: Millis) -> Replica {
    Replica {
        disconnected_since: Some(now),
        draining: false,
        drain_pending: false,
        packed: false,
        due: Some(policy.grace),
        ..replica
    }
}
