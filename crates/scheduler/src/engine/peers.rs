//! Who is connected: agents and gateways, and how far each is.

use super::{Reply, demand::Demand};
use crate::outbox::{Outbox, RouteChanges};
use gantry_core::scheduling::{Order, ReplicaId};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// A gateway that is this late with an acknowledgement is taken for dead.
const GATEWAY_PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Agent {
    pub(super) connection: u64,
    pub(super) outbox: Arc<Outbox<VecDeque<Order>>>,
}

pub(super) struct Gateway {
    connection: u64,
    outbox: Arc<Outbox<RouteChanges>>,
    applied: u64,
    drained: u64,
    progress: Instant,
}

/// Everybody who is connected.
#[derive(Default)]
pub(super) struct Peers {
    pub(super) agents: BTreeMap<ReplicaId, Agent>,
    gateways: BTreeMap<Arc<str>, Gateway>,
    pub(super) demand: Demand,
    /// Who waits for a replica to be drained.
    drains: BTreeMap<ReplicaId, Vec<Reply<bool>>>,
    /// Replicas that were drained: when their connection ends, that is a goodbye.
    leaving: BTreeSet<ReplicaId>,
}

impl Peers {
    pub(super) fn agent_joined(&mut self, id: ReplicaId, agent: Agent) {
        self.leaving.remove(&id);
        self.agents.insert(id, agent);
    }

    /// Whether the connection was the replica's last one, and whether it had said goodbye.
    pub(super) fn agent_left(&mut self, id: &ReplicaId, connection: u64) -> Option<Farewell> {
        // A replica that has subscribed again is not lost when its old connection ends.
        if self.agents.get(id).is_none_or(|a| a.connection != connection) {
            return None;
        }
        self.agents.remove(id);
        // Nobody is left to be drained: whoever waits is told that the scheduler cannot say.
        self.drains.remove(id);
        Some(if self.leaving.remove(id) { Farewell::Goodbye } else { Farewell::Silence })
    }

    /// Whether a report is of the present subscription of its replica.
    pub(super) fn is_current(&self, id: &ReplicaId, epoch: u64, subscription: Option<(u64, u64)>) -> bool {
        let Some(agent) = self.agents.get(id) else { return false };
        subscription.is_none_or(|s| s == (epoch, agent.connection))
    }

    pub(super) fn drain(&mut self, id: ReplicaId, reply: Reply<bool>) {
        self.drains.entry(id).or_default().push(reply);
    }

    pub(super) fn drained(&mut self, id: ReplicaId, all: bool) {
        for reply in self.drains.remove(&id).into_iter().flatten() {
            let _ = reply.send(Ok(all));
        }
        if all {
            self.leaving.insert(id);
        }
    }

    pub(super) fn gateway_joined(
        &mut self,
        name: Arc<str>,
        connection: u64,
        outbox: Arc<Outbox<RouteChanges>>,
    ) {
        let gateway = Gateway { connection, outbox, applied: 0, drained: 0, progress: Instant::now() };
        self.gateways.insert(name, gateway);
    }

    /// Whether a gateway is gone that was there.
    pub(super) fn gateway_left(&mut self, name: &Arc<str>, connection: u64) -> bool {
        let was_there = self.gateways.get(name).is_some_and(|g| g.connection == connection);
        if was_there {
            self.gateways.remove(name);
        }
        was_there
    }

    pub(super) fn acknowledged(&mut self, name: &Arc<str>, applied: u64, drained: u64) {
        if let Some(gateway) = self.gateways.get_mut(name) {
            gateway.applied = gateway.applied.max(applied);
            gateway.drained = gateway.drained.max(drained);
            gateway.progress = Instant::now();
        }
    }

    pub(super) fn has_gateway(&self, name: &Arc<str>) -> bool {
        self.gateways.contains_key(name)
    }

    pub(super) fn gateways(&self) -> usize {
        self.gateways.len()
    }

    /// What every gateway has applied and drained, when the last change has this number.
    pub(super) fn settled(&self, sequence: u64) -> (u64, u64) {
        let applied = self.gateways.values().map(|g| g.applied).min().unwrap_or(sequence);
        let drained = self.gateways.values().map(|g| g.drained).min().unwrap_or(sequence);
        (applied, drained)
    }

    /// Tells every gateway of changes, in the order of their numbers.
    pub(super) fn routes_changed(&self, changes: &[(u64, Arc<str>)], limit: usize) {
        for gateway in self.gateways.values() {
            gateway.outbox.extend(changes, limit);
        }
    }

    /// A gateway that does not keep up must not keep models from being available, or replicas from being unloaded.
    pub(super) fn drop_dead_gateways(&mut self, sequence: u64) {
        self.gateways.retain(|name, gateway| {
            let dead = gateway.applied < sequence && gateway.progress.elapsed() > GATEWAY_PATIENCE;
            if dead {
                tracing::warn!(gateway = %name, "gateway does not follow the routes and is left behind");
            }
            !dead
        });
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    /// The replica was drained before: it is gone for good.
    Goodbye,
    /// Nobody said anything: the replica may still serve.
    Silence,
}
