//! What has to last over a restart.

use super::{
    Millis, Policy,
    command::Effects,
    index::Index,
    manager::Manager,
    model::{Definition, Demand, Model, NEXT_CHANGE, ReplicaState, ReplicaStatus, Version},
    server::{Expectation, Replica, ReplicaId, Server},
    state::State,
};
use std::sync::Arc;

/// What has to last of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRecord {
    /// Whether it was deleted.
    pub deleted: bool,
    /// Who manages it.
    pub manager: Option<Manager>,
    /// Its versions, oldest first; the last one is what was asked for last.
    pub versions: Vec<VersionRecord>,
}

/// What has to last of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionRecord {
    /// Its number.
    pub number: u32,
    /// What was asked.
    pub definition: Arc<Definition>,
    /// Whether it ever served.
    pub served: bool,
    /// How many replicas its demand called for, when that is not what was asked.
    pub scaled: Option<u32>,
    /// The server that it was placed on, when it was routed to any of its replicas.
    pub server: Option<Arc<str>>,
    /// The replicas of that server that it was routed to.
    pub replicas: Vec<u32>,
    /// The replicas of servers that it was leaving that it was routed to.
    pub leaving: Vec<ReplicaId>,
}

/// What has to last of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRecord {
    /// Its name.
    pub name: Arc<str>,
    /// What was announced; `None` when its replicas joined unannounced.
    pub expected: Option<Expectation>,
    /// Whether models that do not name it may be placed on it.
    pub shared: bool,
    /// Its Kubernetes namespace.
    pub namespace: Option<String>,
    /// Who manages it.
    pub manager: Option<Manager>,
    /// Its replicas as they were last known, with their endpoints.
    pub replicas: Vec<(u32, Replica)>,
}

impl State {
    /// What has to last of a model; `None` when nothing has.
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
        Some(ModelRecord { deleted: model.deleted, manager: model.manager.clone(), versions })
    }

    /// What has to last of a server; `None` when nothing has.
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
            manager: server.manager.clone(),
            replicas: server.replicas.iter().map(|(&index, r)| (index, r.clone())).collect(),
        })
    }

    /// The state after a restart: what was stored. Replicas are silent until their agents join, or their grace ends;
    /// until then requests are routed to what was loaded on them.
    pub fn restore(
        policy: Policy,
        models: impl IntoIterator<Item = ModelRecord>,
        servers: impl IntoIterator<Item = ServerRecord>,
        now: Millis,
    ) -> Self {
        let mut state = Self::new(policy);
        state.clock.advance(now, policy.longest_step);
        for ServerRecord { name, expected, shared, namespace, manager, replicas } in servers {
            let replicas =
                replicas.into_iter().map(|(index, replica)| (index, silent(replica, &policy, now)));
            let replicas = replicas.collect();
            let server =
                Server { expected, namespace, shared, manager, since: now, replicas, ..Server::default() };
            state.servers.insert(name, server);
        }
        for ModelRecord { deleted, manager, versions } in models {
            let versions: Vec<Version> = versions.into_iter().map(|v| state.restored(v, now)).collect();
            let Some(name) = versions.last().map(|v| v.definition.name.clone()) else { continue };
            let autoscaled = versions.last().is_some_and(|v| v.autoscaled);
            let mut model = Model { deleted, ..Model::new(versions, manager) };
            model.demand = (autoscaled && !deleted).then(Box::<Demand>::default);
            state.models.insert(name, model);
        }
        state.index = Index::rebuild(&state.models, &state.servers);
        let names: Vec<Arc<str>> = state.models.keys().cloned().collect();
        let mut effects = Effects::default();
        for name in names {
            state.with(&name, now, &mut effects, |desk, model| desk.settle(model, false));
        }
        state
    }

    fn restored(&self, record: VersionRecord, now: Millis) -> Version {
        let scaling = record.definition.scaling;
        let mut version = Version::new(record.number, record.definition, now);
        version.autoscaled = self.policy.model_autoscaling && (scaling.min > 0 || scaling.max > 0);
        version.scaled = record.scaled.filter(|_| version.autoscaled);
        version.served = record.served;
        version.was_routed = true;
        let known = |server: &str, index: u32| {
            self.servers.get(server).is_some_and(|s| s.replicas.contains_key(&index))
        };
        let status = |state, awaits| ReplicaStatus {
            state,
            reason: String::new(),
            since: now,
            awaits,
            promised: 0,
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

/// A replica that was there before the restart.
fn silent(replica: Replica, policy: &Policy, now: Millis) -> Replica {
    Replica {
        silent_since: Some(now),
        draining: false,
        owes_answer: false,
        packed: false,
        due: Some(policy.grace),
        ..replica
    }
}
