//! Pipelines that read other pipelines: a run that succeeds starts them in the background, with its request ID.
//!
//! All data of one run arrives at once. A pipeline that reads several others waits for runs with the same request ID on this
//! gateway, as pipelines have that read one common pipeline.

use super::{Record, RunContext, background::Background, execute, recent::Kept, tensor::StepTensor};
use crate::{policy::balance::stable_hash, routes::Pipeline};
use gantry_core::pipeline::{External, ExternalJoin, ExternalKind, Externals, JoinStatus, StepId};
use gantry_transport::{Protocol, deadline, memory::ConnectionMemory};
use http::HeaderValue;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// Requests of a pipeline that wait for other runs.
const MAX_PENDING: usize = 1024;
/// Estimate of one without its tensors.
const PENDING_BYTES: usize = 2 << 10;
/// Pipelines that start each other one after another: cycles of pipelines end.
const MAX_HOPS: u8 = 8;

/// The data of a run, kept if other pipelines read it.
#[derive(Default)]
pub(super) struct Observed {
    inputs: Vec<StepTensor>,
    outputs: Vec<StepTensor>,
    /// By name; of a step that ran several times, the last data.
    step_inputs: HashMap<Arc<str>, Vec<StepTensor>>,
    step_outputs: HashMap<Arc<str>, Vec<StepTensor>>,
}

impl Observed {
    /// `None` if no pipeline reads this one.
    pub(super) fn new(context: &RunContext, inputs: &[StepTensor]) -> Option<Self> {
        let is_observed = !context.durable
            && context.hops < MAX_HOPS
            && context.worker.shared.routes.observers(&context.pipeline.name).is_some();
        is_observed.then(|| Self { inputs: inputs.to_vec(), ..Self::default() })
    }

    pub(super) fn on_start(&mut self, context: &RunContext, step: StepId, inputs: &[StepTensor]) {
        self.step_inputs.insert(Arc::clone(context.graph.step_name(step)), inputs.to_vec());
    }

    pub(super) fn on_end(&mut self, context: &RunContext, step: StepId, outputs: &[StepTensor]) {
        self.step_outputs.insert(Arc::clone(context.graph.step_name(step)), outputs.to_vec());
    }

    pub(super) fn on_response(&mut self, outputs: &[StepTensor]) {
        self.outputs = outputs.to_vec();
    }

    /// Starts the pipelines that read this run, or keeps its data for those that read other runs of the request too.
    pub(super) fn start_observers(&self, context: &Arc<RunContext>) {
        let routes = &context.worker.shared.routes;
        let observers = routes.observers(&context.pipeline.name).unwrap_or_default();
        for pipeline in observers.iter().filter_map(|name| routes.pipeline(name)) {
            // All runs of a request meet in one version.
            let pipeline = pipeline.pick(|| stable_hash(&[context.request_id.as_bytes()]));
            self.join(context, &pipeline);
        }
    }

    fn join(&self, context: &Arc<RunContext>, pipeline: &Arc<Pipeline>) {
        let Ok(graph) = pipeline.graph.clone() else { return };
        let Some(externals) = graph.external() else { return };
        let mut joins = pipeline.joins.lock();
        let mut pending = joins.remove(&context.request_id).unwrap_or_else(|| Pending {
            data: ExternalJoin::new(externals),
            context: Arc::new(RunContext {
                pipeline: Arc::clone(pipeline),
                graph: Arc::clone(&graph),
                hops: context.hops + 1,
                sticky: None,
                trace: None,
                ..RunContext::clone(context)
            }),
            window: None,
            kept: None,
        });
        let is_source = |source: &External| source.pipeline == context.pipeline.name;
        pending.data.arrive(externals, is_source, |source| self.source(source));
        match pending.data.status(externals, false) {
            JoinStatus::Ready => {
                drop(joins);
                pending.start(externals);
            }
            JoinStatus::Waiting => {
                let shared = &context.worker.shared;
                // Counts what arrived earlier again.
                drop(pending.kept.take());
                let bytes = PENDING_BYTES + pending.data.arrived().map(StepTensor::bytes).sum::<usize>();
                pending.kept = Kept::new(&shared.kept_memory, bytes);
                if pending.kept.is_none() || joins.len() >= MAX_PENDING {
                    shared.metrics.background_dropped.inc();
                    return;
                }
                let window = Duration::from_millis(externals.window_ms.into());
                let close = close_after(window, Arc::clone(pipeline), context.request_id.clone());
                pending.window.get_or_insert_with(|| AbortOnDropHandle::new(tokio::spawn(close)));
                joins.insert(context.request_id.clone(), pending);
            }
            JoinStatus::Impossible => {}
        }
    }

    /// The tensors of a source; none if it has none. They are charged where they are kept or used.
    fn source(&self, external: &External) -> Vec<StepTensor> {
        let tensors = match &external.kind {
            ExternalKind::Inputs => Some(&self.inputs),
            ExternalKind::Outputs => Some(&self.outputs),
            ExternalKind::StepInputs(step) => self.step_inputs.get(step),
            ExternalKind::StepOutputs(step) => self.step_outputs.get(step),
        };
        tensors.into_iter().flatten().map(StepTensor::uncharged).collect()
    }
}

/// Joins of a pipeline that wait for other runs, by request ID.
#[derive(Default)]
pub(crate) struct PendingJoins(Mutex<HashMap<HeaderValue, Pending>>);

impl PendingJoins {
    fn lock(&self) -> MutexGuard<'_, HashMap<HeaderValue, Pending>> {
        // Poisoning is harmless: every change is a single insertion or removal.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Pending {
    data: ExternalJoin<StepTensor>,
    /// Of the run that starts; its times and its memory are set then.
    context: Arc<RunContext>,
    /// Ends the join.
    window: Option<AbortOnDropHandle<()>>,
    kept: Option<Kept>,
}

async fn close_after(window: Duration, pipeline: Arc<Pipeline>, request_id: HeaderValue) {
    tokio::time::sleep(window).await;
    let Some(pending) = pipeline.joins.lock().remove(&request_id) else { return };
    if let Some(externals) = pending.context.graph.clone().external()
        && pending.data.status(externals, true) == JoinStatus::Ready
    {
        pending.start(externals);
    }
}

impl Pending {
    fn start(self, externals: &Externals) {
        let Some(counted) = Background::new(&self.context.worker) else { return };
        let shared = Arc::clone(&self.context.worker.shared);
        let memory = ConnectionMemory::new(&shared.memory);
        let Ok(inputs) = StepTensor::hold_again(self.data.into_inputs(externals), &memory) else {
            shared.metrics.background_dropped.inc();
            return;
        };
        let started = Instant::now();
        let context = Arc::new(RunContext {
            memory,
            started,
            deadline: deadline(started, shared.config.request_timeout),
            ..RunContext::clone(&self.context)
        });
        tokio::spawn(async move {
            let mut record = Record::default();
            let attribution = context.pipeline.attribute();
            let answer = execute(&context, inputs, &mut record).await;
            if let Some(attribution) = attribution {
                let class = record.result_class(Protocol::Grpc, answer.as_ref().err());
                attribution.record(class, Instant::now());
            }
            let code = answer.as_ref().err().map_or(Protocol::Grpc.ok(), |e| Protocol::Grpc.code(e));
            let (metrics, took) = (&context.pipeline.metrics, started.elapsed());
            shared.metrics.record_pipeline(metrics, Protocol::Grpc, code, took);
            context.pipeline.recent.keep(&context, record, answer.err().as_ref());
            drop(counted);
        });
    }
}
