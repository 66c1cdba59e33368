//! Who is connected: agents and gateways, and how far each is.

use super::{StreamGuard, Reply, demand::Demand};
use crate::outbox::{Outbox, RouteChanges};
use gantry_core::scheduling::{Order, ReplicaId};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// A gateway that is this late with an acknowledgement is taken for dead. A gateway of an earlier life of the
/// scheduler has this long to come back before anything that it may still route to is unloaded.
const GATEWAY_ACK_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a gateway whose connection ended is believed to serve on with the routes that it had.
const GATEWAY_GRACE: Duration = Duration::from_secs(15);

pub(super) struct Agent {
    pub(super) connection: u64,
    pub(super) outbox: Arc<Outbox<VecDeque<Order>>>,
    pub(super) _guard: StreamGuard,
}

pub(super) struct Gateway {
    connection: u64,
    outbox: Arc<Outbox<RouteChanges>>,
    _guard: StreamGuard,
    applied: u64,
    drained: u64,
    /// The last change that it was told of.
    last_sent: u64,
    /// When it last acknowledged something, or was told of a change after it had acknowledged all others.
    progress: Instant,
}

/// A gateway whose connection ended: requests may still go where its routes say.
struct DisconnectedGateway {
    drained: u64,
    since: Instant,
}

/// Everybody who is connected.
#[derive(Default)]
pub(super) struct Connections {
    pub(super) agents: BTreeMap<ReplicaId, Agent>,
    gateways: BTreeMap<Arc<str>, Gateway>,
    disconnected: BTreeMap<Arc<str>, DisconnectedGateway>,
    /// Gateways of an earlier life that are not back yet, and until when they are waited for.
    awaiting_reconnect: BTreeSet<Arc<str>>,
    reconnect_deadline: Option<Instant>,
    pub(super) demand: Demand,
    /// Who waits for a replica to be drained.
    drains: BTreeMap<ReplicaId, Vec<Reply<bool>>>,
    /// Replicas that were drained: when their connection ends, that is a goodbye.
    leaving: BTreeSet<ReplicaId>,
}

impl Connections {
    /// Nobody is connected yet; gateways of an earlier life may be out there with routes of that life.
    pub(super) fn new(awaiting_reconnect: BTreeSet<Arc<str>>) -> Self {
        let reconnect_deadline = Some(Instant::now() + GATEWAY_ACK_TIMEOUT);
        Self { awaiting_reconnect, reconnect_deadline, ..Self::default() }
    }

    pub(super) fn agent_joined(&mut self, id: ReplicaId, agent: Agent) {
        self.leaving.remove(&id);
        self.agents.insert(id, agent);
    }

    /// Whether the connection was the replica's last one, and whether it had said goodbye.
    pub(super) fn agent_left(&mut self, id: &ReplicaId, connection: u64) -> Option<Disconnect> {
        // A replica that has subscribed again is not lost when its old connection ends.
        if self.agents.get(id).is_none_or(|a| a.connection != connection) {
            return None;
        }
        self.agents.remove(id);
        // Nobody is left to be drained.
        for reply in self.drains.remove(id).into_iter().flatten() {
            let _ = reply.send(Ok(false));
        }
        Some(if self.leaving.remove(id) { Disconnect::Drained } else { Disconnect::ConnectionLost })
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
        guard: StreamGuard,
    ) {
        let progress = Instant::now();
        let gateway = Gateway { connection, outbox, _guard: guard, applied: 0, drained: 0, last_sent: 0, progress };
        self.disconnected.remove(&name);
        self.awaiting_reconnect.remove(&name);
        self.gateways.insert(name, gateway);
    }

    /// Whether a gateway is there, or may be out there with routes that it had.
    pub(super) fn may_route(&self, name: &Arc<str>) -> bool {
        self.gateways.contains_key(name) || self.disconnected.contains_key(name) || self.awaiting_reconnect.contains(name)
    }

    /// Whether a gateway is gone that was there.
    pub(super) fn gateway_left(&mut self, name: &Arc<str>, connection: u64) -> bool {
        let Some(gateway) = self.gateways.get(name).filter(|g| g.connection == connection) else {
            return false;
        };
        let disconnected = DisconnectedGateway { drained: gateway.drained, since: Instant::now() };
        self.disconnected.insert(name.clone(), disconnected);
        self.gateways.remove(name);
        true
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

    /// What every gateway has applied and drained, when the last change has this number. A gateway that is away holds
    /// up nothing but the unloading of what it may still route to.
    pub(super) fn acknowledged_by_all(&self, sequence: u64) -> (u64, u64) {
        let applied = self.gateways.values().map(|g| g.applied).min().unwrap_or(sequence);
        if self.awaits_gateways() {
            return (applied, 0);
        }
        let disconnected = self.disconnected.values().map(|a| a.drained);
        let drained = self.gateways.values().map(|g| g.drained).chain(disconnected).min().unwrap_or(sequence);
        (applied, drained)
    }

    /// Whether gateways may be out there that have not come back since the scheduler started.
    pub(super) fn awaits_gateways(&self) -> bool {
        !self.awaiting_reconnect.is_empty()
    }

    /// Tells every gateway of changes, in the order of their numbers.
    pub(super) fn routes_changed(&mut self, changes: &[(u64, Arc<str>)], limit: usize) {
        for gateway in self.gateways.values_mut() {
            if gateway.applied >= gateway.last_sent {
                gateway.progress = Instant::now();
            }
            gateway.last_sent = changes.last().map_or(gateway.last_sent, |(sequence, _)| *sequence);
            gateway.outbox.extend(changes, limit);
        }
    }

    /// A gateway that does not keep up, or does not come back, must not keep models from being available, or replicas
    /// from being unloaded. Returns the names of those that are not counted on any more.
    pub(super) fn expire_gateways(&mut self, sequence: u64) -> Vec<Arc<str>> {
        let mut gone = Vec::new();
        self.gateways.retain(|name, gateway| {
            let dead = gateway.applied < sequence && gateway.progress.elapsed() > GATEWAY_ACK_TIMEOUT;
            if dead {
                tracing::warn!(gateway = %name, "gateway does not follow the routes and is left behind");
                gone.push(name.clone());
            }
            !dead
        });
        self.disconnected.retain(|name, disconnected| {
            let stays = disconnected.since.elapsed() <= GATEWAY_GRACE;
            if !stays {
                gone.push(name.clone());
            }
            stays
        });
        if self.reconnect_deadline.is_some_and(|until| Instant::now() >= until) {
            self.reconnect_deadline = None;
            gone.extend(std::mem::take(&mut self.awaiting_reconnect));
        }
        gone
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disconnect {
    /// The replica was drained before: it is gone for good.
    Drained,
    /// Nobody said anything: the replica may still serve.
    ConnectionLost,
}
