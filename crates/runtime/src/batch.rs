//! Dynamic batching: rows of several requests share one run.

use crate::{InferenceError, model::Model};
use gantry_tensor::{Elements, Tensor};
use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
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
    reply: oneshot::Sender<Answer>,
}

/// Collects requests while the model is busy, and for up to `longest_wait`.
pub(crate) struct Batcher {
    most_rows: usize,
    longest_wait: Duration,
    queue: Mutex<Queue>,
    arrived: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    rows: usize,
    running: bool,
}

impl Batcher {
    pub(crate) fn new(most_rows: usize, longest_wait: Duration) -> Self {
        Self { most_rows, longest_wait, queue: Mutex::default(), arrived: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues a request. With `true` the caller must schedule [`Batcher::run`]; otherwise it is running already.
    pub(crate) fn enqueue(
        &self,
        inputs: Vec<Tensor>,
    ) -> Result<(oneshot::Receiver<Answer>, bool), InferenceError> {
        let (reply, answer) = oneshot::channel();
        let rows = inputs.first().and_then(|t| t.shape().first().copied()).unwrap_or(1);
        let mut queue = self.lock();
        if queue.waiting.len() >= MAX_QUEUED {
            return Err(InferenceError::Busy { waiting: queue.waiting.len() });
        }
        queue.waiting.push_back(Waiting { inputs, rows, since: Instant::now(), reply });
        queue.rows += rows;
        let start = !std::mem::replace(&mut queue.running, true);
        drop(queue);
        self.arrived.notify_one();
        Ok((answer, start))
    }

    /// Fails all queued requests when no thread is available.
    pub(crate) fn fail_all(&self, error: &InferenceError) {
        let mut queue = self.lock();
        queue.running = false;
        queue.rows = 0;
        for waiting in queue.waiting.drain(..) {
            let _ = waiting.reply.send(Err(error.clone()));
        }
    }

    /// Runs batches until the queue is empty. `record` gets the rows and the duration of each run.
    pub(crate) fn run(&self, model: &dyn Model, record: impl Fn(usize, Duration)) {
        while let Some(batch) = self.next_batch() {
            let started = Instant::now();
            let rows = batch.iter().map(|w| w.rows).sum();
            answer(model, batch);
            record(rows, started.elapsed());
        }
    }

    fn next_batch(&self) -> Option<Vec<Waiting>> {
        let mut queue = self.lock();
        loop {
            let Some(first) = queue.waiting.front() else {
                queue.running = false;
                return None;
            };
            let left = self.longest_wait.saturating_sub(first.since.elapsed());
            if queue.rows >= self.most_rows || left.is_zero() {
                break;
            }
            queue = self.arrived.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
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
                rows += next.rows;
                queue.rows = queue.rows.saturating_sub(next.rows);
                // Skip cancelled requests.
                if !next.reply.is_closed() {
                    batch.push(next);
                }
            }
        }
        Some(batch)
    }
}

/// Whether tensors can be concatenated: same names, types and shapes, except for the rows.
fn can_concat(a: &[Tensor], b: &[Tensor]) -> bool {
    let tail = |t: &Tensor| t.shape().get(1..).map(<[usize]>::to_vec);
    a.len() == b.len()
        && a.iter().zip(b).all(|(x, y)| {
            x.name() == y.name()
                && x.datatype() == y.datatype()
                && x.shape().len() == y.shape().len()
                && !x.shape().is_empty()
                && tail(x) == tail(y)
        })
}

fn answer(model: &dyn Model, batch: Vec<Waiting>) {
    let total: usize = batch.iter().map(|w| w.rows).sum();
    let infer = |inputs: &[Tensor]| crate::executor::catch_panic(model, inputs, &[]);
    if let [_, _, ..] = batch.as_slice() {
        let columns = batch.first().map_or(0, |w| w.inputs.len());
        let together: Option<Vec<Tensor>> =
            (0..columns).map(|i| concat(batch.iter().filter_map(|w| w.inputs.get(i)))).collect();
        if let Some(Ok(outputs)) = together.map(|inputs| infer(&inputs))
            && outputs.iter().all(|t| t.shape().first() == Some(&total))
        {
            let mut from = 0;
            for waiting in batch {
                let part: Option<Vec<Tensor>> = outputs.iter().map(|t| rows(t, from, waiting.rows)).collect();
                from += waiting.rows;
                let part = part.ok_or_else(|| InferenceError::Model("the batch could not be split".into()));
                let _ = waiting.reply.send(part);
            }
            return;
        }
        // Fall back to single runs, so that one invalid request does not fail the others.
    }
    for waiting in batch {
        let result = infer(&waiting.inputs);
        let _ = waiting.reply.send(result);
    }
}

/// Concatenates along the first dimension.
fn concat<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Option<Tensor> {
    let mut tensors = tensors;
    let (name, mut shape, mut elements) = tensors.next()?.clone().into_parts();
    for tensor in tensors {
        *shape.first_mut()? += tensor.shape().first()?;
        append(&mut elements, tensor.elements())?;
    }
    Tensor::new(name, shape, elements).ok()
}

macro_rules! each_type {
    ($with:ident) => {
        $with!(Bool, Uint8, Uint16, Uint32, Uint64, Int8, Int16, Int32, Int64, Fp16, Bf16, Fp32, Fp64, Bytes)
    };
}

fn append(to: &mut Elements, from: &Elements) -> Option<()> {
    macro_rules! arms {
        ($($kind:ident),*) => {
            match (to, from) {
                $((Elements::$kind(to), Elements::$kind(from)) => to.extend_from_slice(from),)*
                _ => return None,
            }
        };
    }
    each_type!(arms);
    Some(())
}

fn rows(tensor: &Tensor, from: usize, count: usize) -> Option<Tensor> {
    let width = tensor.shape().get(1..)?.iter().product::<usize>();
    let range = from * width..(from + count) * width;
    macro_rules! arms {
        ($($kind:ident),*) => {
            match tensor.elements() {
                $(Elements::$kind(v) => Elements::$kind(v.get(range)?.to_vec()),)*
            }
        };
    }
    let elements = each_type!(arms);
    let mut shape = tensor.shape().to_vec();
    *shape.first_mut()? = count;
    Tensor::new(tensor.name(), shape, elements).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_tensor::TensorSpec;
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
        fn infer(&self, inputs: &[Tensor], _: &[&str]) -> Answer {
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

    fn ask(batcher: &Batcher, inputs: Vec<Tensor>) -> oneshot::Receiver<Answer> {
        batcher.enqueue(inputs).unwrap().0
    }

    #[test]
    fn batched_requests_get_their_own_rows() {
        let batcher = Batcher::new(8, Duration::ZERO);
        let model = Doubler::default();
        let answers: Vec<_> = [1, 2, 3].map(|n| (n, ask(&batcher, input(n, n as f32)))).into();
        batcher.run(&model, |rows, _| assert_eq!(rows, 6));
        assert_eq!(model.runs.load(Ordering::Relaxed), 1);
        for (n, mut answer) in answers {
            let [tensor] = answer.try_recv().unwrap().unwrap().try_into().unwrap();
            assert_eq!(tensor.shape(), [n, 2]);
            assert_eq!(*tensor.elements(), Elements::Fp32(vec![n as f32 * 2.0; n * 2]));
        }
    }

    #[test]
    fn invalid_request_does_not_fail_its_batch() {
        let batcher = Batcher::new(8, Duration::ZERO);
        let mut good = ask(&batcher, input(1, 1.0));
        let mut bad = ask(&batcher, input(1, -1.0));
        batcher.run(&Doubler::default(), |_, _| {});
        assert!(good.try_recv().unwrap().is_ok());
        assert_eq!(bad.try_recv().unwrap(), Err(InferenceError::Request("negative".into())));
    }

    #[test]
    fn batches_are_bounded_and_homogeneous() {
        let batcher = Batcher::new(4, Duration::ZERO);
        let model = Doubler::default();
        let other = vec![Tensor::new("z", [1, 2], Elements::Fp32(vec![1.0; 2])).unwrap()];
        let kept = [input(3, 1.0), input(3, 1.0), other, input(9, 1.0)].map(|i| ask(&batcher, i));
        batcher.run(&model, |_, _| {});
        assert_eq!(model.runs.load(Ordering::Relaxed), 4);
        assert!(kept.into_iter().all(|mut a| a.try_recv().unwrap().is_ok()));
    }

    #[test]
    fn full_queue_is_reported_as_busy() {
        let batcher = Batcher::new(8, Duration::ZERO);
        let _kept: Vec<_> = (0..MAX_QUEUED).map(|_| ask(&batcher, input(1, 1.0))).collect();
        assert!(matches!(batcher.enqueue(input(1, 1.0)), Err(InferenceError::Busy { waiting: MAX_QUEUED })));
    }
}
