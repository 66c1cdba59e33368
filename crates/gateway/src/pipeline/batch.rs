//! Batches of a step: rows of several requests of a pipeline version share one call of the model.

use super::{
    RunContext,
    codec::off_the_event_loop,
    step::{self, ServedBy},
    tensor::StepTensor,
};
use futures::future::join_all;
use gantry_core::pipeline::{Graph, StepId};
use gantry_oip::{Code, Error, InferTensor};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::oneshot;

/// Requests that wait for a batch of one step.
const MAX_WAITING: usize = 1024;
/// Without `windowMs`.
const DEFAULT_WINDOW: Duration = Duration::from_millis(5);

/// The batchers of a version, by step.
#[derive(Default)]
pub(crate) struct Batches(Mutex<HashMap<usize, Arc<Batcher>>>);

impl Batches {
    /// `None` if the step has no batches.
    pub(super) fn of(&self, graph: &Graph, step: StepId) -> Option<Arc<Batcher>> {
        let batch = graph.batch(step)?;
        let size = batch.size.filter(|size| *size > 1)? as usize;
        let window = batch.window_ms.map_or(DEFAULT_WINDOW, |ms| Duration::from_millis(ms.into()));
        let new = || Arc::new(Batcher { size, window, waiting: Mutex::default() });
        let mut batchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(batchers.entry(step.index()).or_insert_with(new)))
    }
}

/// Collects requests until `size` rows wait, or the first one has waited for `window`.
pub(crate) struct Batcher {
    size: usize,
    window: Duration,
    waiting: Mutex<VecDeque<Waiting>>,
}

struct Waiting {
    context: Arc<RunContext>,
    inputs: Vec<StepTensor>,
    rows: usize,
    reply: oneshot::Sender<Reply>,
}

type Reply = Result<(Vec<InferTensor>, Option<ServedBy>), Error>;

