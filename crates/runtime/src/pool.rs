//! The inference threads, and a queue for each model.
//!
//! No model waits for another: its first job starts at once, on a new thread if need be. Further jobs of a model start
//! while cores are free, and leave one core to the others as long as these are in use. Of the jobs that may start, those
//! of the model with the least time used go first.

use crate::InferenceError;
use gantry_tensor::CancelToken;
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// Models that may compute at the same time, per core; the operating system divides the cores among them.
const MODELS_PER_CORE: usize = 4;
/// Threads that may wait for worker processes.
const MAX_BLOCKED: usize = 64;
/// A model counts as in use for so long after a request.
const IN_USE: Duration = Duration::from_secs(1);
/// After so long without a job, threads beyond the number of cores end.
const MAX_IDLE: Duration = Duration::from_secs(10);
/// Limit of all queues together, in limits of one queue.
const QUEUES: usize = 4;

type Work = Box<dyn FnOnce(&CancelToken) + Send>;

struct Job {
    id: u64,
    cancel: CancelToken,
    work: Work,
}

/// Identifies the jobs of one model.
pub(crate) struct Queue {
    id: u64,
    blocks: bool,
    closed: CancelToken,
}

impl Queue {
    /// `blocks`: the jobs wait for another process.
    pub(crate) fn new(blocks: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, Relaxed), blocks, closed: CancelToken::default() }
    }

    /// Cancelled when the queue is closed.
    pub(crate) const fn closed(&self) -> &CancelToken {
        &self.closed
    }
}

/// Jobs of a queue that has any.
struct Jobs {
    waiting: VecDeque<Job>,
    running: Vec<(u64, CancelToken)>,
    blocks: bool,
    /// Nanoseconds of its jobs, on the clock of [`State::used`].
    used: u64,
}

struct State {
    cores: usize,
    queues: HashMap<u64, Jobs>,
    /// Queues with waiting jobs, the least used first.
    ready: BTreeSet<(u64, u64)>,
    waiting: usize,
    computing: usize,
    blocked: usize,
    /// `used` of the last queue chosen; queues without history start there.
    used: u64,
    jobs: u64,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl State {
    fn new(cores: usize) -> Self {
        Self {
            cores,
            queues: HashMap::new(),
            ready: BTreeSet::new(),
            waiting: 0,
            computing: 0,
            blocked: 0,
            used: 0,
            jobs: 0,
            threads: 0,
            idle: 0,
            closed: false,
        }
    }

    fn push(&mut self, queue: &Queue, cancel: CancelToken, work: Work) -> u64 {
        self.jobs += 1;
        let id = self.jobs;
        let used = self.used;
        let jobs = self.queues.entry(queue.id).or_insert_with(|| Jobs {
            waiting: VecDeque::new(),
            running: Vec::new(),
            blocks: queue.blocks,
            used,
        });
        jobs.waiting.push_back(Job { id, cancel, work });
        self.ready.insert((jobs.used, queue.id));
        self.waiting += 1;
        id
    }

    /// `crowded`: other models are in use, even if they have no jobs.
    fn may_start(&self, jobs: &Jobs, crowded: bool) -> bool {
        let alone = self.queues.len() == 1 && !crowded;
        let share = if alone { self.cores } else { (self.cores - 1).max(1) };
        let (busy, most) = if jobs.blocks {
            (self.blocked, MAX_BLOCKED)
        } else if jobs.running.is_empty() {
            (self.computing, self.cores * MODELS_PER_CORE)
        } else {
            (self.computing, self.cores)
        };
        busy < most && jobs.running.len() < share
    }

    fn startable(&self, crowded: bool) -> Option<u64> {
        let may_start = |id: &u64| self.queues.get(id).is_some_and(|jobs| self.may_start(jobs, crowded));
        self.ready.iter().map(|(_, id)| *id).find(may_start)
    }

    fn start(&mut self, crowded: bool) -> Option<(u64, Job)> {
        let queue = self.startable(crowded)?;
        let jobs = self.queues.get_mut(&queue)?;
        let job = jobs.waiting.pop_front()?;
        if jobs.waiting.is_empty() {
            self.ready.remove(&(jobs.used, queue));
        }
        jobs.running.push((job.id, job.cancel.clone()));
        *(if jobs.blocks { &mut self.blocked } else { &mut self.computing }) += 1;
        self.used = self.used.max(jobs.used);
        self.waiting -= 1;
        Some((queue, job))
    }

    fn finish(&mut self, queue: u64, job: u64, took: Duration) {
        let Some(jobs) = self.queues.get_mut(&queue) else { return };
        *(if jobs.blocks { &mut self.blocked } else { &mut self.computing }) -= 1;
        jobs.running.retain(|(id, _)| *id != job);
        let waits = self.ready.remove(&(jobs.used, queue));
        jobs.used = jobs.used.saturating_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        if waits {
            self.ready.insert((jobs.used, queue));
        }
        self.remove_empty(queue);
    }

    /// Takes waiting jobs out; all of them without a number.
    fn remove(&mut self, queue: u64, job: Option<u64>) -> Vec<Job> {
        let Some(jobs) = self.queues.get_mut(&queue) else { return Vec::new() };
        let (removed, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut jobs.waiting).into_iter().partition(|j| job.is_none_or(|id| id == j.id));
        jobs.waiting = kept.into();
        if jobs.waiting.is_empty() {
            self.ready.remove(&(jobs.used, queue));
        }
        self.waiting -= removed.len();
        self.remove_empty(queue);
        removed
    }

    fn remove_empty(&mut self, queue: u64) {
        if self.queues.get(&queue).is_some_and(|jobs| jobs.waiting.is_empty() && jobs.running.is_empty()) {
            self.queues.remove(&queue);
        }
    }
}

struct Shared {
    state: Mutex<State>,
    filled: Condvar,
    /// Limit of a queue.
    longest: usize,
    cores: usize,
    since: Instant,
    in_use: Duration,
    /// The queue that uses its share of the cores; 0 for none.
    heavy: AtomicU64,
    /// When another queue was last used, in milliseconds after `since`, plus 1; 0 for never.
    others: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Jobs run outside the lock, so a panic cannot leave the queues inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn is_crowded(&self) -> bool {
        let others = self.others.load(Relaxed);
        others > 0 && Duration::from_millis(self.now().saturating_sub(others - 1)) < self.in_use
    }

