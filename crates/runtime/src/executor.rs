//! Where a request runs: on the calling thread, on the pool, or batched.

use crate::{
    InferenceError, Settings,
    batch::{Answer, Batcher},
    model::Model,
    pool::{PoolHandle, Queue},
    statistics::Statistics,
};
use gantry_tensor::{CancelToken, DataType, Tensor};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

/// Runs expected to be shorter stay on the calling thread: a thread switch costs about as much.
const INLINE_MAX: Duration = Duration::from_micros(50);
/// Runs with more input elements go to the pool, whatever the estimate.
const INLINE_MAX_ELEMENTS: usize = 16 << 10;
const WARM_UP_RUNS: usize = 3;

pub(crate) struct Loaded {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) model: Box<dyn Model>,
    pub(crate) statistics: Statistics,
    pub(crate) queue: Queue,
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
            queue: Queue::new(model.may_block()),
            model,
            statistics: Statistics::default(),
            batcher: batches.then(|| Batcher::new(settings.max_batch_size, settings.max_batch_time)),
        }
    }

    pub(crate) const fn batches(&self) -> bool {
        self.batcher.is_some()
    }

    /// Whether a request may run on the calling thread.
    pub(crate) fn runs_inline(&self, inputs: &[Tensor]) -> bool {
        let elements = elements_of(inputs);
        self.batcher.is_none()
            && !self.model.may_block()
            && elements <= INLINE_MAX_ELEMENTS
            && self.statistics.estimate(elements).is_some_and(|e| e < INLINE_MAX)
    }

    /// Runs on the calling thread.
    pub(crate) fn run(&self, inputs: &[Tensor], wanted: &[&str], cancel: &CancelToken) -> Answer {
        let started = Instant::now();
        let answer = catch_panic(&self.name, &*self.model, inputs, wanted, cancel);
        let took = started.elapsed();
        self.statistics.record_run(rows_of(inputs), took);
        // A request that is rejected early does not show how long a run takes.
        let elements = elements_of(inputs);
        if answer.is_ok() || self.statistics.estimate(elements).is_some_and(|e| took > e) {
            self.statistics.learn(elements, took);
        }
        answer
    }

    /// The batcher, if requests for these outputs are batched.
    pub(crate) fn batcher(&self, wanted: &[&str]) -> Option<&Batcher> {
        let is_default = |name: &&str| self.model.outputs().iter().any(|o| o.name == **name);
        self.batcher.as_ref().filter(|_| wanted.iter().all(is_default))
    }

    /// Runs a batch on the pool, and the next ones as long as they are due.
    pub(crate) fn submit_batch(self: &Arc<Self>, pool: &PoolHandle) {
        let Some(batcher) = &self.batcher else { return };
        let (this, again) = (self.clone(), pool.clone());
        let submitted = pool.submit(&self.queue, CancelToken::default(), move |cancel| {
            let Some(batcher) = &this.batcher else { return };
            let record = |rows, took| this.statistics.record_run(rows, took);
            if batcher.run(&this.name, &*this.model, cancel, record) {
                this.submit_batch(&again);
            }
        });
        if let Err(error) = submitted {
            batcher.fail_all(&error);
        }
    }

    /// Cancels all requests, running and queued.
    pub(crate) fn close(&self, pool: &PoolHandle) {
        pool.close(&self.queue);
        if let Some(batcher) = &self.batcher {
            batcher.close();
        }
    }

    /// Runs on zeros, so that the first request finds a warm model with known latency. Fails with the reason if the
    /// model does.
    pub(crate) fn warm_up(&self, limit: Duration) -> Result<(), String> {
        let specs = self.model.inputs();
        let Some(inputs) = specs.iter().map(crate::runtime::zeros).collect::<Option<Vec<_>>>() else {
            return Ok(());
        };
        // Another size, or a text that is a number, could succeed.
        let conclusive = specs.iter().all(|spec| {
            spec.datatype != DataType::Bytes && spec.shape.iter().skip(1).all(|dimension| *dimension >= 0)
        });
        let cancel = CancelToken::with_deadline(Instant::now().checked_add(limit));
        for run in 1..=WARM_UP_RUNS {
            let started = Instant::now();
            let reason = match catch_panic(&self.name, &*self.model, &inputs, &[], &cancel) {
                Ok(_) if run == WARM_UP_RUNS => {
                    self.statistics.learn(elements_of(&inputs), started.elapsed());
                    return Ok(());
                }
                Ok(_) => continue,
                // One run was in time.
                Err(InferenceError::Cancelled) if run > 1 => return Ok(()),
                Err(InferenceError::Cancelled) => format!(
                    "a run on zeros takes longer than {} s; raise the parameter max_run_time",
                    limit.as_secs_f64()
                ),
                Err(InferenceError::Model(reason)) if conclusive => {
                    format!("a run on zeros failed: {reason}")
                }
                Err(error) => {
                    tracing::debug!(model = self.name, %error, "no warm-up: the model rejects zeros");
                    return Ok(());
                }
            };
            return Err(reason);
        }
        Ok(())
    }
}

pub(crate) fn rows_of(inputs: &[Tensor]) -> usize {
    inputs.first().and_then(|t| t.shape().first().copied()).unwrap_or(1)
}

pub(crate) fn elements_of(tensors: &[Tensor]) -> usize {
    tensors.iter().map(|t| t.elements().len()).sum()
}

/// Runs a model and converts panics to errors.
pub(crate) fn catch_panic(
    name: &str,
    model: &dyn Model,
    inputs: &[Tensor],
    wanted: &[&str],
    cancel: &CancelToken,
) -> Answer {
    catch_unwind(AssertUnwindSafe(|| model.infer(inputs, wanted, cancel))).unwrap_or_else(|_| {
        tracing::error!(model = name, "model panicked");
        Err(InferenceError::Model("the model panicked; see the log".into()))
    })
}
