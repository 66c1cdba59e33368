//! Dynamic batching: rows of several requests share one run.

use crate::{InferenceError, model::Model};
use gantry_tensor::{CancelToken, Tensor};
use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// Queue limit per model.
const MAX_QUEUED: usize = 1024;

pub(crate) type Answer = Result<Vec<Tensor>, InferenceError>;

struct Waiting {
    inputs: Vec<Tensor>,
    rows: usize,
    since: Instant,
    cancel: CancelToken,
    reply: oneshot::Sender<Answer>,
}

/// Collects requests while a batch runs, and for up to `longest_wait`. It holds no thread while it waits: each request
/// calls [`Batcher::is_due`] when it arrives and when its own wait is over.
pub(crate) struct Batcher {
    most_rows: usize,
    longest_wait: Duration,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    rows: usize,
    /// A run is submitted or under way.
    scheduled: bool,
    closed: bool,
}

/// A request in a batcher; dropping it cancels the request.
pub(crate) struct Request<'a> {
    batcher: &'a Batcher,
    /// `None` once the request is answered.
    cancel: Option<CancelToken>,
    answer: oneshot::Receiver<Answer>,
}

impl Request<'_> {
    /// `submit` is called when a batch is due.
    pub(crate) async fn answer(mut self, submit: impl Fn()) -> Answer {
        if self.batcher.is_due() {
            submit();
        }
        let wait = self.batcher.longest_wait;
        let mut early = None;
        if !wait.is_zero() {
            early = tokio::time::timeout(wait, &mut self.answer).await.ok();
            if early.is_none() && self.batcher.is_due() {
                submit();
            }
        }
        let answer = match early {
            Some(answer) => answer,
            None => (&mut self.answer).await,
        };
        self.cancel = None;
        answer.unwrap_or_else(|_| Err(InferenceError::Model("the batch panicked; see the log".into())))
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
            // The inputs are dropped after the lock is released.
            let removed = self.batcher.lock().remove_cancelled();
            drop(removed);
        }
    }
}

impl Queue {
    fn remove_cancelled(&mut self) -> Vec<Waiting> {
        if !self.waiting.iter().any(|w| w.cancel.is_cancelled()) {
            return Vec::new();
        }
        let (removed, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|w| w.cancel.is_cancelled());
        self.waiting = kept.into();
        self.rows = self.waiting.iter().map(|w| w.rows).sum();
        removed
    }
}

impl Batcher {
    pub(crate) fn new(most_rows: usize, longest_wait: Duration) -> Self {
        Self { most_rows, longest_wait, queue: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enqueue(&self, inputs: Vec<Tensor>) -> Result<Request<'_>, InferenceError> {
        let (reply, answer) = oneshot::channel();
        let rows = crate::executor::rows_of(&inputs);
        let cancel = CancelToken::default();
        let mut queue = self.lock();
        if queue.closed {
            return Err(InferenceError::Cancelled);
        }
        if queue.waiting.len() >= MAX_QUEUED {
            return Err(InferenceError::Busy { waiting: queue.waiting.len() });
        }
        let since = Instant::now();
        queue.waiting.push_back(Waiting { inputs, rows, since, cancel: cancel.clone(), reply });
        queue.rows = queue.rows.saturating_add(rows);
        Ok(Request { batcher: self, cancel: Some(cancel), answer })
    }

    /// With `true` the caller must submit [`Batcher::run`].
    pub(crate) fn is_due(&self) -> bool {
        self.schedule(&mut self.lock())
    }

    fn schedule(&self, queue: &mut Queue) -> bool {
        let due =
            |first: &Waiting| queue.rows >= self.most_rows || first.since.elapsed() >= self.longest_wait;
        let start = !queue.scheduled && queue.waiting.front().is_some_and(due);
        queue.scheduled |= start;
        start
    }

    /// Fails all queued requests.
    pub(crate) fn fail_all(&self, error: &InferenceError) {
        let mut queue = self.lock();
        queue.scheduled = false;
        queue.rows = 0;
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        for waiting in waiting {
            let _ = waiting.reply.send(Err(error.clone()));
        }
    }

    /// Fails all queued requests and accepts no more.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.fail_all(&InferenceError::Cancelled);
    }

