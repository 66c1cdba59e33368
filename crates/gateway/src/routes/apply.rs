//! Taking over what the scheduler says.

use super::{Cell, Inner, Route, Routes, Target, Version, Weighted};
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

/// What a writer remembers between events.
#[derive(Default)]
pub(super) struct Writer {
    epoch: u64,
    /// Between Reset and Synced: the routes so far. What is routed now stays until then.
    pending: Option<HashMap<String, pb::Route>>,
}

/// The replicas that an event took away from its models; requests may still be in flight there.
#[derive(Default)]
pub struct Removed {
    targets: Vec<Arc<Target>>,
}

impl Removed {
    /// Whether no request is in flight on any of them.
    pub fn is_drained(&self) -> bool {
        self.targets.iter().all(|t| t.is_idle())
    }

    /// Ends when no request is in flight on any of them.
    pub async fn drained(&self) {
        for target in &self.targets {
            target.drained().await;
        }
    }
}

impl Routes {
    /// Takes over one event and says what it took away. Events of an older epoch are ignored.
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
                    if !routes.contains_key(&model) && !gantry_core::mutant::is("keeps_what_is_gone") {
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
        let Some(cell) = self.table.insert(&wanted.model) else {
            return;
        };
        let old = cell.route.load_full();
        let new = self.build(&cell, wanted, old.as_deref());
        let kept: HashSet<*const Target> = new.targets().map(Arc::as_ptr).collect();
        cell.route.store(Some(Arc::new(new)));
        cell.changed.notify_waiters();
        let gone = old.iter().flat_map(|r| r.targets()).filter(|t| !kept.contains(&Arc::as_ptr(t)));
        removed.targets.extend(gone.map(Arc::clone));
    }

    fn delete(&self, model: &str, removed: &mut Removed) {
        let Some(cell) = self.table.remove(model) else {
            return;
        };
        if let Some(old) = cell.route.swap(None) {
            removed.targets.extend(old.targets().map(Arc::clone));
        }
        cell.changed.notify_waiters();
    }

    fn build(&self, cell: &Cell, wanted: &pb::Route, old: Option<&Route>) -> Route {
        let versions = wanted
            .versions
            .iter()
            .filter_map(|v| {
                let version = self.version(&cell.model, v.version)?;
                let targets = v.endpoints.iter().map(|e| self.target(&version, e, old)).collect();
                Some(Weighted { weight: v.weight, version, targets })
            })
            .collect();
        Route { versions, reason: wanted.reason.clone(), sleeps: wanted.sleeps }
    }

    fn version(&self, model: &Arc<str>, number: u32) -> Option<Arc<Version>> {
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (model.to_string(), number);
        if let Some(known) = versions.get(&key).and_then(Weak::upgrade) {
            return Some(known);
        }
        let internal = format!("{model}_{number}");
        // A name that is no header value or path cannot be routed; the scheduler admits none.
        let version = Arc::new(Version {
            model: Arc::clone(model),
            number,
            internal_header: HeaderValue::from_str(&internal).ok()?,
            tag: HeaderValue::from_str(&format!(":{internal}:")).ok()?,
            infer_uri: format!("/v2/models/{internal}/infer").parse::<Uri>().ok()?,
            internal: internal.into(),
            targets: Mutex::default(),
        });
        // Old versions leave an empty entry each: cleared out as the map grows.
        if versions.len().is_power_of_two() {
            versions.retain(|_, v| v.strong_count() > 0);
        }
        versions.insert(key, Arc::downgrade(&version));
        Some(version)
    }

    /// The target for a version on a replica: the one that is routed to now, or a new one.
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
            awaited: AtomicBool::new(false),
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

    /// Whether some replica serves the model.
    pub(super) fn is_served(&self) -> bool {
        self.targets().next().is_some()
    }
}
