//! Applies route events of the scheduler.

use super::{Inner, ModelSlot, Route, Routes, Target, Version, WeightedVersion};
use gantry_proto::gantry::{self as pb, route_event::Event};
use http::{HeaderValue, Uri};
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};
use tokio::sync::Notify;

#[derive(Default)]
pub(super) struct Writer {
    epoch: u64,
    /// Routes received since Reset; current routes stay in place until Synced.
    pending: Option<HashMap<String, pb::Route>>,
}

/// Targets removed by an event; requests may still be in flight there.
#[derive(Default)]
pub struct Removed {
    targets: Vec<Arc<Target>>,
}

impl Removed {
    pub fn is_drained(&self) -> bool {
        self.targets.iter().all(|t| t.is_idle())
    }

    /// Resolves when no request is in flight on any of them.
    pub async fn drained(&self) {
        for target in &self.targets {
            target.drained().await;
        }
    }
}

impl Routes {
    /// Applies one event and returns the removed targets. Events of an older epoch are ignored.
    pub fn apply(&self, event: pb::RouteEvent) -> Removed {
        let mut removed = Removed::default();
        let mut writer = self.inner.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if event.epoch < writer.epoch {
            return removed;
        }
        writer.epoch = event.epoch;
        match (event.event, &mut writer.pending) {
            (None, _) => {}
            (Some(Event::Reset(_)), pending) => *pending = Some(HashMap::new()),
            (Some(Event::Upsert(route)), Some(pending)) => {
                pending.insert(route.model.clone(), route);
            }
            (Some(Event::Upsert(route)), None) => self.inner.upsert(&route, &mut removed),
            (Some(Event::Delete(model)), Some(pending)) => {
                pending.remove(&model);
            }
            (Some(Event::Delete(model)), None) => self.inner.delete(&model, &mut removed),
            (Some(Event::Synced(_)), pending) => {
                let routes = pending.take().unwrap_or_default();
                for route in routes.values() {
                    self.inner.upsert(route, &mut removed);
                }
                for model in self.inner.table.names() {
                    if !routes.contains_key(&model) {
                        self.inner.delete(&model, &mut removed);
                    }
                }
                self.inner.synced.store(true, Ordering::Release);
            }
        }
        self.inner.metrics.sweep();
        removed
    }
}

impl Inner {
    fn upsert(&self, wanted: &pb::Route, removed: &mut Removed) {
        let Some(slot) = self.table.insert(&wanted.model) else {
            return;
        };
        let old = slot.route.load_full();
        let new = self.build(&slot, wanted, old.as_deref());
        let kept: HashSet<*const Target> = new.targets().map(Arc::as_ptr).collect();
        slot.route.store(Some(Arc::new(new)));
        slot.changed.notify_waiters();
        let gone = old.iter().flat_map(|r| r.targets()).filter(|t| !kept.contains(&Arc::as_ptr(t)));
        removed.targets.extend(gone.map(Arc::clone));
    }

    fn delete(&self, model: &str, removed: &mut Removed) {
        let Some(slot) = self.table.remove(model) else {
            return;
        };
        if let Some(old) = slot.route.swap(None) {
            removed.targets.extend(old.targets().map(Arc::clone));
        }
        slot.changed.notify_waiters();
    }

    fn build(&self, slot: &ModelSlot, wanted: &pb::Route, old: Option<&Route>) -> Route {
        let versions = wanted
            .versions
            .iter()
            .filter_map(|v| {
                let version = self.version(&slot.model, v.version)?;
                let targets = v.endpoints.iter().map(|e| self.target(&version, e, old)).collect();
                Some(WeightedVersion { weight: v.weight, version, targets })
            })
            .collect();
        Route { versions, reason: wanted.reason.clone(), scaled_to_zero: wanted.sleeps }
    }

    fn version(&self, model: &Arc<str>, number: u32) -> Option<Arc<Version>> {
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (model.to_string(), number);
        if let Some(known) = versions.get(&key).and_then(Weak::upgrade) {
            return Some(known);
        }
        let internal = format!("{model}_{number}");
        // The scheduler only admits names that are valid header values and path segments.
        let version = Arc::new(Version {
            model: Arc::clone(model),
            number,
            internal_header: HeaderValue::from_str(&internal).ok()?,
            route_header: HeaderValue::from_str(&format!(":{internal}:")).ok()?,
            infer_uri: format!("/v2/models/{internal}/infer").parse::<Uri>().ok()?,
            internal: internal.into(),
            targets: Mutex::default(),
        });
        // Amortized cleanup of dead entries.
        if versions.len().is_power_of_two() {
            versions.retain(|_, v| v.strong_count() > 0);
        }
        versions.insert(key, Arc::downgrade(&version));
        Some(version)
    }

    /// Reuses the current target of this version and replica, if any.
    fn target(&self, version: &Arc<Version>, wanted: &pb::Endpoint, old: Option<&Route>) -> Arc<Target> {
        let endpoint = self.registry.endpoint(wanted, &self.metrics);
        let current = old
            .into_iter()
            .flat_map(Route::targets)
            .find(|t| t.version.number == version.number && t.endpoint.id == endpoint.id);
        if let Some(current) = current {
            return Arc::clone(current);
        }
        let target = Arc::new(Target {
            metrics: self.metrics.version(),
            version: Arc::clone(version),
            endpoint,
            in_flight: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            busy_micros: AtomicU64::new(0),
            has_waiters: AtomicBool::new(false),
            idle: Notify::new(),
        });
        let mut targets = version.targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.retain(|t| t.strong_count() > 0);
        targets.push(Arc::downgrade(&target));
        target
    }
}

impl Route {
    pub(super) fn targets(&self) -> impl Iterator<Item = &Arc<Target>> {
        self.versions.iter().flat_map(|v| &v.targets)
    }

    pub(super) fn is_served(&self) -> bool {
        self.targets().next().is_some()
    }
}
