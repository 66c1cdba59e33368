//! The run of a request.

use super::{
    RunContext,
    background::Background,
    external::Observed,
    record::{KeptTensors, Record},
    step,
    tensor::StepTensor,
};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use gantry_core::pipeline::{Run, RunError};
use gantry_oip::{Code, Error, InferTensor};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Runs a request to its response. `record` gets the steps that have ended, also of a run that fails.
pub(crate) async fn execute(
    context: &Arc<RunContext>,
    inputs: Vec<StepTensor>,
    record: &mut Record,
) -> Result<Vec<InferTensor>, Error> {
    let observed = Observed::new(context, &inputs);
    let kept = context.keeps_tensors().then(|| StepTensor::all_uncharged(&inputs));
    record.tensors = kept.map(|inputs| KeptTensors { inputs, outputs: Vec::new() });
    let run = Run::start(Arc::clone(&context.graph), inputs, context.elapsed_ms());
    let steps = FuturesUnordered::new();
    let mut execution = Execution { context: Arc::clone(context), run, steps, observed };
    let outcome = execution.outcome(record).await;
    let finished = if context.durable && outcome.is_ok() { execution.finish(record).await } else { Ok(()) };
    record.skipped = execution.run.skipped();
    let has_output = context.graph.has_output();
    // A response does not depend on these steps; the run is repeated only if they may succeed then.
    if let Err(error) = finished
        && (!has_output || error.code != Code::StepFailed)
    {
        return Err(error);
    }
    let outputs = match outcome? {
        Ok(outputs) => outputs,
        Err(RunError::NoOutput { .. }) if context.durable && !has_output => return Ok(Vec::new()),
        Err(error) => {
            if matches!(error, RunError::NoOutput { .. }) {
                execution.finish_in_background();
            }
            return Err(Error::new(Code::StepFailed, format!("{} : {error}", context.pipeline.name)));
        }
    };
    if let Some(tensors) = &mut record.tensors {
        tensors.outputs = StepTensor::all_uncharged(&outputs);
    }
    if let Some(observed) = &mut execution.observed {
        observed.on_response(&outputs);
    }
    execution.finish_in_background();
    Ok(outputs.into_iter().map(StepTensor::into_tensor).collect())
}

struct Execution {
    context: Arc<RunContext>,
    run: Run<StepTensor>,
    steps: FuturesUnordered<BoxFuture<'static, step::Finished>>,
    observed: Option<Observed>,
}

impl Execution {
    async fn outcome(&mut self, record: &mut Record) -> Result<Result<Vec<StepTensor>, RunError>, Error> {
        loop {
            self.start_steps();
            if let Some(outcome) = self.run.outcome() {
                return Ok(outcome);
            }
            self.advance(record).await?;
        }
    }

    fn start_steps(&mut self) {
        while let Some(invocation) = self.run.next() {
            if let Some(observed) = &mut self.observed {
                observed.on_start(&self.context, invocation.step, &invocation.inputs);
            }
            let step = step::run(Arc::clone(&self.context), invocation.step, invocation.inputs);
            self.steps.push(step.boxed());
        }
    }

    /// Waits until a step ends or a join window closes.
    async fn advance(&mut self, record: &mut Record) -> Result<(), Error> {
        let deadline = self.context.deadline;
        let window = self.run.wake_at().map(|at| self.context.started + Duration::from_millis(at));
        let wake = window.map_or(deadline, |window| window.min(deadline));
        let finished = tokio::select! {
            biased;
            Some(finished) = self.steps.next() => finished,
            () = tokio::time::sleep_until(wake) => {
                if Instant::now() >= deadline {
                    return Err(self.deadline_exceeded());
                }
                self.run.tick(self.context.elapsed_ms());
                return Ok(());
            }
        };
        record.add(&finished);
        match finished.outputs {
            Ok(outputs) => {
                if let Some(observed) = &mut self.observed {
                    observed.on_end(&self.context, finished.step, &outputs);
                }
                self.run.complete(finished.step, outputs, self.context.elapsed_ms());
            }
            Err(error) if error.code == Code::DeadlineExceeded && Instant::now() >= deadline => {
                return Err(self.deadline_exceeded());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn deadline_exceeded(&self) -> Error {
        let RunContext { pipeline, started, deadline, .. } = &*self.context;
        let seconds = deadline.saturating_duration_since(*started).as_secs_f64();
        let steps: Vec<&str> = self.run.in_flight().map(|step| &**step).collect();
        let message = format!(
            "pipeline {} did not respond within {seconds:.1} s: it waits for {}",
            pipeline.name,
            if steps.is_empty() { "a join window".to_owned() } else { format!("step {}", steps.join(", ")) }
        );
        Error::new(Code::DeadlineExceeded, message)
    }

    /// Steps that do not contribute to the response run to their end, within the deadline of the request. Returns their
    /// first error.
    async fn finish(&mut self, record: &mut Record) -> Result<(), Error> {
        let mut result = Ok(());
        self.start_steps();
        while !self.steps.is_empty() && Instant::now() < self.context.deadline {
            result = result.and(self.advance(record).await);
            self.start_steps();
        }
        result
    }

    /// Steps that do not contribute to the response run to their end, within the deadline of the request. Then the
    /// pipelines start that read this one.
    fn finish_in_background(mut self) {
        self.start_steps();
        if self.steps.is_empty() {
            if let Some(observed) = &self.observed {
                observed.start_observers(&self.context);
            }
            return;
        }
        let Some(counted) = Background::new(&self.context.worker) else { return };
        tokio::spawn(async move {
            while !self.steps.is_empty() {
                if self.advance(&mut Record::default()).await.is_err() {
                    break;
                }
                self.start_steps();
            }
            if let Some(observed) = &self.observed {
                observed.start_observers(&self.context);
            }
            drop(counted);
        });
    }
}
