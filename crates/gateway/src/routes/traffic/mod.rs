//! Statistics per version of models, pipelines and services with a rollout.
//!
//! A request counts for the generation of the weights that chose its version, also when it ends under newer weights. A worker
//! thread adds to counters of its own, and [`Routes::take_traffic`] collects them.

mod answers;
mod counters;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use answers::AnswerComparison;
pub(crate) use counters::Attribution;
pub(crate) use values::{BodyCopy, ObservedValues};

use super::Routes;
use counters::{Counters, Totals};
use gantry_proto::gantry as pb;
use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};
use tokio::{sync::Notify, time::Instant};

/// Counters of a version; worker threads beyond this number share them.
const SHARDS: usize = 8;
/// Versions of earlier generations that wait for their last requests, or for a report.
const MAX_RETIRED: usize = 256;

/// A kind of objects whose versions are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Counted {
    Model,
    Pipeline,
    /// By `<namespace>/<name>`.
    Service,
}

/// All counters.
#[derive(Default)]
pub(super) struct Traffic {
    state: Mutex<State>,
    /// Notified when counters are created.
    created: Notify,
}

#[derive(Default)]
struct State {
    /// Changes with the state of the scheduler, whose generations begin again then.
    state_id: u64,
    versions: Vec<Arc<VersionCounters>>,
}

/// Counters of a version under one generation of weights.
#[derive(Debug)]
pub(super) struct VersionCounters {
    state_id: u64,
    kind: Counted,
    /// Of the object.
    name: Arc<str>,
    generation: u64,
    version: u32,
    /// If the policy watches a tensor.
    observed: Option<Arc<ObservedValues>>,
    /// Answers to copies of requests that were compared, and those that differ.
    compared: [AtomicU64; 2],
    /// Created by the first request of a thread, since most of ten thousand models get none.
    shards: [OnceLock<Arc<Counters>>; SHARDS],
}

/// The number of this thread's shard.
fn shard() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    SHARD.with(|shard| *shard)
}

impl VersionCounters {
    /// Attributes a request whose version is chosen now.
    pub(super) fn attribute(&self) -> Option<Attribution> {
        let counters = self.shards.get(shard())?.get_or_init(Arc::default);
        let sample = self.observed.as_ref().filter(|observed| observed.is_sampled()).map(Arc::clone);
        Some(Attribution { counters: Arc::clone(counters), since: Instant::now(), sample })
    }

    /// A comparison of this version's answers with those of the version that clients got.
    pub(super) fn compare(self: &Arc<Self>, tolerance_millionths: u32) -> AnswerComparison {
        AnswerComparison::new(Arc::clone(self), tolerance_millionths)
    }

    fn record_comparison(&self, are_equal: bool) {
        let [compared, differing] = &self.compared;
        compared.fetch_add(1, Ordering::Relaxed);
        differing.fetch_add(u64::from(!are_equal), Ordering::Relaxed);
    }

    fn take(&self, total: &mut Totals) {
        self.shards.iter().filter_map(OnceLock::get).for_each(|counters| counters.take(total));
        if let Some(observed) = &self.observed {
            total.values.merge(&observed.take());
        }
        for (total, count) in total.compared.iter_mut().zip(&self.compared) {
            *total = total.saturating_add(count.swap(0, Ordering::Relaxed));
        }
    }

    /// Whether no request can be recorded any more: no route and no request in flight refers to the counters.
    fn is_final(this: &mut Arc<Self>) -> bool {
        let Some(version) = Arc::get_mut(this) else { return false };
        let mut shards = version.shards.iter_mut().filter_map(OnceLock::get_mut);
        shards.all(|counters| Arc::get_mut(counters).is_some())
    }
}

impl Traffic {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Poisoning is harmless: every change is a single insertion or removal.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the figures of another state of the scheduler: its generations are not comparable.
    pub(super) fn set_state(&self, state_id: u64) {
        let mut state = self.lock();
        if state.state_id != state_id {
            *state = State { state_id, ..State::default() };
        }
    }

