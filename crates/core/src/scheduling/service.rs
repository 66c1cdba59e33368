//! Routes of services whose pods are run by others. Core numbers them for gateways and knows which gateways have them;
//! their content is opaque, except for the versions that a rollout policy delivers.

use super::{
    Millis,
    command::Effects,
    index::Timer,
    pipeline::UNACKNOWLEDGED,
    rollout::{Delivery, ObjectRollout, RolloutRecord, RolloutTarget},
    state::State,
};
use std::{collections::BTreeMap, sync::Arc};

/// Why no service is admitted.
pub const NO_GATEWAY: &str = "no gateway is connected";
/// Several reports of gateways: less would make a service in use idle between two of them.
const MIN_IDLE: Millis = 5_000;

#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct Service {
    /// Encoded by the caller, in one way only.
    pub route: Arc<[u8]>,
    /// A component is scaled to zero: requests for it may wait.
    pub sleeps: bool,
    pub waiting: bool,
    /// Every gateway that was connected has applied the route.
    pub admitted: bool,
    /// Sequence number of its last route change.
    pub route_sequence: u64,
    /// As in its record.
    pub idle_timeout: Option<Millis>,
    /// No request for the time in `idle_timeout`.
    pub idle: bool,
    /// As in its record; `None` without a rollout policy.
    pub delivery: Option<Delivery>,
    pub rollout: Option<Box<ObjectRollout>>,
    /// When gateways last reported a request, in logical time.
    pub(super) active_at: Millis,
    /// Its entry in `Index::timers`.
    pub(super) due: Option<Millis>,
}

/// The durable record of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceRecord {
    /// `namespace/name`.
    pub name: Arc<str>,
    pub route: Arc<[u8]>,
    pub sleeps: bool,
    /// Time without requests until it is idle, 0 for [`super::Policy::idle`]; `None` if it is never idle.
    pub idle_timeout: Option<Millis>,
    /// Part of the route.
    pub delivery: Option<Delivery>,
    /// Of a stored record: a route is put without it.
    pub rollout: Option<RolloutRecord>,
}

impl State {
    /// By `namespace/name`.
    pub const fn services(&self) -> &BTreeMap<Arc<str>, Service> {
        &self.services
    }