    /// Runs one batch. `record` gets its rows and duration. With `true` the caller must submit it again: the
    /// thread is given back between batches.
    pub(crate) fn run(
        &self,
        name: &str,
        model: &dyn Model,
        cancel: &CancelToken,
        record: impl Fn(usize, Duration),
    ) -> bool {
        let batch = self.next_batch();
        if !batch.is_empty() {
            let started = Instant::now();
            let rows = batch.iter().map(|w| w.rows).sum();
            if catch_unwind(AssertUnwindSafe(|| answer(name, model, batch, cancel))).is_err() {
                tracing::error!(model = name, "batch panicked");
            }
            record(rows, started.elapsed());
        }
        let mut queue = self.lock();
        queue.scheduled = false;
        self.schedule(&mut queue)
    }

    fn next_batch(&self) -> Vec<Waiting> {
        let mut queue = self.lock();
        let mut batch: Vec<Waiting> = Vec::new();
        let mut rows = 0;
        while let Some(next) = queue.waiting.front() {
            let fits = batch.first().is_none_or(|first| {
                rows + next.rows <= self.most_rows && can_concat(&first.inputs, &next.inputs)
            });
            if !fits {
                break;
            }
            if let Some(next) = queue.waiting.pop_front() {
                queue.rows = queue.rows.saturating_sub(next.rows);
                if !next.cancel.is_cancelled() {
                    rows += next.rows;
                    batch.push(next);
                }
            }
        }
        batch
    }
}

fn can_concat(a: &[Tensor], b: &[Tensor]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.can_concat(y))
}