impl Batcher {
    pub(super) async fn infer(
        self: &Arc<Self>,
        context: &Arc<RunContext>,
        model: &Arc<str>,
        inputs: Vec<StepTensor>,
        served_by: &mut Option<ServedBy>,
    ) -> Result<Vec<InferTensor>, Error> {
        let rows = rows_of(&inputs).filter(|rows| *rows < self.size);
        let Some(rows) = rows else {
            return step::infer(context, model, inputs, false, served_by).await;
        };
        let (reply, mut answer) = oneshot::channel();
        self.enqueue(Waiting { context: Arc::clone(context), inputs, rows, reply })?;
        self.start_full(model);
        let answered = if let Ok(answered) = tokio::time::timeout(self.window, &mut answer).await {
            answered
        } else {
            start(model, self.next_batch(&mut self.lock()));
            answer.await
        };
        let (outputs, by) =
            answered.unwrap_or_else(|_| Err(Error::internal("the batch ended without a response")))?;
        *served_by = by;
        Ok(outputs)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(&self, waiting: Waiting) -> Result<(), Error> {
        let mut queue = self.lock();
        if queue.len() >= MAX_WAITING {
            queue.retain(|waiting| !waiting.reply.is_closed());
        }
        if queue.len() >= MAX_WAITING {
            let message = format!("{MAX_WAITING} requests wait for a batch: retry in 1 s");
            return Err(Error { retry_after: Some(1), ..Error::new(Code::ResourceExhausted, message) });
        }
        queue.push_back(waiting);
        Ok(())
    }

    /// Starts batches while enough rows wait.
    fn start_full(&self, model: &Arc<str>) {
        loop {
            let mut queue = self.lock();
            if queue.iter().map(|waiting| waiting.rows).sum::<usize>() < self.size {
                return;
            }
            let batch = self.next_batch(&mut queue);
            drop(queue);
            if batch.is_empty() {
                return;
            }
            start(model, batch);
        }
    }

    /// The first requests whose rows fit together.
    fn next_batch(&self, queue: &mut VecDeque<Waiting>) -> Vec<Waiting> {
        let mut batch: Vec<Waiting> = Vec::new();
        let mut rows = 0;
        while let Some(next) = queue.front() {
            let fits = batch
                .first()
                .is_none_or(|first| rows + next.rows <= self.size && can_concat(&first.inputs, &next.inputs));
            if !fits {
                break;
            }
            if let Some(next) = queue.pop_front().filter(|next| !next.reply.is_closed()) {
                rows += next.rows;
                batch.push(next);
            }
        }
        batch
    }
}

/// In the background: a client that disconnects does not end the requests of others.
fn start(model: &Arc<str>, batch: Vec<Waiting>) {
    if batch.is_empty() {
        return;
    }
    let model = Arc::clone(model);
    tokio::spawn(async move { run(&model, batch).await });
}

async fn run(model: &Arc<str>, mut batch: Vec<Waiting>) {
    if batch.len() > 1
        && let Some(parts) = run_together(model, &mut batch).await
    {
        for (waiting, part) in batch.into_iter().zip(parts) {
            let _ = waiting.reply.send(part);
        }
        return;
    }
    // One at a time, so that an invalid request does not fail the others.
    join_all(batch.into_iter().map(|waiting| run_alone(model, waiting))).await;
}

async fn run_alone(model: &Arc<str>, mut waiting: Waiting) {
    let mut served_by = None;
    let calling = step::infer(&waiting.context, model, waiting.inputs, false, &mut served_by);
    let answer = tokio::select! {
        answer = calling => answer,
        () = waiting.reply.closed() => return,
    };
    let _ = waiting.reply.send(answer.map(|outputs| (outputs, served_by)));
}

/// The part of each request; `None` if they have to run alone. Ends when all clients are gone.
async fn run_together(model: &Arc<str>, batch: &mut [Waiting]) -> Option<Vec<Reply>> {
    let last = &batch.last()?.context;
    let deadline = batch.iter().map(|waiting| waiting.context.deadline).max()?;
    let context = Arc::new(RunContext { deadline, ..RunContext::clone(last) });
    let rows: Vec<usize> = batch.iter().map(|waiting| waiting.rows).collect();
    let inputs: Vec<Vec<StepTensor>> = batch.iter().map(|waiting| waiting.inputs.clone()).collect();
    let bytes = inputs.iter().flatten().map(StepTensor::bytes).sum();
    let held = context.memory.hold(bytes).ok()?;
    let together = off_the_event_loop(bytes, move || Ok(concat(&inputs))).await.ok()??;
    let mut served_by = None;
    let calling = step::infer(&context, model, together, false, &mut served_by);
    let gone = join_all(batch.iter_mut().map(|waiting| waiting.reply.closed()));
    let answer = tokio::select! {
        answer = calling => answer,
        _ = gone => return Some(Vec::new()),
    };
    drop(held);
    match answer {
        Ok(outputs) => {
            let bytes = outputs.iter().map(|output| output.tensor.elements().raw_len()).sum();
            let parts = off_the_event_loop(bytes, move || Ok(split(&outputs, &rows))).await.ok()??;
            Some(parts.into_iter().map(|part| Ok((part, served_by.clone()))).collect())
        }
        Err(error) if step::is_of_the_model(error.code) => None,
        Err(error) => Some(rows.iter().map(|_| Err(error.clone())).collect()),
    }
}

fn concat(requests: &[Vec<StepTensor>]) -> Option<Vec<StepTensor>> {
    let columns = requests.first()?.len();
    (0..columns).map(|i| StepTensor::concat(requests.iter().filter_map(|inputs| inputs.get(i)))).collect()
}

/// The rows of each request; `None` if an output has another number of rows than the batch.
fn split(outputs: &[InferTensor], rows: &[usize]) -> Option<Vec<Vec<InferTensor>>> {
    let total: usize = rows.iter().sum();
    if outputs.iter().any(|output| output.tensor.shape().first() != Some(&total)) {
        return None;
    }
    let part = |from: usize, count: usize| {
        let part = |output: &InferTensor| {
            let tensor = output.tensor.rows(from, count)?;
            Some(InferTensor { tensor, parameters: output.parameters.clone() })
        };
        outputs.iter().map(part).collect::<Option<Vec<_>>>()
    };
    let mut from = 0;
    rows.iter()
        .map(|&count| {
            let part = part(from, count);
            from += count;
            part
        })
        .collect()
}

fn rows_of(inputs: &[StepTensor]) -> Option<usize> {
    let rows = inputs.first()?.rows()?;
    inputs.iter().all(|input| input.rows() == Some(rows)).then_some(rows)
}

fn can_concat(a: &[StepTensor], b: &[StepTensor]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.can_concat(y))
}