    /// Why gateways do not serve a service that is not admitted.
    pub const fn service_obstacle(&self) -> &'static str {
        if self.has_gateway { UNACKNOWLEDGED } else { NO_GATEWAY }
    }

    /// The durable record of a service; `None` removes it.
    pub fn service_record(&self, name: &str) -> Option<ServiceRecord> {
        let (name, service) = self.services.get_key_value(name)?;
        Some(ServiceRecord {
            name: name.clone(),
            route: service.route.clone(),
            sleeps: service.sleeps,
            idle_timeout: service.idle_timeout,
            delivery: service.delivery.clone(),
            rollout: service.rollout.as_ref().map(|rollout| rollout.record()),
        })
    }

    pub(super) fn save_service(&mut self, name: &Arc<str>) {
        if let Some(undo_log) = &mut self.undo_log {
            undo_log.save_service(name, self.services.get(name));
        }
    }

    pub(super) fn put_service(&mut self, record: ServiceRecord, now: Millis, effects: &mut Effects) {
        let before = self.services.get(&record.name);
        if before.is_some_and(|service| service.route == record.route) {
            return;
        }
        let waiting = record.sleeps && before.is_some_and(|service| service.waiting);
        // The time until it is idle starts with its first pod.
        let continues = before.filter(|service| {
            service.idle_timeout == record.idle_timeout && (record.sleeps || !service.sleeps)
        });
        let (active_at, idle, due) = (
            continues.map_or(self.clock.monotonic_now, |service| service.active_at),
            continues.is_some_and(|service| service.idle),
            before.and_then(|service| service.due),
        );
        let rollout = before.and_then(|service| service.rollout.clone());
        self.save_service(&record.name);
        self.sequence += 1;
        let name = record.name.clone();
        let mut service =
            Service { waiting, idle, rollout, active_at, due, ..Service::new(record, self.sequence) };
        service.assign_policy(&RolloutTarget::service(name.clone()), effects);
        self.services.insert(name.clone(), service);
        self.schedule_service(&name);
        self.service_changed(name.clone(), effects);
        // No command, so that nothing is rejected.
        let _ = self.step_service(&name, None, None, now, effects);
    }

    pub(super) fn delete_service(&mut self, name: Arc<str>, effects: &mut Effects) {
        self.save_service(&name);
        if let Some(mut service) = self.services.remove(&name) {
            self.index.set_timer(&mut service.due, None, &Timer::Service(name.clone()));
            self.sequence += 1;
            if service.rollout.is_some() {
                effects.rollouts.insert(RolloutTarget::service(name.clone()));
            }
            self.service_changed(name, effects);
        }
    }

    fn service_changed(&self, name: Arc<str>, effects: &mut Effects) {
        effects.store_services.insert(name.clone());
        effects.service_routes.insert(name.clone(), self.sequence);
        effects.services.insert(name);
    }

    pub(super) fn service_demanded(
        &mut self,
        name: &Arc<str>,
        waiting: bool,
        is_active: bool,
        effects: &mut Effects,
    ) {
        let monotonic_now = self.clock.monotonic_now;
        self.with_service(name, effects, |service| {
            service.waiting = waiting && service.sleeps;
            if is_active {
                (service.active_at, service.idle) = (monotonic_now, false);
            }
        });
        self.schedule_service(name);
    }

    /// The time of a service without requests may be over, or that of a step of its rollout.
    pub(super) fn service_due(&mut self, name: &Arc<str>, now: Millis, effects: &mut Effects) {
        let (monotonic_now, policy_idle) = (self.clock.monotonic_now, self.policy.idle);
        self.with_service(name, effects, |service| {
            service.idle = service.idle_at(policy_idle).is_some_and(|at| at <= monotonic_now);
        });
        let rollout_due = |service: &Service| service.rollout.as_ref().and_then(|rollout| rollout.due);
        if let Some(service) = self.services.get_mut(name) {
            self.index.set_timer(&mut service.due, None, &Timer::Service(name.clone()));
            if rollout_due(service).is_some_and(|due| due <= monotonic_now) {
                let _ = self.step_service(name, None, None, now, effects);
            }
        }
        self.schedule_service(name);
    }

    /// A timer is not moved by each report: when it is due, it is set again.
    pub(super) fn schedule_service(&mut self, name: &Arc<str>) {
        let Some(service) = self.services.get_mut(name) else { return };
        let idle_at = service.idle_at(self.policy.idle).filter(|_| !service.idle);
        let rollout_due = service.rollout.as_ref().and_then(|rollout| rollout.due);
        let due = match (service.due, idle_at.into_iter().chain(rollout_due).min()) {
            (Some(due), Some(at)) => Some(due.min(at)),
            (_, at) => at,
        };
        self.index.set_timer(&mut service.due, due, &Timer::Service(name.clone()));
    }

    /// Every connected gateway has applied routes up to `applied`; `None` without a gateway.
    pub(super) fn gateways_acknowledged(&mut self, applied: Option<u64>, now: Millis, effects: &mut Effects) {
        let obstacle_changed = self.has_gateway != applied.is_some();
        self.has_gateway = applied.is_some();
        let admitted = |service: &Service| match applied {
            Some(applied) => service.admitted || service.route_sequence <= applied,
            None => false,
        };
        let changed = |(name, service): (&Arc<str>, &Service)| {
            (admitted(service) != service.admitted).then(|| name.clone())
        };
        if obstacle_changed {
            let obstructed = self.services.iter().filter(|(_, service)| !service.admitted);
            effects.services.extend(obstructed.map(|(name, _)| name.clone()));
        }
        for name in self.services.iter().filter_map(changed).collect::<Vec<_>>() {
            self.with_service(&name, effects, |service| service.admitted = applied.is_some());
        }
        let Some(applied) = applied else { return };
        let awaits = |service: &Service| service.rollout.as_ref().and_then(|rollout| rollout.awaits());
        let awaiting = |(name, service): (&Arc<str>, &Service)| {
            awaits(service).is_some_and(|sequence| sequence <= applied).then(|| name.clone())
        };
        for name in self.services.iter().filter_map(awaiting).collect::<Vec<_>>() {
            self.save_service(&name);
            let service = self.services.get_mut(&name);
            if let Some(rollout) = service.and_then(|service| service.rollout.as_mut()) {
                rollout.acknowledge(applied);
            }
            let _ = self.step_service(&name, None, None, now, effects);
        }
    }

    fn with_service(&mut self, name: &Arc<str>, effects: &mut Effects, change: impl FnOnce(&mut Service)) {
        let Some(before) = self.services.get(name).cloned() else { return };
        self.save_service(name);
        let Some(service) = self.services.get_mut(name) else { return };
        change(service);
        if (Service { active_at: before.active_at, ..service.clone() }) != before {
            effects.services.insert(name.clone());
        }
    }

    /// Gateways have what was routed, until their first acknowledgement tells otherwise.
    pub(super) fn restore_services(&mut self, services: Vec<ServiceRecord>) {
        self.has_gateway = true;
        for mut record in services {
            self.sequence += 1;
            let name = record.name.clone();
            let active_at = self.clock.monotonic_now;
            let rollout = record.rollout.take().zip(record.delivery.as_ref());
            let rollout = rollout.map(|(RolloutRecord { policy, state }, delivery)| {
                // Its next step is stored, which a restore is not.
                let mut rollout = ObjectRollout::new(policy, delivery.rules.clone(), state);
                rollout.due = Some(active_at);
                rollout.publish(self.sequence);
                Box::new(rollout)
            });
            let service =
                Service { admitted: true, active_at, rollout, ..Service::new(record, self.sequence) };
            self.services.insert(name.clone(), service);
            self.schedule_service(&name);
        }
    }
}

impl Service {
    fn new(record: ServiceRecord, route_sequence: u64) -> Self {
        let ServiceRecord { name: _, route, sleeps, idle_timeout, delivery, rollout: _ } = record;
        Self {
            route,
            sleeps,
            waiting: false,
            admitted: false,
            route_sequence,
            idle_timeout,
            idle: false,
            delivery,
            rollout: None,
            active_at: 0,
            due: None,
        }
    }

    /// When it is idle without another request.
    fn idle_at(&self, policy_idle: Millis) -> Option<Millis> {
        let period = match self.idle_timeout? {
            0 => policy_idle,
            timeout => timeout.max(MIN_IDLE),
        };
        Some(self.active_at.saturating_add(period))
    }
}
