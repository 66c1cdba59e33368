//! Connected agents and gateways, and the gateways' acknowledged routes.

use super::{
    Reply, Start, StreamGuard, Subscription,
    demand::{Demand, ServiceDemand},
};
use crate::outbox::{AgentOrder, Outbox, RouteChange, RouteChanges};
use gantry_core::scheduling::{Removal, ReplicaId};
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
/// Limit on one step of the engine's clock; its loop runs at least every second.
const MAX_CLOCK_STEP: Duration = Duration::from_secs(2);

pub(super) struct Agent {
    pub(super) connection: u64,
    pub(super) outbox: Arc<Outbox<VecDeque<AgentOrder>>>,
    pub(super) _guard: StreamGuard,
}

/// Route changes that a gateway, or every gateway, has acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    pub(crate) applied: u64,
    /// Nothing is in flight on routes removed up to here, except on `undrained`.
    pub(crate) drained: u64,
    pub(crate) undrained: BTreeSet<Removal>,
}

pub(super) struct Gateway {
    connection: u64,
    outbox: Arc<Outbox<RouteChanges>>,
    _guard: StreamGuard,
    acknowledged: Acknowledged,
    /// The last sequence number sent.
    last_sent: u64,
    /// Time of the last acknowledgement, or of the first change sent after it.
    progress: Duration,
    /// Its last traffic report.
    reported: ReportId,
}

/// Identifies a traffic report of a gateway, so that it counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReportId {
    /// Of a start of the gateway; 0 if it is not known.
    pub(super) instance: u64,
    /// Increases within an instance.
    pub(super) sequence: u64,
}

/// A disconnected gateway: it may still route requests.
struct DisconnectedGateway {
    acknowledged: Acknowledged,
    reported: ReportId,
    since: Duration,
}

#[derive(Default)]
pub(super) struct Connections {
    pub(super) agents: BTreeMap<ReplicaId, Agent>,
    gateways: BTreeMap<Arc<str>, Gateway>,
    disconnected: BTreeMap<Arc<str>, DisconnectedGateway>,
    /// Gateways from before the restart without an acknowledgement since then, and their deadline.
    awaiting_reconnect: BTreeSet<Arc<str>>,
    reconnect_deadline: Option<Duration>,
    /// The time that the engine ran. While a write stalls, messages wait in the queue: that time expires no gateway.
    now: Duration,
    clock_read: Option<Instant>,
    pub(super) demand: Demand,
    pub(super) service_demand: ServiceDemand,
    /// Pending drain calls.
    drains: BTreeMap<ReplicaId, Vec<Reply<bool>>>,
    /// Drained replicas: the end of their connection is a regular shutdown.
    leaving: BTreeSet<ReplicaId>,
}

impl Connections {
    /// `awaiting_reconnect` are gateways that may still use routes from before the restart.
    pub(super) fn new(awaiting_reconnect: BTreeSet<Arc<str>>) -> Self {
        Self { awaiting_reconnect, reconnect_deadline: Some(GATEWAY_ACK_TIMEOUT), ..Self::default() }
    }

    /// Advances the engine's clock by a bounded step.
    pub(super) fn advance_clock(&mut self) {
        let now = Instant::now();
        let step = self.clock_read.replace(now).map_or(Duration::ZERO, |last| now - last);
        self.now += step.min(MAX_CLOCK_STEP);
    }

