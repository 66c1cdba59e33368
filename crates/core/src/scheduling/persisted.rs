//! Durable records, and the state restored from them.

use super::{
    Millis, Policy,
    command::Effects,
    index::Index,
    model::{Definition, Demand, Model, NEXT_CHANGE, ReplicaState, ReplicaStatus, Version},
    owner::Owner,
    server::{ExpectedReplicas, Replica, ReplicaId, Server},
    state::State,
};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRecord {
    pub deleted: bool,
    pub owner: Option<Owner>,
    /// Oldest first; the last one is the desired state.
    pub versions: Vec<VersionRecord>,
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

impl State {
    /// The durable record of a model; `None` removes it.
    pub fn model_record(&self, name: &str) -> Option<ModelRecord> {
        let model = self.models.get(name)?;
        let latest = model.latest()?.number;
        let versions = model
            .versions
            .iter()
            .filter(|v| v.number == latest || v.served)
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
        Some(ModelRecord { deleted: model.deleted, owner: model.owner.clone(), versions })
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
    pub fn restore(
        policy: Policy,
        models: impl IntoIterator<Item = ModelRecord>,
        servers: impl IntoIterator<Item = ServerRecord>,
        now: Millis,
    ) -> Self {
        let mut state = Self::new(policy);
        state.clock.advance(now, policy.max_clock_step);
        for ServerRecord { name, expected, shared, namespace, owner, replicas } in servers {
            let replicas =
                replicas.into_iter().map(|(index, replica)| (index, silent(replica, &policy, now)));
            let replicas = replicas.collect();
            let server =
                Server { expected, namespace, shared, owner, since: now, replicas, ..Server::default() };
            state.servers.insert(name, server);
        }
        for ModelRecord { deleted, owner, versions } in models {
            let versions: Vec<Version> = versions.into_iter().map(|v| state.restored(v, now)).collect();
            let Some(name) = versions.last().map(|v| v.definition.name.clone()) else { continue };
            let autoscaled = versions.last().is_some_and(|v| v.autoscaled);
            let mut model = Model { deleted, ..Model::new(versions, owner) };
            model.demand = (autoscaled && !deleted).then(Box::<Demand>::default);
            state.models.insert(name, model);
        }
        state.index = Index::rebuild(&state.models, &state.servers);
        let names: Vec<Arc<str>> = state.models.keys().cloned().collect();
        let mut effects = Effects::default();
        for name in names {
            state.with(&name, now, &mut effects, |ctx, model| ctx.reconcile(model, false));
        }
        state
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
