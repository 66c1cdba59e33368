//! The last runs of a pipeline, for `gantry pipeline inspect`: steps, times and tensor names; tensors only if the gateway
//! is configured to keep them.

use super::{Record, RunContext, record::millis, tensor::StepTensor};
use gantry_oip::{Error, InferResponse, InferTensor, rest};
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Runs of one pipeline.
const KEPT_RUNS: usize = 16;
/// Of all pipelines.
const KEPT_BYTES: usize = 64 << 20;
/// Estimate of a run, and of each of its steps, without tensors.
const RECORD_BYTES: usize = 512;

#[derive(Default)]
pub(crate) struct RecentRuns(Mutex<VecDeque<Arc<KeptRun>>>);

struct KeptRun {
    request_id: String,
    at: SystemTime,
    version: u32,
    took: Duration,
    error: Option<String>,
    record: Record,
    _kept: Kept,
}

/// Memory of kept runs, and of data that waits for other runs, of all pipelines.
#[derive(Default)]
pub(crate) struct KeptMemory(AtomicUsize);

/// A part of it until dropped.
pub(super) struct Kept {
    memory: Arc<KeptMemory>,
    bytes: usize,
}

impl Kept {
    pub(super) fn new(memory: &Arc<KeptMemory>, bytes: usize) -> Option<Self> {
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= KEPT_BYTES);
        memory.0.fetch_update(Relaxed, Relaxed, add).ok()?;
        Some(Self { memory: Arc::clone(memory), bytes })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.bytes, Relaxed);
    }
}

impl RecentRuns {
    /// Keeps a run instead of the oldest ones. Tensors that do not fit are left out.
    pub(crate) fn keep(&self, context: &RunContext, mut record: Record, error: Option<&Error>) {
        let memory = &context.worker.shared.kept_memory;
        let smallest = (1 + record.steps.len()) * RECORD_BYTES;
        let mut bytes = smallest + record.bytes();
        let kept = loop {
            if let Some(kept) = Kept::new(memory, bytes) {
                break kept;
            }
            if self.lock().pop_front().is_none() {
                if bytes == smallest {
                    return;
                }
                record.drop_tensors();
                bytes = smallest;
            }
        };
        let run = KeptRun {
            request_id: context.request_id.to_str().unwrap_or_default().to_owned(),
            at: SystemTime::now(),
            version: context.pipeline.version,
            took: context.started.elapsed(),
            error: error.map(|error| error.message.clone()),
            record,
            _kept: kept,
        };
        let mut runs = self.lock();
        // Dropped after the lock is released.
        let oldest = if runs.len() >= KEPT_RUNS { runs.pop_front() } else { None };
        runs.push_back(Arc::new(run));
        drop(runs);
        drop(oldest);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<KeptRun>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The runs, newest first.
    pub(crate) fn to_json(&self, pipeline: &str) -> Value {
        let runs: Vec<_> = self.lock().iter().rev().map(Arc::clone).collect();
        let runs: Vec<Value> = runs.iter().map(|run| run.to_json()).collect();
        json!({ "pipeline": pipeline, "runs": runs })
    }
}

impl KeptRun {
    fn to_json(&self) -> Value {
        let at = self.at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let steps: Vec<Value> = self
            .record
            .steps
            .iter()
            .map(|step| {
                let mut fields = step.to_json();
                if let (Some(tensors), Some(fields)) = (&step.tensors, fields.as_object_mut()) {
                    fields.insert("input_tensors".into(), tensors_to_json(&tensors.inputs));
                    fields.insert("output_tensors".into(), tensors_to_json(&tensors.outputs));
                }
                fields
            })
            .collect();
        let mut run = json!({
            "request_id": self.request_id,
            "time_ms": u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
            "version": self.version,
            "ms": millis(self.took),
            "steps": steps,
            "skipped": self.record.skipped_to_json(),
        });
        if let Some(fields) = run.as_object_mut() {
            if let Some(error) = &self.error {
                fields.insert("error".into(), error.as_str().into());
            }
            if let Some(tensors) = &self.record.tensors {
                fields.insert("input_tensors".into(), tensors_to_json(&tensors.inputs));
                fields.insert("output_tensors".into(), tensors_to_json(&tensors.outputs));
            }
        }
        run
    }
}

/// The form of the Open Inference Protocol; without `data` if it is no text.
fn tensors_to_json(tensors: &[StepTensor]) -> Value {
    let one = |tensor: &StepTensor| {
        let tensor: InferTensor = tensor.uncharged().into_tensor();
        let (name, shape) = (tensor.tensor.name().to_owned(), tensor.tensor.shape().to_vec());
        let datatype = tensor.tensor.datatype().name();
        let response = InferResponse { outputs: vec![tensor], ..InferResponse::default() };
        let encoded = rest::encode_response(&response, &gantry_oip::InferRequest::default()).ok();
        let parsed: Option<Value> = encoded.and_then(|encoded| serde_json::from_slice(&encoded.body).ok());
        parsed
            .and_then(|mut parsed| Some(parsed.get_mut("outputs")?.get_mut(0)?.take()))
            .unwrap_or_else(|| json!({ "name": name, "shape": shape, "datatype": datatype }))
    };
    tensors.iter().map(one).collect()
}
