//! Where a request runs: on the calling thread, on the pool, or batched.

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

/// Runs expected to be shorter stay on the calling thread: a thread switch costs about as much.
const INLINE_MAX: Duration = Duration::from_micros(50);

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
            tracing::warn!(model = name, "batching disabled: the model's shapes do not allow it");
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

    /// Whether a request of so many rows may run on the calling thread.
    pub(crate) fn runs_inline(&self, rows: usize) -> bool {
        self.batcher.is_none()
            && !self.model.may_block()
            && self.statistics.estimate(rows).is_some_and(|e| e < INLINE_MAX)
    }

    /// Runs on the calling thread.
    pub(crate) fn run(&self, inputs: &[Tensor], wanted: &[&str]) -> Answer {
        let started = Instant::now();
        let answer = catch_panic(&*self.model, inputs, wanted);
        self.statistics.record_run(rows_of(inputs), started.elapsed());
        answer
    }

    /// Runs on the pool, batched if configured.
    pub(crate) async fn run_on_pool(
        self: &Arc<Self>,
        inputs: Vec<Tensor>,
        wanted: Vec<String>,
        pool: &Pool,
    ) -> Answer {
        let answer = match &self.batcher {
            // Requests for non-default outputs are not batched.
            Some(batcher) if wanted.is_empty() || self.has_default_outputs(&wanted) => {
                let (answer, start) = batcher.enqueue(inputs)?;
                if start {
                    let this = self.clone();
                    let run = move || {
                        if let Some(batcher) = &this.batcher {
                            batcher.run(&*this.model, |rows, took| this.statistics.record_run(rows, took));
                        }
                    };
                    if let Err(busy) = pool.submit(run) {
                        batcher.fail_all(&busy);
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
        answer.await.unwrap_or_else(|_| Err(InferenceError::Model("the model returned no result".into())))
    }

    fn has_default_outputs(&self, wanted: &[String]) -> bool {
        wanted.iter().all(|w| self.model.outputs().iter().any(|o| o.name == *w))
    }

    /// Runs on zeros, so that the first request finds a warm model with known latency. Failures are ignored.
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

/// Runs a model and converts panics to errors.
pub(crate) fn catch_panic(model: &dyn Model, inputs: &[Tensor], wanted: &[&str]) -> Answer {
    catch_unwind(AssertUnwindSafe(|| model.infer(inputs, wanted)))
        .unwrap_or_else(|_| Err(InferenceError::Model("the model panicked; see the log".into())))
}
