//! Where a request runs: on the thread that took it, on the pool, or together with others.

use crate::{
    InferenceError, Settings,
    batch::{Answer, Batcher},
    model::Model,
    pool::Pool,
    statistics::Statistics,
};
use gantry_tensor::Tensor;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// A run that is expected to be shorter than this is not worth the way to another thread, which costs about as much.
const SHORT: Duration = Duration::from_micros(50);

/// A loaded model with what is needed to run it.
pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) model: Box<dyn Model>,
    pub(crate) statistics: Statistics,
    batcher: Option<Batcher>,
}

impl Loaded {
    pub(crate) fn new(name: &str, model: Box<dyn Model>, settings: &Settings) -> Self {
        let batches = settings.max_batch_size > 1 && model.batchable();
        if settings.max_batch_size > 1 && !batches {
            tracing::warn!(
                model = name,
                "the model's shapes do not allow batching; it runs request by request"
            );
        }
        let version = name.rsplit_once('_').map_or("1", |(_, v)| v).to_owned();
        Self {
            name: name.to_owned(),
            version,
            model,
            statistics: Statistics::default(),
            batcher: batches.then(|| Batcher::new(settings.max_batch_size, settings.max_batch_time)),
        }
    }

    /// Whether a request of so many rows may run on the thread that took it.
    pub(crate) fn is_short(&self, rows: usize) -> bool {
        self.batcher.is_none()
            && !self.model.waits()
            && self.statistics.estimate(rows).is_some_and(|e| e < SHORT)
    }

    /// Runs here and now.
    pub(crate) fn run(&self, inputs: &[Tensor], wanted: &[&str]) -> Answer {
        let started = Instant::now();
        let answer = guarded(&*self.model, inputs, wanted);
        self.statistics.ran(rows_of(inputs), started.elapsed());
        answer
    }

    /// Runs on the pool, with others if the model batches.
    pub(crate) async fn run_elsewhere(
        self: &Arc<Self>,
        inputs: Vec<Tensor>,
        wanted: Vec<String>,
        pool: &Pool,
    ) -> Answer {
        let answer = match &self.batcher {
            // Outputs that are asked for by name are made on their own: they may not be the usual ones.
            Some(batcher) if wanted.is_empty() || self.usual(&wanted) => {
                let (answer, start) = batcher.enqueue(inputs)?;
                if start {
                    let this = self.clone();
                    let run = move || {
                        if let Some(batcher) = &this.batcher {
                            batcher.run(&*this.model, |rows, took| this.statistics.ran(rows, took));
                        }
                    };
                    if let Err(busy) = pool.submit(run) {
                        batcher.refuse_all(&busy);
                    }
                }
                answer
            }
            _ => {
                let (reply, answer) = oneshot::channel();
                let this = self.clone();
                pool.submit(move || {
                    if !reply.is_closed() {
                        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
                        let _ = reply.send(this.run(&inputs, &wanted));
                    }
                })?;
                answer
            }
        };
        answer.await.unwrap_or_else(|_| Err(InferenceError::Model("the model gave no answer".into())))
    }

    fn usual(&self, wanted: &[String]) -> bool {
        wanted.iter().all(|w| self.model.outputs().iter().any(|o| o.name == *w))
    }

    /// One run on zeros, so that the first request finds a model that is warm and whose speed is known. A model that
    /// cannot run on zeros is not wrong for that.
    pub(crate) fn warm_up(&self) {
        let inputs: Option<Vec<Tensor>> = self.model.inputs().iter().map(crate::runtime::zeros).collect();
        if let Some(inputs) = inputs {
            for _ in 0..3 {
                if self.run(&inputs, &[]).is_err() {
                    break;
                }
            }
        }
    }
}

pub(crate) fn rows_of(inputs: &[Tensor]) -> usize {
    inputs.first().and_then(|t| t.shape().first().copied()).unwrap_or(1)
}

/// Runs a model; a panic in it is its error, not ours.
pub(crate) fn guarded(model: &dyn Model, inputs: &[Tensor], wanted: &[&str]) -> Answer {
    catch_unwind(AssertUnwindSafe(|| model.infer(inputs, wanted))).unwrap_or_else(|_| {
        Err(InferenceError::Model("the model failed in an unexpected way; the log says where".into()))
    })
}