    /// The counters of a version in a route; `old` has those of the same version before. `None` without a rollout.
    pub(super) fn counters(
        &self,
        (kind, name): (Counted, &Arc<str>),
        generation: u64,
        version: u32,
        observed: Option<&pb::ObservedTensor>,
        old: Option<&Arc<VersionCounters>>,
    ) -> Option<Arc<VersionCounters>> {
        if generation == 0 {
            return None;
        }
        let mut state = self.lock();
        let state_id = state.state_id;
        let is_same = |old: &&Arc<VersionCounters>| {
            let known = old.observed.as_ref().map(|observed| &observed.tensor);
            (old.generation, old.version, old.state_id, known) == (generation, version, state_id, observed)
        };
        if let Some(old) = old.filter(is_same) {
            return Some(Arc::clone(old));
        }
        let new = Arc::new(VersionCounters {
            state_id,
            kind,
            name: Arc::clone(name),
            generation,
            version,
            observed: observed.cloned().map(ObservedValues::new).map(Arc::new),
            compared: Default::default(),
            shards: Default::default(),
        });
        state.versions.push(Arc::clone(&new));
        state.limit_retired();
        drop(state);
        self.created.notify_waiters();
        Some(new)
    }
}

impl State {
    /// Drops the oldest counters without a route.
    fn limit_retired(&mut self) {
        let is_retired = |version: &Arc<VersionCounters>| Arc::strong_count(version) == 1;
        let retired = self.versions.iter().filter(|version| is_retired(version)).count();
        let mut surplus = retired.saturating_sub(MAX_RETIRED);
        if surplus > 0 {
            self.versions.retain(|version| {
                let is_dropped = surplus > 0 && is_retired(version);
                surplus -= usize::from(is_dropped);
                !is_dropped
            });
        }
    }
}

impl Routes {
    /// Statistics of objects with a rollout since the previous call, by name and generation, and the ID of the
    /// scheduler's state that numbered the generations. Versions without requests are omitted.
    pub fn take_traffic(&self) -> (u64, Vec<pb::ModelTraffic>) {
        let mut totals: BTreeMap<VersionKey, Totals> = BTreeMap::new();
        let mut state = self.inner.traffic.lock();
        state.versions.retain_mut(|version| {
            // Before the counts are taken, so that none is recorded between them and the removal.
            let is_final = VersionCounters::is_final(version);
            let mut total = Totals::default();
            version.take(&mut total);
            if !total.is_zero() {
                let key = (version.kind, Arc::clone(&version.name), version.generation, version.version);
                totals.entry(key).or_default().add(&total);
            }
            !is_final
        });
        let state_id = state.state_id;
        drop(state);
        (state_id, grouped(&totals))
    }

    /// The ID of the scheduler's state that numbers the generations.
    pub(crate) fn traffic_state(&self) -> u64 {
        self.inner.traffic.lock().state_id
    }

    /// Resolves when an object has a rollout.
    pub async fn rollout_started(&self) {
        let traffic = &self.inner.traffic;
        loop {
            let mut created = pin!(traffic.created.notified());
            // Registered before reading, so that no creation is missed.
            created.as_mut().enable();
            if !traffic.lock().versions.is_empty() {
                return;
            }
            created.await;
        }
    }
}

/// Name, generation of the weights, and version.
type VersionKey = (Counted, Arc<str>, u64, u32);

/// One entry per object and generation.
fn grouped(totals: &BTreeMap<VersionKey, Totals>) -> Vec<pb::ModelTraffic> {
    let mut objects: Vec<pb::ModelTraffic> = Vec::new();
    for ((kind, name, generation, version), total) in totals {
        let named = |of| if *kind == of { name.to_string() } else { String::new() };
        let object = pb::ModelTraffic {
            model: named(Counted::Model),
            pipeline: named(Counted::Pipeline),
            service: named(Counted::Service),
            generation: *generation,
            versions: Vec::new(),
        };
        let is_same = |last: &pb::ModelTraffic| {
            let key = |of: &pb::ModelTraffic| {
                (of.model.clone(), of.pipeline.clone(), of.service.clone(), of.generation)
            };
            key(last) == key(&object)
        };
        if !objects.last().is_some_and(is_same) {
            objects.push(object);
        }
        if let Some(last) = objects.last_mut() {
            last.versions.push(total.report(*version));
        }
    }
    objects
}
