//! Copies of requests to the mirrors of experiments in front of pipelines and of the models of steps.

use super::{Record, RunContext, execute, step, tensor::StepTensor};
use crate::{
    routes::Experiment,
    serve::{MIRROR_TIMEOUT, Worker},
};
use gantry_transport::deadline;
use std::sync::Arc;
use tokio::time::Instant;

/// Copies a share of a step's requests.
pub(super) fn step(context: &Arc<RunContext>, experiment: &Experiment, inputs: &[StepTensor]) {
    let bytes = inputs.iter().map(StepTensor::bytes).sum();
    let Some((mirrored, held)) = context.worker.mirrored(experiment, bytes) else { return };
    let context = Arc::new(copy(context));
    let inputs = StepTensor::all_uncharged(inputs);
    tokio::spawn(async move {
        let mut served_by = None;
        let answering = step::infer(&context, &mirrored.target, inputs, true, &mut served_by);
        let _ = tokio::time::timeout_at(context.deadline, answering).await;
        drop((held, mirrored));
    });
}

impl Worker {
    /// Copies a share of a pipeline's requests.
    pub(crate) fn mirror_pipeline(
        self: &Arc<Self>,
        experiment: &Experiment,
        context: &RunContext,
        inputs: &[StepTensor],
    ) {
        let bytes = inputs.iter().map(StepTensor::bytes).sum();
        let Some((mirrored, held)) = self.mirrored(experiment, bytes) else { return };
        let Some(pipeline) = self.shared.routes.pipeline(&mirrored.target) else { return };
        let pipeline = pipeline.pick(|| fastrand::u64(..));
        let Ok(graph) = pipeline.graph.clone() else { return };
        let context = Arc::new(RunContext { pipeline, graph, ..copy(context) });
        let inputs = StepTensor::all_uncharged(inputs);
        tokio::spawn(async move {
            let _ = execute(&context, inputs, &mut Record::default()).await;
            drop((held, mirrored));
        });
    }
}

/// With a deadline and a memory budget of its own.
fn copy(context: &RunContext) -> RunContext {
    let started = Instant::now();
    RunContext {
        started,
        deadline: deadline(started, MIRROR_TIMEOUT),
        memory: Arc::clone(&context.worker.shared.mirrors.memory),
        sticky: None,
        trace: None,
        ..context.clone()
    }
}
