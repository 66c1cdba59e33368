//! Routes of services whose pods are run by others. Core numbers them for gateways and knows which gateways have them;
//! their content is opaque.

use super::{Millis, command::Effects, index::Timer, pipeline::UNACKNOWLEDGED, state::State};
use std::{collections::BTreeMap, sync::Arc};

/// Why no service is admitted.
pub const NO_GATEWAY: &str = "no gateway is connected";
/// Several reports of gateways: less would make a service in use idle between two of them.
const MIN_IDLE: Millis = 5_000;

#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// When gateways last reported a request, in logical time.
    pub(super) active_at: Millis,
    /// Its entry in `Index::timers`.
    pub(super) due: Option<Millis>,
}

/// The durable record of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRecord {
    /// `namespace/name`.
    pub name: Arc<str>,
    pub route: Arc<[u8]>,
    pub sleeps: bool,
    /// Time without requests until it is idle, 0 for [`super::Policy::idle`]; `None` if it is never idle.
    pub idle_timeout: Option<Millis>,
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
        let (name, Service { route, sleeps, idle_timeout, .. }) = self.services.get_key_value(name)?;
        let (route, sleeps, idle_timeout) = (route.clone(), *sleeps, *idle_timeout);
        Some(ServiceRecord { name: name.clone(), route, sleeps, idle_timeout })
    }

    fn save_service(&mut self, name: &Arc<str>) {
        if let Some(undo_log) = &mut self.undo_log {
            undo_log.save_service(name, self.services.get(name));
        }
    }

    pub(super) fn put_service(&mut self, record: ServiceRecord, effects: &mut Effects) {
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
        self.save_service(&record.name);
        self.sequence += 1;
        let name = record.name.clone();
        let service = Service { waiting, idle, active_at, due, ..Service::new(record, self.sequence) };
        self.services.insert(name.clone(), service);
        self.schedule_idle(&name);
        self.service_changed(name, effects);
    }

    pub(super) fn delete_service(&mut self, name: Arc<str>, effects: &mut Effects) {
        self.save_service(&name);
        if let Some(mut service) = self.services.remove(&name) {
            self.index.set_timer(&mut service.due, None, &Timer::Service(name.clone()));
            self.sequence += 1;
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
        self.schedule_idle(name);
    }

    /// The time of a service without requests may be over.
    pub(super) fn service_due(&mut self, name: &Arc<str>, effects: &mut Effects) {
        let (monotonic_now, policy_idle) = (self.clock.monotonic_now, self.policy.idle);
        self.with_service(name, effects, |service| {
            service.idle = service.idle_at(policy_idle).is_some_and(|at| at <= monotonic_now);
        });
        if let Some(service) = self.services.get_mut(name) {
            self.index.set_timer(&mut service.due, None, &Timer::Service(name.clone()));
        }
        self.schedule_idle(name);
    }

    /// A timer is not moved by each report: when it is due, it is set again.
    fn schedule_idle(&mut self, name: &Arc<str>) {
        let Some(service) = self.services.get_mut(name) else { return };
        let idle_at = service.idle_at(self.policy.idle).filter(|_| !service.idle);
        let due = match (service.due, idle_at) {
            (Some(due), Some(at)) => Some(due.min(at)),
            (_, at) => at,
        };
        self.index.set_timer(&mut service.due, due, &Timer::Service(name.clone()));
    }

    /// Every connected gateway has applied routes up to `applied`; `None` without a gateway.
    pub(super) fn gateways_acknowledged(&mut self, applied: Option<u64>, effects: &mut Effects) {
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
        for record in services {
            self.sequence += 1;
            let name = record.name.clone();
            let active_at = self.clock.monotonic_now;
            let service = Service { admitted: true, active_at, ..Service::new(record, self.sequence) };
            self.services.insert(name.clone(), service);
            self.schedule_idle(&name);
        }
    }
}

impl Service {
    fn new(record: ServiceRecord, route_sequence: u64) -> Self {
        let ServiceRecord { name: _, route, sleeps, idle_timeout } = record;
        Self {
            route,
            sleeps,
            waiting: false,
            admitted: false,
            route_sequence,
            idle_timeout,
            idle: false,
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
