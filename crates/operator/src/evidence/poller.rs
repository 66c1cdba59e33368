//! Measures at the interval of each rollout: one measurement in flight per Algorithm, a bounded number in total.

use super::{EvidenceProvider, EvidenceRequest, Figures, Measurement, Observation};
use crate::{
    cluster::{Algorithm, Key},
    context::Context,
    controllers::algorithm::evidence_request,
    workqueue::Priority,
};
use gantry_core::rollout::{Evidence, ObservationId, Window};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

const MAX_IN_FLIGHT: usize = 16;
/// Of all queries of a measurement.
const DEADLINE: Duration = Duration::from_secs(10);

/// Keys of changed Algorithms, each once.
#[derive(Default)]
struct Changes {
    keys: Mutex<BTreeSet<Key>>,
    added: Notify,
}

impl Changes {
    fn add(&self, key: Key) {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        self.added.notify_one();
    }

    fn take(&self) -> BTreeSet<Key> {
        std::mem::take(&mut *self.keys.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Task {
    request: EvidenceRequest,
    due: Instant,
    is_in_flight: bool,
}

impl Task {
    fn new(request: EvidenceRequest) -> Self {
        Self { due: Instant::now() + first_delay(request.interval), request, is_in_flight: false }
    }
}

/// The result has to arrive before the check at the end of the interval.
fn first_delay(interval: Duration) -> Duration {
    interval / 10 * 9
}

/// Runs until `stop`.
pub(crate) async fn run(context: Arc<Context>, provider: Arc<dyn EvidenceProvider>, stop: CancellationToken) {
    let cache = context.caches.of::<Algorithm>();
    let changes: Arc<Changes> = Arc::default();
    let subscriber = Arc::clone(&changes);
    cache.subscribe(move |change| subscriber.add(change.key.clone()));
    cache.all().iter().for_each(|object| changes.add(object.key()));
    // The time distinguishes this collector from the one before a restart.
    let epoch = u64::try_from((context.clock)().as_millisecond()).unwrap_or_default();
    let mut poller = Poller { context, provider, epoch, sequence: 0, tasks: BTreeMap::new() };
    let mut in_flight: JoinSet<(EvidenceRequest, Result<Option<Measurement>, String>)> = JoinSet::new();
    loop {
        poller.start_due(&mut in_flight);
        let due = poller.next_due().filter(|_| in_flight.len() < MAX_IN_FLIGHT);
        let wake = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = changes.added.notified() => changes.take().iter().for_each(|key| poller.update(key)),
            Some(Ok((request, result))) = in_flight.join_next() => poller.finish(request, result),
            () = wake => {}
        }
    }
}

struct Poller {
    context: Arc<Context>,
    provider: Arc<dyn EvidenceProvider>,
    epoch: u64,
    sequence: u64,
    tasks: BTreeMap<Key, Task>,
}

impl Poller {
    /// Follows a change of an Algorithm.
    fn update(&mut self, key: &Key) {
        let object = self.context.caches.of::<Algorithm>().get(key);
        if object.is_none() {
            self.context.caches.evidence.remove(key);
        }
        match (object.and_then(|object| evidence_request(&object)), self.tasks.get_mut(key)) {
            (None, _) => {
                self.tasks.remove(key);
            }
            (Some(request), Some(task)) if task.request == request => {}
            (Some(request), Some(task)) => {
                let is_in_flight = task.is_in_flight;
                *task = Task { is_in_flight, ..Task::new(request) };
            }
            (Some(request), None) => {
                self.tasks.insert(key.clone(), Task::new(request));
            }
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.tasks.values().filter(|task| !task.is_in_flight).map(|task| task.due).min()
    }

    fn start_due(&mut self, in_flight: &mut JoinSet<(EvidenceRequest, Result<Option<Measurement>, String>)>) {
        let now = Instant::now();
        for task in self.tasks.values_mut().filter(|task| !task.is_in_flight && task.due <= now) {
            if in_flight.len() >= MAX_IN_FLIGHT {
                return;
            }
            task.is_in_flight = true;
            // A late measurement does not cause a burst.
            task.due = (task.due + task.request.interval).max(now + task.request.interval / 2);
            let (request, provider) = (task.request.clone(), Arc::clone(&self.provider));
            in_flight.spawn(async move {
                let deadline = DEADLINE.min(request.interval);
                let result = tokio::time::timeout(deadline, provider.measure(&request)).await;
                let late = |_| Err(format!("{} has not answered within {deadline:?}", request.source));
                let result = result.unwrap_or_else(late);
                (request, result)
            });
        }
    }

    fn finish(&mut self, request: EvidenceRequest, result: Result<Option<Measurement>, String>) {
        let Some(task) = self.tasks.get_mut(&request.key) else { return };
        task.is_in_flight = false;
        if task.request != request {
            return;
        }
        self.sequence += 1;
        let id = ObservationId { epoch: self.epoch, sequence: self.sequence };
        let (evidence, figures) = match result {
            Ok(Some(Measurement { stable, candidate, figures })) => {
                let window = Window { id, generation: request.generation, stable, candidate };
                (Evidence::Window(Box::new(window)), figures)
            }
            Ok(None) => (Evidence::NoData { id }, Figures::default()),
            Err(message) => (Evidence::ProviderFailed { id, message }, Figures::default()),
        };
        let (key, at) = (request.key.clone(), (self.context.clock)());
        self.context.caches.evidence.put(Observation { request, at, evidence, figures });
        self.context.queues.of::<Algorithm>().add(key, Priority::Urgent);
    }
}
