//! Pipelines that read other pipelines: a run that succeeds starts them in the background, with its request ID.
//!
//! All data of one run is joined. Sources of a third pipeline do not arrive in it: an inner join with them does not start.

use super::{Record, RunContext, background::Background, execute, tensor::StepTensor};
use crate::routes::Pipeline;
use gantry_core::pipeline::{External, ExternalKind, Join, StepId, Tensor as _};
use gantry_transport::{Protocol, deadline, memory::ConnectionMemory};
use std::{collections::HashMap, sync::Arc};
use tokio::time::Instant;

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
        let is_observed = context.hops < MAX_HOPS
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

    /// Starts the pipelines that read this run.
    pub(super) fn start_observers(&self, context: &Arc<RunContext>) {
        let routes = &context.worker.shared.routes;
        let observers = routes.observers(&context.pipeline.name).unwrap_or_default();
        for pipeline in observers.iter().filter_map(|name| routes.pipeline(name)) {
            self.start(context, pipeline);
        }
    }

    fn start(&self, context: &Arc<RunContext>, pipeline: Arc<Pipeline>) {
        let Ok(graph) = pipeline.graph.clone() else { return };
        let Some(join) = &pipeline.external else { return };
        let source = |external: &External| self.source(&context.pipeline.name, external);
        let triggers = graph.external_triggers();
        if !triggers.is_empty() && joined(triggers.iter().map(source), join.triggers_join).is_none() {
            return;
        }
        let renamed = |external: &External| {
            let tensors = source(external)?;
            Some(tensors.into_iter().map(|tensor| join.renamed(external, tensor)).collect())
        };
        let inputs = joined(graph.external_inputs().iter().map(renamed), join.join);
        let Some(inputs) = inputs else { return };
        let Some(counted) = Background::new(&context.worker) else { return };
        let shared = Arc::clone(&context.worker.shared);
        let memory = ConnectionMemory::new(&shared.memory);
        let Ok(inputs) = StepTensor::hold_again(inputs, &memory) else {
            shared.metrics.background_dropped.inc();
            return;
        };
        let started = Instant::now();
        let context = Arc::new(RunContext {
            pipeline,
            graph,
            memory,
            started,
            deadline: deadline(started, shared.config.request_timeout),
            hops: context.hops + 1,
            sticky: None,
            trace: None,
            ..RunContext::clone(context)
        });
        tokio::spawn(async move {
            let mut record = Record::default();
            let answer = execute(&context, inputs, &mut record).await;
            let code = answer.as_ref().err().map_or(Protocol::Grpc.ok(), |e| Protocol::Grpc.code(e));
            let (metrics, took) = (&context.pipeline.metrics, started.elapsed());
            shared.metrics.record_pipeline(metrics, Protocol::Grpc, code, took);
            context.pipeline.recent.keep(&context, record, answer.err().as_ref());
            drop(counted);
        });
    }

    /// The tensors of a source; `None` if it has none.
    fn source(&self, pipeline: &str, external: &External) -> Option<Vec<StepTensor>> {
        if &*external.pipeline != pipeline {
            return None;
        }
        let tensors = match &external.kind {
            ExternalKind::Inputs => &self.inputs,
            ExternalKind::Outputs => &self.outputs,
            ExternalKind::StepInputs(step) => self.step_inputs.get(step)?,
            ExternalKind::StepOutputs(step) => self.step_outputs.get(step)?,
        };
        let is_read =
            |tensor: &&StepTensor| external.tensor.as_deref().is_none_or(|name| tensor.name() == name);
        let read: Vec<StepTensor> = tensors.iter().filter(is_read).cloned().collect();
        (!read.is_empty()).then_some(read)
    }
}

fn joined(mut sources: impl Iterator<Item = Option<Vec<StepTensor>>>, join: Join) -> Option<Vec<StepTensor>> {
    match join {
        Join::Inner => sources.collect::<Option<Vec<_>>>().map(|all| all.concat()),
        Join::Outer => Some(sources.flatten().flatten().collect::<Vec<_>>()),
        Join::Any => sources.find_map(|source| source),
    }
    .filter(|tensors| !tensors.is_empty())
}