    fn work(self: &Arc<Self>) {
        let mut state = self.lock();
        let mut is_idle = false;
        loop {
            if let Some((queue, Job { id, cancel, work })) = state.start(self.is_crowded()) {
                let running = state.queues.get(&queue).map_or(0, |jobs| jobs.running.len());
                if running >= (self.cores - 1).max(1) {
                    self.heavy.store(queue, Relaxed);
                }
                self.wake(&mut state);
                drop(state);
                let started = Instant::now();
                if catch_unwind(AssertUnwindSafe(|| work(&cancel))).is_err() {
                    tracing::error!("inference thread: a job panicked");
                }
                state = self.lock();
                state.finish(queue, id, started.elapsed());
                if !state.queues.contains_key(&queue) {
                    let _ = self.heavy.compare_exchange(queue, 0, Relaxed, Relaxed);
                }
                is_idle = false;
                continue;
            }
            let superfluous = state.threads > self.cores;
            if state.closed || (is_idle && superfluous) {
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            if superfluous {
                let waited = self.filled.wait_timeout(state, MAX_IDLE);
                let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                (state, is_idle) = (guard, timeout.timed_out());
            } else {
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.idle -= 1;
        }
    }

    /// Has a thread for the next job that may start.
    fn wake(self: &Arc<Self>, state: &mut State) {
        if state.startable(self.is_crowded()).is_none() {
            return;
        }
        if state.idle > 0 {
            self.filled.notify_one();
        } else if let Err(error) = self.spawn(state) {
            // The other threads take the job later.
            tracing::warn!(%error, "cannot start an inference thread");
        }
    }

    fn spawn(self: &Arc<Self>, state: &mut State) -> std::io::Result<()> {
        let shared = self.clone();
        let name = format!("infer-{}", state.threads);
        std::thread::Builder::new().name(name).spawn(move || shared.work())?;
        state.threads += 1;
        Ok(())
    }
}

/// Submits jobs. Clones share the threads.
#[derive(Clone)]
pub(crate) struct PoolHandle(Arc<Shared>);

impl PoolHandle {
    /// Registers a run outside the pool.
    pub(crate) fn note_use(&self, queue: &Queue) {
        let heavy = self.0.heavy.load(Relaxed);
        if heavy != 0 && heavy != queue.id {
            self.0.others.store(self.0.now() + 1, Relaxed);
        }
    }

    /// Fails when the queue is full or closed. Returns the number of the job.
    pub(crate) fn submit(
        &self,
        queue: &Queue,
        cancel: CancelToken,
        work: impl FnOnce(&CancelToken) + Send + 'static,
    ) -> Result<u64, InferenceError> {
        self.note_use(queue);
        let mut state = self.0.lock();
        if state.closed || queue.closed.is_cancelled() {
            return Err(InferenceError::Cancelled);
        }
        let waiting = state.queues.get(&queue.id).map_or(0, |jobs| jobs.waiting.len());
        if waiting >= self.0.longest || state.waiting >= self.0.longest.saturating_mul(QUEUES) {
            return Err(InferenceError::Busy { waiting });
        }
        let id = state.push(queue, cancel, Box::new(work));
        self.0.wake(&mut state);
        Ok(id)
    }

    /// Runs a job. Dropping the future cancels it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        queue: &Queue,
        work: impl FnOnce(&CancelToken) -> T + Send + 'static,
    ) -> Result<T, InferenceError> {
        let (reply, answer) = oneshot::channel();
        let cancel = CancelToken::default();
        let job = self.submit(queue, cancel.clone(), move |cancel| drop(reply.send(work(cancel))))?;
        let mut running = CancelOnDrop { pool: &self.0, queue, job, cancel: Some(cancel) };
        let answer = answer.await;
        running.cancel = None;
        answer.map_err(|_| {
            if queue.closed.is_cancelled() {
                InferenceError::Cancelled
            } else {
                InferenceError::Model("the request panicked; see the log".into())
            }
        })
    }

    #[cfg(test)]
    pub(crate) fn running(&self, queue: &Queue) -> usize {
        self.0.lock().queues.get(&queue.id).map_or(0, |jobs| jobs.running.len())
    }

    /// Cancels all jobs of a queue. No more are accepted.
    pub(crate) fn close(&self, queue: &Queue) {
        queue.closed.cancel();
        let mut state = self.0.lock();
        for (_, cancel) in state.queues.get(&queue.id).into_iter().flat_map(|jobs| &jobs.running) {
            cancel.cancel();
        }
        let removed = state.remove(queue.id, None);
        drop(state);
        drop(removed);
    }
}

struct CancelOnDrop<'a> {
    pool: &'a Shared,
    queue: &'a Queue,
    job: u64,
    /// `None` once the job has ended.
    cancel: Option<CancelToken>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
            // The job is dropped after the lock is released.
            let removed = self.pool.lock().remove(self.queue.id, Some(self.job));
            drop(removed);
        }
    }
}

