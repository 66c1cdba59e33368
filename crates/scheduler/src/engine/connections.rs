//! Connected agents and gateways, and the gateways' acknowledged routes.

use super::{Reply, StreamGuard, demand::Demand};
use crate::outbox::{AgentOrder, Outbox, RouteChanges};
use gantry_core::scheduling::ReplicaId;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// A gateway without an acknowledgement for this long is disconnected. After a restart, gateways have this long to
/// reconnect before replicas that they may route to are unloaded.
const GATEWAY_ACK_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a disconnected gateway is assumed to serve with its last routes.
const GATEWAY_GRACE: Duration = Duration::from_secs(15);

pub(super) struct Agent {
    pub(super) connection: u64,
    pub(super) outbox: Arc<Outbox<VecDeque<AgentOrder>>>,
    pub(super) _guard: StreamGuard,
}

pub(super) struct Gateway {
    connection: u64,
    outbox: Arc<Outbox<RouteChanges>>,
    _guard: StreamGuard,
    applied: u64,
    drained: u64,
    /// The last sequence number sent.
    last_sent: u64,
    /// Time of the last acknowledgement, or of the first change sent after it.
    progress: Instant,
}

/// A disconnected gateway: it may still route requests.
struct DisconnectedGateway {
    drained: u64,
    since: Instant,
}

#[derive(Default)]
pub(super) struct Connections {
    pub(super) agents: BTreeMap<ReplicaId, Agent>,
    gateways: BTreeMap<Arc<str>, Gateway>,
    disconnected: BTreeMap<Arc<str>, DisconnectedGateway>,
    /// Gateways from before the restart that have not reconnected, and their deadline.
    awaiting_reconnect: BTreeSet<Arc<str>>,
    reconnect_deadline: Option<Instant>,
    pub(super) demand: Demand,
    /// Pending drain calls.
    drains: BTreeMap<ReplicaId, Vec<Reply<bool>>>,
    /// Drained replicas: the end of their connection is a regular shutdown.
    leaving: BTreeSet<ReplicaId>,
}

impl Connections {
    /// `awaiting_reconnect` are gateways that may still use routes from before the restart.
    pub(super) fn new(awaiting_reconnect: BTreeSet<Arc<str>>) -> Self {
        let reconnect_deadline = Some(Instant::now() + GATEWAY_ACK_TIMEOUT);
        Self { awaiting_reconnect, reconnect_deadline, ..Self::default() }
    }

    pub(super) fn agent_joined(&mut self, id: ReplicaId, agent: Agent) {
        self.leaving.remove(&id);
        self.agents.insert(id, agent);
    }

    /// How the replica disconnected; `None` when it has a newer connection.
    pub(super) fn agent_left(&mut self, id: &ReplicaId, connection: u64) -> Option<Disconnect> {
        if self.agents.get(id).is_none_or(|a| a.connection != connection) {
            return None;
        }
        self.agents.remove(id);
        for reply in self.drains.remove(id).into_iter().flatten() {
            let _ = reply.send(Ok(false));
        }
        Some(if self.leaving.remove(id) { Disconnect::Drained } else { Disconnect::ConnectionLost })
    }

    /// Whether a report belongs to the current subscription of its replica.
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
        let gateway =
            Gateway { connection, outbox, _guard: guard, applied: 0, drained: 0, last_sent: 0, progress };
        self.disconnected.remove(&name);
        self.awaiting_reconnect.remove(&name);
        self.gateways.insert(name, gateway);
    }

    /// Whether a gateway is connected or may still use its last routes.
    pub(super) fn may_route(&self, name: &Arc<str>) -> bool {
        self.gateways.contains_key(name)
            || self.disconnected.contains_key(name)
            || self.awaiting_reconnect.contains(name)
    }

    /// Whether the current connection of the gateway ended.
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

    /// The route sequences applied and drained by every gateway. A disconnected gateway delays only unloads.
    pub(super) fn acknowledged_by_all(&self, sequence: u64) -> (u64, u64) {
        let applied = self.gateways.values().map(|g| g.applied).min().unwrap_or(sequence);
        if self.awaits_gateways() {
            return (applied, 0);
        }
        let disconnected = self.disconnected.values().map(|a| a.drained);
        let drained = self.gateways.values().map(|g| g.drained).chain(disconnected).min().unwrap_or(sequence);
        (applied, drained)
    }

    /// Whether gateways from before the restart may still reconnect.
    pub(super) fn awaits_gateways(&self) -> bool {
        !self.awaiting_reconnect.is_empty()
    }

    /// Sends changes to every gateway, ordered by sequence number.
    pub(super) fn routes_changed(&mut self, changes: &[(u64, Arc<str>)], limit: usize) {
        for gateway in self.gateways.values_mut() {
            if gateway.applied >= gateway.last_sent {
                gateway.progress = Instant::now();
            }
            gateway.last_sent = changes.last().map_or(gateway.last_sent, |(sequence, _)| *sequence);
            gateway.outbox.extend(changes, limit);
        }
    }

    /// Drops gateways that lag behind or stay disconnected, so that they do not block availability and unloads. Returns
    /// their names.
    pub(super) fn expire_gateways(&mut self, sequence: u64) -> Vec<Arc<str>> {
        let mut gone = Vec::new();
        self.gateways.retain(|name, gateway| {
            let dead = gateway.applied < sequence && gateway.progress.elapsed() > GATEWAY_ACK_TIMEOUT;
            if dead {
                tracing::warn!(gateway = %name, "gateway lagging; closing its route stream");
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disconnect {
    /// After a drain: regular shutdown.
    Drained,
    /// The replica may still serve.
    ConnectionLost,
}
