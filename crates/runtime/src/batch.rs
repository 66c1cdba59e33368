//! Putting rows of several requests into one run, and taking the answers apart again.

use crate::{InferenceError, model::Model};
use gantry_tensor::{Elements, Tensor};
use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// Requests that wait for one model before new ones are refused.
const LONGEST: usize = 1024;

pub(crate) type Answer = Result<Vec<Tensor>, InferenceError>;

struct Waiting {
    inputs: Vec<Tensor>,
    rows: usize,
    since: Instant,
    reply: oneshot::Sender<Answer>,
}

/// Collects requests for one model while it is busy, and for a little longer if it is told to.
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

    /// Puts a request into the queue. `Ok(true)` means that the caller has to see to it that [`Batcher::run`] is
    /// called; it is running already otherwise.
    pub(crate) fn enqueue(
        &self,
        inputs: Vec<Tensor>,
    ) -> Result<(oneshot::Receiver<Answer>, bool), InferenceError> {
        let (reply, answer) = oneshot::channel();
        let rows = inputs.first().and_then(|t| t.shape().first().copied()).unwrap_or(1);
        let mut queue = self.lock();
        if queue.waiting.len() >= LONGEST {
            return Err(InferenceError::Busy { waiting: queue.waiting.len() });
        }
        queue.waiting.push_back(Waiting { inputs, rows, since: Instant::now(), reply });
        queue.rows += rows;
        let start = !std::mem::replace(&mut queue.running, true);
        drop(queue);
        self.arrived.notify_one();
        Ok((answer, start))
    }

    /// Takes back the promise to run, when no thread could be had for it: whoever waits is told.
    pub(crate) fn refuse_all(&self, error: &InferenceError) {
        let mut queue = self.lock();
        queue.running = false;
        queue.rows = 0;
        for waiting in queue.waiting.drain(..) {
            let _ = waiting.reply.send(Err(error.clone()));
        }
    }

    /// Runs batches until nobody waits. `record` gets the rows and the requests of each run.
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
            let fits = batch
                .first()
                .is_none_or(|first| rows + next.rows <= self.most_rows && alike(&first.inputs, &next.inputs));
            if !fits {
                break;
            }
            if let Some(next) = queue.waiting.pop_front() {
                rows += next.rows;
                queue.rows = queue.rows.saturating_sub(next.rows);
                // Whoever hung up needs no answer.
                if !next.reply.is_closed() {
                    batch.push(next);
                }
            }
        }
        Some(batch)
    }
}

/// Whether tensors can be put together: same names, same types, same shape but for the rows.
fn alike(a: &[Tensor], b: &[Tensor]) -> bool {
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
    let infer = |inputs: &[Tensor]| crate::executor::guarded(model, inputs, &[]);
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
                let part =
                    part.ok_or_else(|| InferenceError::Model("the batch could not be taken apart".into()));
                let _ = waiting.reply.send(part);
            }
            return;
        }
        // One bad request must not spoil the others: each gets the answer it would have had alone.
    }
    for waiting in batch {
        let result = infer(&waiting.inputs);
        let _ = waiting.reply.send(result);
    }
}

/// Tensors one below the other.
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

/// Some rows of a tensor.
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

    /// Doubles its input, fails on negative numbers, and counts its runs.
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
            let Elements::Fp32(values) = inputs[0].elements() else { panic!("floats were sent") };
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
    fn requests_share_a_run_and_get_their_own_rows() {
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
    fn one_bad_request_does_not_spoil_the_others() {
        let batcher = Batcher::new(8, Duration::ZERO);
        let mut good = ask(&batcher, input(1, 1.0));
        let mut bad = ask(&batcher, input(1, -1.0));
        batcher.run(&Doubler::default(), |_, _| {});
        assert!(good.try_recv().unwrap().is_ok());
        assert_eq!(bad.try_recv().unwrap(), Err(InferenceError::Request("negative".into())));
    }

    #[test]
    fn a_batch_has_a_limit_and_only_like_requests_share_one() {
        let batcher = Batcher::new(4, Duration::ZERO);
        let model = Doubler::default();
        let other = vec![Tensor::new("z", [1, 2], Elements::Fp32(vec![1.0; 2])).unwrap()];
        let kept = [input(3, 1.0), input(3, 1.0), other, input(9, 1.0)].map(|i| ask(&batcher, i));
        batcher.run(&model, |_, _| {});
        assert_eq!(model.runs.load(Ordering::Relaxed), 4);
        assert!(kept.into_iter().all(|mut a| a.try_recv().unwrap().is_ok()));
    }

    #[test]
    fn the_queue_has_an_end() {
        let batcher = Batcher::new(8, Duration::ZERO);
        let _kept: Vec<_> = (0..LONGEST).map(|_| ask(&batcher, input(1, 1.0))).collect();
        assert!(matches!(batcher.enqueue(input(1, 1.0)), Err(InferenceError::Busy { waiting: LONGEST })));
    }
}