/// Dropping it cancels all jobs and ends the threads.
pub(crate) struct Pool(PoolHandle);

impl Pool {
    /// `cores` is the number of threads that compute while all cores are in use; `longest` limits each queue.
    pub(crate) fn new(cores: usize, longest: usize) -> std::io::Result<Self> {
        Self::with_in_use(cores, longest, IN_USE)
    }

    fn with_in_use(cores: usize, longest: usize, in_use: Duration) -> std::io::Result<Self> {
        let cores = cores.max(1);
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(cores)),
            filled: Condvar::new(),
            longest,
            cores,
            since: Instant::now(),
            in_use,
            heavy: AtomicU64::new(0),
            others: AtomicU64::new(0),
        });
        let pool = Self(PoolHandle(shared.clone()));
        let mut state = shared.lock();
        for _ in 0..cores {
            shared.spawn(&mut state)?;
        }
        drop(state);
        Ok(pool)
    }
}

impl std::ops::Deref for Pool {
    type Target = PoolHandle;

    fn deref(&self) -> &PoolHandle {
        &self.0
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.closed = true;
        for (_, cancel) in state.queues.values().flat_map(|jobs| &jobs.running) {
            cancel.cancel();
        }
        let queues: Vec<u64> = state.queues.keys().copied().collect();
        let removed: Vec<_> = queues.into_iter().map(|queue| state.remove(queue, None)).collect();
        drop(state);
        self.0.0.filled.notify_all();
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// Jobs that announce their start and then wait.
    struct Held {
        started: mpsc::Receiver<()>,
        gate: Arc<Mutex<()>>,
        start: mpsc::Sender<()>,
    }

    impl Held {
        fn new() -> Self {
            let (start, started) = mpsc::channel();
            Self { started, gate: Arc::default(), start }
        }

        fn submit(&self, pool: &PoolHandle, queue: &Queue) -> Result<u64, InferenceError> {
            let (start, gate) = (self.start.clone(), self.gate.clone());
            pool.submit(queue, CancelToken::default(), move |_| {
                let _ = start.send(());
                drop(gate.lock());
            })
        }
    }

    fn names(state: &mut State, crowded: bool) -> Vec<u64> {
        std::iter::from_fn(|| state.start(crowded).map(|(queue, _)| queue)).collect()
    }

    fn state(cores: usize, queues: &[(&Queue, usize)]) -> State {
        let mut state = State::new(cores);
        for (queue, jobs) in queues {
            for _ in 0..*jobs {
                state.push(queue, CancelToken::default(), Box::new(|_| {}));
            }
        }
        state
    }

    #[test]
    fn jobs_share_the_cores() {
        let [a, b, c] = [false, false, true].map(Queue::new);
        for (cores, queues, crowded, expected) in [
            (2, vec![(&a, 9)], false, vec![a.id; 2]),
            (2, vec![(&a, 9)], true, vec![a.id]),
            (4, vec![(&a, 9)], true, vec![a.id; 3]),
            (1, vec![(&a, 9)], false, vec![a.id]),
            // Each model starts one job, even if all cores are busy.
            (2, vec![(&a, 9), (&b, 9)], false, vec![a.id, b.id]),
            (1, vec![(&a, 9), (&b, 9)], false, vec![a.id, b.id]),
            (3, vec![(&a, 9), (&b, 9)], false, vec![a.id, a.id, b.id]),
            // A blocked thread takes no core.
            (2, vec![(&a, 9), (&b, 9), (&c, 9)], false, vec![a.id, b.id, c.id]),
            (4, vec![(&c, 9), (&a, 9)], false, vec![a.id, a.id, a.id, c.id, c.id, c.id]),
        ] {
            let mut started = names(&mut state(cores, &queues), crowded);
            started.sort_unstable();
            assert_eq!(started, expected, "{cores} cores");
        }
        let many: Vec<Queue> = (0..20).map(|_| Queue::new(false)).collect();
        let queues: Vec<_> = many.iter().map(|q| (q, 1)).collect();
        assert_eq!(names(&mut state(2, &queues), false).len(), 2 * MODELS_PER_CORE);
    }

    #[test]
    fn least_used_model_goes_first() {
        let [slow, fast] = [false, false].map(Queue::new);
        let mut state = state(1, &[(&slow, 3), (&fast, 3)]);
        let mut order = Vec::new();
        // The core is taken by others, so that one job starts at a time.
        state.computing = MODELS_PER_CORE - 1;
        while let Some((queue, job)) = state.start(false) {
            order.push(queue);
            state.finish(queue, job.id, Duration::from_millis(if queue == slow.id { 100 } else { 10 }));
        }
        assert_eq!(order, [slow.id, fast.id, fast.id, fast.id, slow.id, slow.id]);
        assert!(state.queues.is_empty() && state.ready.is_empty() && state.waiting == 0);
    }

    #[test]
    fn saturated_model_does_not_delay_another() {
        for blocks in [false, true] {
            let pool = Pool::new(2, 1024).unwrap();
            let slow: Vec<Queue> = (0..3).map(|_| Queue::new(blocks)).collect();
            let fast = Queue::new(false);
            let held = Held::new();
            let gate = held.gate.clone();
            let closed = gate.lock().unwrap();
            for queue in &slow {
                for _ in 0..64 {
                    held.submit(&pool, queue).unwrap();
                }
                held.started.recv_timeout(TIMEOUT).unwrap();
            }
            let (reply, answer) = mpsc::channel();
            pool.submit(&fast, CancelToken::default(), move |_| reply.send(()).unwrap()).unwrap();
            answer.recv_timeout(TIMEOUT).expect("the other model runs");
            drop(closed);
        }
    }

    #[test]
    fn model_leaves_a_core_while_others_are_in_use() {
        let pool = Pool::with_in_use(2, 64, TIMEOUT).unwrap();
        let [slow, other] = [false, false].map(Queue::new);
        let held = Held::new();
        let gate = held.gate.clone();
        let closed = gate.lock().unwrap();
        held.submit(&pool, &slow).unwrap();
        held.started.recv_timeout(TIMEOUT).unwrap();
        // A run on the calling thread.
        pool.note_use(&other);
        held.submit(&pool, &slow).unwrap();
        let state = pool.0.0.lock();
        assert_eq!((state.computing, state.waiting), (1, 1));
        assert_eq!(state.startable(pool.0.0.is_crowded()), None);
        drop(state);
        drop(closed);
        held.started.recv_timeout(TIMEOUT).expect("the second job runs after the first");
    }

    #[test]
    fn queues_are_bounded() {
        let pool = Pool::new(1, 2).unwrap();
        let queues: Vec<Queue> = (0..9).map(|_| Queue::new(false)).collect();
        let held = Held::new();
        let gate = held.gate.clone();
        let closed = gate.lock().unwrap();
        // One job runs, two wait.
        held.submit(&pool, &queues[0]).unwrap();
        held.started.recv_timeout(TIMEOUT).unwrap();
        for _ in 0..2 {
            held.submit(&pool, &queues[0]).unwrap();
        }
        assert_eq!(held.submit(&pool, &queues[0]), Err(InferenceError::Busy { waiting: 2 }));
        // Two jobs in each of eight queues would fit.
        let refused = (0..16).find(|i| held.submit(&pool, &queues[1 + i % 8]).is_err());
        assert!(refused.is_some(), "all queues together are bounded, too");
        drop(closed);
    }

    #[tokio::test]
    async fn panic_does_not_end_the_thread() {
        let pool = Pool::new(1, 8).unwrap();
        let queue = Queue::new(false);
        for _ in 0..4 {
            let failed = pool.run(&queue, |_| panic!("on purpose"));
            let failed = tokio::time::timeout(TIMEOUT, failed).await.unwrap();
            assert_eq!(
                failed,
                Err::<(), _>(InferenceError::Model("the request panicked; see the log".into()))
            );
        }
        let next = tokio::time::timeout(TIMEOUT, pool.run(&queue, |_| 7));
        assert_eq!(next.await.unwrap(), Ok(7));
    }

    #[tokio::test]
    async fn dropped_call_cancels_its_job() {
        let pool = Pool::new(1, 8).unwrap();
        let queue = Queue::new(false);
        let (start, started) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let running = pool.run(&queue, move |cancel| {
            start.send(()).unwrap();
            while !cancel.is_cancelled() {
                std::thread::yield_now();
            }
            stop.send(()).unwrap();
        });
        let waiting = pool.run(&queue, |_| ());
        tokio::select! {
            biased;
            _ = running => panic!("it ends only when it is cancelled"),
            () = async {
                tokio::select! {
                    biased;
                    _ = waiting => panic!("it waits for the other job"),
                    started = started => started.unwrap(),
                }
                assert_eq!(pool.0.0.lock().waiting, 0, "the waiting job is gone with its caller");
            } => {}
        }
        tokio::time::timeout(TIMEOUT, stopped).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn closed_queue_cancels_its_jobs() {
        let pool = Pool::new(1, 8).unwrap();
        let queue = Queue::new(false);
        let (start, started) = oneshot::channel();
        let running = pool.run(&queue, move |cancel| {
            start.send(()).unwrap();
            while !cancel.is_cancelled() {
                std::thread::yield_now();
            }
        });
        let waiting = pool.run(&queue, |_| ());
        let close = async {
            started.await.unwrap();
            pool.close(&queue);
        };
        let (running, waiting, ()) = futures::join!(running, waiting, close);
        assert_eq!((running, waiting), (Ok(()), Err(InferenceError::Cancelled)));
        assert_eq!(pool.run(&queue, |_| ()).await, Err(InferenceError::Cancelled));
    }
}