    /// Time since the start, without stalls.
    pub(super) const fn now(&self) -> Duration {
        self.now
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
    pub(super) fn is_current(
        &self,
        id: &ReplicaId,
        start: Start,
        subscription: Option<Subscription>,
    ) -> bool {
        let Some(agent) = self.agents.get(id) else { return false };
        subscription.is_none_or(|s| s == Subscription { start, connection: agent.connection })
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
        let progress = self.now;
        let disconnected = self.disconnected.remove(&name).map(|g| (g.acknowledged, g.reported));
        let previous = self.gateways.remove(&name).map(|g| (g.acknowledged, g.reported)).or(disconnected);
        let (previous, reported) = previous.unwrap_or_default();
        // Until it acknowledges again, its requests may be in flight.
        let acknowledged = Acknowledged { undrained: previous.undrained, ..Acknowledged::default() };
        let last_sent = 0;
        // Sequences without an instance begin again with each connection.
        let reported = if reported.instance == 0 { ReportId::default() } else { reported };
        let gateway =
            Gateway { connection, outbox, _guard: guard, acknowledged, last_sent, progress, reported };
        self.gateways.insert(name, gateway);
    }

    /// Whether a gateway is connected or may still use its last routes.
    pub(super) fn may_route(&self, name: &str) -> bool {
        self.gateways.contains_key(name)
            || self.disconnected.contains_key(name)
            || self.awaiting_reconnect.contains(name)
    }

    /// Whether a traffic report of a connected gateway has not been counted yet.
    pub(super) fn is_new_traffic(&mut self, name: &Arc<str>, report: ReportId) -> bool {
        let Some(gateway) = self.gateways.get_mut(name) else { return false };
        let last = gateway.reported;
        let is_new = report.instance != last.instance || report.sequence > last.sequence;
        if is_new {
            gateway.reported = report;
        }
        is_new
    }

    /// Whether the current connection of the gateway ended.
    pub(super) fn gateway_left(&mut self, name: &Arc<str>, connection: u64) -> bool {
        if self.gateways.get(name).is_none_or(|g| g.connection != connection) {
            return false;
        }
        let Some(Gateway { acknowledged, reported, .. }) = self.gateways.remove(name) else { return false };
        let disconnected = DisconnectedGateway { acknowledged, reported, since: self.now };
        self.disconnected.insert(name.clone(), disconnected);
        true
    }

    pub(super) fn acknowledged(&mut self, name: &Arc<str>, latest: Acknowledged) {
        if let Some(gateway) = self.gateways.get_mut(name) {
            self.awaiting_reconnect.remove(name);
            gateway.acknowledged = Acknowledged {
                applied: gateway.acknowledged.applied.max(latest.applied),
                // Without a list it is the number before the first undrained change: lower than with one.
                ..latest
            };
            gateway.progress = self.now;
        }
    }

    pub(super) fn has_gateway(&self, name: &Arc<str>) -> bool {
        self.gateways.contains_key(name)
    }

    pub(super) fn gateways(&self) -> usize {
        self.gateways.len()
    }

    /// The route changes applied and drained by every gateway. A disconnected gateway delays only unloads.
    pub(super) fn acknowledged_by_all(&self, sequence: u64) -> Acknowledged {
        let connected = self.gateways.values().map(|g| &g.acknowledged);
        let disconnected = self.disconnected.values().map(|g| &g.acknowledged);
        let applied = connected.clone().map(|a| a.applied).min().unwrap_or(sequence);
        let all = connected.chain(disconnected);
        let drained = if self.awaits_gateways() { Some(0) } else { all.clone().map(|a| a.drained).min() };
        let undrained = all.flat_map(|a| &a.undrained).cloned().collect();
        Acknowledged { applied, drained: drained.unwrap_or(sequence), undrained }
    }

    /// The route changes applied by every connected gateway; 0 while the only ones may still reconnect.
    pub(super) fn applied_by_connected(&self) -> Option<u64> {
        let applied = self.gateways.values().map(|g| g.acknowledged.applied).min();
        applied.or_else(|| (self.awaits_gateways() || !self.disconnected.is_empty()).then_some(0))
    }

    /// Whether gateways from before the restart may still acknowledge.
    pub(super) fn awaits_gateways(&self) -> bool {
        !self.awaiting_reconnect.is_empty()
    }

    /// Queues changes for every gateway.
    pub(super) fn routes_changed(&mut self, changes: &[RouteChange], limit: usize) {
        for gateway in self.gateways.values_mut() {
            if gateway.acknowledged.applied >= gateway.last_sent {
                gateway.progress = self.now;
            }
            gateway.last_sent = changes.last().map_or(gateway.last_sent, |(sequence, _)| *sequence);
            gateway.outbox.extend(changes, limit);
        }
    }

    /// Drops gateways that lag behind or stay disconnected, so that they do not block availability and unloads. Returns
    /// their names.
    pub(super) fn expire_gateways(&mut self, sequence: u64) -> Vec<Arc<str>> {
        let (now, mut gone) = (self.now, Vec::new());
        self.gateways.retain(|name, gateway| {
            let dead = gateway.acknowledged.applied < sequence
                && now.saturating_sub(gateway.progress) > GATEWAY_ACK_TIMEOUT;
            if dead {
                tracing::warn!(gateway = %name, "gateway lagging; closing its route stream");
                gone.push(name.clone());
            }
            !dead
        });
        self.disconnected.retain(|name, disconnected| {
            let stays = now.saturating_sub(disconnected.since) <= GATEWAY_GRACE;
            if !stays {
                gone.push(name.clone());
            }
            stays
        });
        if self.reconnect_deadline.is_some_and(|until| now >= until) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_core::scheduling::Kind;
    use tokio_util::sync::CancellationToken;

    #[tokio::test(start_paused = true)]
    async fn time_of_a_stalled_process_expires_no_gateway() {
        let mut connections = Connections::new(BTreeSet::from(["absent".into()]));
        let guard = || CancellationToken::new().drop_guard();
        for name in ["lagging", "gone"] {
            connections.gateway_joined(name.into(), 1, Outbox::new(), guard());
        }
        connections.gateway_left(&"gone".into(), 1);
        connections.advance_clock();
        connections.routes_changed(&[(1, (Kind::Model, "iris".into()))], 10);
        // Its acknowledgement may not even have been read.
        tokio::time::sleep(Duration::from_secs(35)).await;
        connections.advance_clock();
        assert_eq!(connections.expire_gateways(1), Vec::<Arc<str>>::new());
        for _ in 0..35 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            connections.advance_clock();
        }
        assert_eq!(connections.expire_gateways(1), ["lagging", "gone", "absent"].map(Arc::from));
    }

    #[test]
    fn requests_of_a_reconnected_gateway_are_in_flight_until_it_acknowledges() {
        let name: Arc<str> = "g".into();
        let mut connections = Connections::new(BTreeSet::from([name.clone()]));
        let guard = || CancellationToken::new().drop_guard();
        connections.gateway_joined(name.clone(), 1, Outbox::new(), guard());
        assert!(connections.awaits_gateways());
        let replica = ReplicaId { server: "s".into(), index: 0 };
        let undrained = BTreeSet::from([Removal { model: "m".into(), version: 1, replica }]);
        let latest = Acknowledged { applied: 7, drained: 7, undrained: undrained.clone() };
        connections.acknowledged(&name, latest.clone());
        assert!(!connections.awaits_gateways());
        connections.gateway_joined(name.clone(), 2, Outbox::new(), guard());
        assert_eq!(connections.acknowledged_by_all(7).undrained, undrained);
        connections.gateway_left(&name, 2);
        connections.gateway_joined(name.clone(), 3, Outbox::new(), guard());
        assert_eq!(connections.acknowledged_by_all(7).undrained, undrained);
        connections.acknowledged(&name, Acknowledged { undrained: BTreeSet::new(), ..latest });
        assert_eq!(connections.acknowledged_by_all(7).undrained, BTreeSet::new());
    }
}