fn answer(name: &str, model: &dyn Model, batch: Vec<Waiting>, cancel: &CancelToken) {
    let total: usize = batch.iter().map(|w| w.rows).sum();
    let infer = |inputs: &[Tensor], cancel: &CancelToken| {
        crate::executor::catch_panic(name, model, inputs, &[], cancel)
    };
    if let [_, _, ..] = batch.as_slice() {
        let columns = batch.first().map_or(0, |w| w.inputs.len());
        let together: Option<Vec<Tensor>> =
            (0..columns).map(|i| Tensor::concat(batch.iter().filter_map(|w| w.inputs.get(i)))).collect();
        let cancel = cancel.shared_by(batch.iter().map(|w| w.cancel.clone()));
        if let Some(Ok(outputs)) = together.map(|inputs| infer(&inputs, &cancel))
            && outputs.iter().all(|t| t.shape().first() == Some(&total))
        {
            let mut from = 0;
            for waiting in batch {
                let part: Option<Vec<Tensor>> = outputs.iter().map(|t| t.rows(from, waiting.rows)).collect();
                from += waiting.rows;
                let part = part.ok_or_else(|| InferenceError::Model("the batch could not be split".into()));
                let _ = waiting.reply.send(part);
            }
            return;
        }
        // Fall back to single runs, so that one invalid request does not fail the others.
    }
    for waiting in batch {
        let cancel = cancel.shared_by([waiting.cancel.clone()]);
        let result = if cancel.is_cancelled() {
            Err(InferenceError::Cancelled)
        } else {
            infer(&waiting.inputs, &cancel)
        };
        let _ = waiting.reply.send(result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_tensor::{Elements, TensorSpec};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Doubles its input, fails on negative numbers, counts runs.
    #[derive(Default)]
    struct Doubler {
        runs: AtomicUsize,
    }

    impl Model for Doubler {
        fn inputs(&self) -> &[TensorSpec] {
            &[]
        }
        fn outputs(&self) -> &[TensorSpec] {
            &[]
        }
        fn platform(&self) -> &'static str {
            "test"
        }
        fn engine(&self) -> String {
            "test".into()
        }
        fn memory_bytes(&self) -> usize {
            0
        }
        fn batchable(&self) -> bool {
            true
        }
        fn infer(&self, inputs: &[Tensor], _: &[&str], _: &CancelToken) -> Answer {
            self.runs.fetch_add(1, Ordering::Relaxed);
            let Elements::Fp32(values) = inputs[0].elements() else { panic!("expected floats") };
            if values.iter().any(|v| *v < 0.0) {
                return Err(InferenceError::Request("negative".into()));
            }
            let doubled = values.iter().map(|v| v * 2.0).collect();
            Ok(vec![Tensor::new("y", inputs[0].shape(), Elements::Fp32(doubled)).unwrap()])
        }
    }

    fn input(rows: usize, value: f32) -> Vec<Tensor> {
        vec![Tensor::new("x", [rows, 2], Elements::Fp32(vec![value; rows * 2])).unwrap()]
    }

    fn run(batcher: &Batcher, model: &dyn Model) -> Vec<usize> {
        let batches = std::cell::RefCell::new(Vec::new());
        assert!(batcher.is_due());
        while batcher.run("m", model, &CancelToken::default(), |rows, _| batches.borrow_mut().push(rows)) {}
        batches.into_inner()
    }

    #[test]
    fn batched_requests_get_their_own_rows() {
        let batcher = Batcher::new(8, Duration::ZERO);
        let model = Doubler::default();
        let requests: Vec<_> = [1, 2, 3].map(|n| (n, batcher.enqueue(input(n, n as f32)).unwrap())).into();
        assert_eq!(run(&batcher, &model), [6]);
        assert_eq!(model.runs.load(Ordering::Relaxed), 1);
        for (n, mut request) in requests {
            let [tensor] = request.answer.try_recv().unwrap().unwrap().try_into().unwrap();
            assert_eq!(tensor.shape(), [n, 2]);
            assert_eq!(*tensor.elements(), Elements::Fp32(vec![n as f32 * 2.0; n * 2]));
        }
    }

    #[test]
    fn invalid_request_does_not_fail_its_batch() {
        let batcher = Batcher::new(8, Duration::ZERO);
        let [mut good, mut bad] = [1.0, -1.0].map(|v| batcher.enqueue(input(1, v)).unwrap());
        run(&batcher, &Doubler::default());
        assert!(good.answer.try_recv().unwrap().is_ok());
        assert_eq!(bad.answer.try_recv().unwrap(), Err(InferenceError::Request("negative".into())));
    }

    #[test]
    fn batches_are_bounded_and_homogeneous() {
        let batcher = Batcher::new(4, Duration::ZERO);
        let model = Doubler::default();
        let other = vec![Tensor::new("z", [1, 2], Elements::Fp32(vec![1.0; 2])).unwrap()];
        let kept = [input(3, 1.0), input(3, 1.0), other, input(9, 1.0)].map(|i| batcher.enqueue(i).unwrap());
        assert_eq!(run(&batcher, &model), [3, 3, 1, 9]);
        assert!(kept.into_iter().all(|mut r| r.answer.try_recv().unwrap().is_ok()));
    }

    #[test]
    fn full_queue_is_reported_as_busy() {
        let batcher = Batcher::new(8, Duration::ZERO);
        let mut kept: Vec<_> = (0..MAX_QUEUED).map(|_| batcher.enqueue(input(1, 1.0)).unwrap()).collect();
        let refused = batcher.enqueue(input(1, 1.0)).err();
        assert_eq!(refused, Some(InferenceError::Busy { waiting: MAX_QUEUED }));
        kept.pop();
        assert!(batcher.enqueue(input(1, 1.0)).is_ok(), "a dropped request frees its place");
    }

    #[test]
    fn thread_is_given_back_after_each_batch() {
        let batcher = Batcher::new(2, Duration::ZERO);
        let model = Doubler::default();
        let _kept: Vec<_> = (0..4).map(|_| batcher.enqueue(input(1, 1.0)).unwrap()).collect();
        assert!(batcher.is_due() && !batcher.is_due(), "one run is submitted");
        assert!(batcher.run("m", &model, &CancelToken::default(), |_, _| {}));
        assert_eq!(model.runs.load(Ordering::Relaxed), 1);
        assert!(!batcher.run("m", &model, &CancelToken::default(), |_, _| {}));
        assert_eq!(model.runs.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn batch_is_due_when_full_or_after_the_wait() {
        let batcher = Batcher::new(2, Duration::from_hours(1));
        let _first = batcher.enqueue(input(1, 1.0)).unwrap();
        assert!(!batcher.is_due());
        let _second = batcher.enqueue(input(1, 1.0)).unwrap();
        assert!(batcher.is_due());
        let batcher = Batcher::new(2, Duration::from_millis(1));
        let first = batcher.enqueue(input(1, 1.0)).unwrap();
        while !batcher.is_due() {
            std::thread::yield_now();
        }
        drop(first);
    }

    #[test]
    fn cancelled_requests_are_not_run() {
        let batcher = Batcher::new(8, Duration::ZERO);
        let model = Doubler::default();
        let mut kept = batcher.enqueue(input(1, 1.0)).unwrap();
        drop(batcher.enqueue(input(5, 1.0)).unwrap());
        assert_eq!(run(&batcher, &model), [1]);
        assert!(kept.answer.try_recv().unwrap().is_ok());
        let mut unloaded = batcher.enqueue(input(1, 1.0)).unwrap();
        batcher.close();
        assert_eq!(unloaded.answer.try_recv().unwrap(), Err(InferenceError::Cancelled));
        assert_eq!(batcher.enqueue(input(1, 1.0)).err(), Some(InferenceError::Cancelled));
    }
}
