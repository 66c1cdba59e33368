//! One step: a call of the model of the same name.

use super::{
    RunContext, codec, mirror,
    record::{KeptTensors, StepRecord},
    tensor::StepTensor,
};
use crate::serve::{Call, Head, Target, Wanted, memory_exhausted};
use gantry_core::pipeline::{StepId, Tensor as _};
use gantry_oip::{Code, Error, InferRequest, InferTensor, Limits, grpc::MODEL_INFER};
use gantry_transport::{Protocol, body::Payload};
use http::{HeaderValue, Method, Uri};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// A step that has ended.
pub(super) struct Finished {
    pub(super) step: StepId,
    pub(super) outputs: Result<Vec<StepTensor>, Error>,
    /// The code of the error before it became that of a step.
    pub(super) failure: Option<Code>,
    name: Arc<str>,
    start: Duration,
    took: Duration,
    served_by: Option<ServedBy>,
    inputs: Vec<String>,
    /// If tensors are kept.
    kept_inputs: Option<Vec<StepTensor>>,
}

/// The replica of a step.
#[derive(Clone)]
pub(super) struct ServedBy {
    replica: String,
    route: HeaderValue,
}

impl Finished {
    pub(super) fn record(&self) -> StepRecord {
        let names = |tensors: &[StepTensor]| tensors.iter().map(|t| t.name().to_owned()).collect();
        StepRecord {
            step: Arc::clone(&self.name),
            start: self.start,
            took: self.took,
            replica: self.served_by.as_ref().map(|by| by.replica.clone()),
            route: self.served_by.as_ref().map(|by| by.route.clone()),
            inputs: self.inputs.clone(),
            outputs: self.outputs.as_deref().map(names).unwrap_or_default(),
            error: self.outputs.as_ref().err().map(|error| error.message.clone()),
            tensors: self.kept_inputs.clone().map(|inputs| KeptTensors {
                inputs,
                outputs: self.outputs.as_deref().map(StepTensor::all_uncharged).unwrap_or_default(),
            }),
        }
    }
}

pub(super) async fn run(context: Arc<RunContext>, step: StepId, inputs: Vec<StepTensor>) -> Finished {
    let started = Instant::now();
    let name = Arc::clone(context.graph.step_name(step));
    let kept_inputs = context.keeps_tensors().then(|| StepTensor::all_uncharged(&inputs));
    let input_names = inputs.iter().map(|t| t.name().to_owned()).collect();
    let mut served_by = None;
    let answer = match context.pipeline.batches.of(&context.graph, step) {
        Some(batcher) => batcher.infer(&context, &name, inputs, &mut served_by).await,
        None => infer(&context, &name, inputs, false, &mut served_by).await,
    };
    let outputs = match answer {
        Ok(outputs) => {
            StepTensor::hold(outputs, &context.memory).map_err(|_| memory_exhausted(Protocol::Rest))
        }
        Err(error) => Err(error),
    };
    Finished {
        step,
        failure: outputs.as_ref().err().map(|error| error.code),
        outputs: outputs.map_err(|error| failed(&name, &error)),
        name,
        start: started.saturating_duration_since(context.started),
        took: started.elapsed(),
        served_by,
        inputs: input_names,
        kept_inputs,
    }
}

/// Other errors are overload, unavailability and the deadline.
pub(super) const fn is_of_the_model(code: Code) -> bool {
    !matches!(code, Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded)
}

fn failed(step: &str, error: &Error) -> Error {
    let code = if is_of_the_model(error.code) { Code::StepFailed } else { error.code };
    Error { code, message: format!("{step} : {}", error.message), retry_after: error.retry_after }
}

/// `is_mirror` keeps experiments from choosing another model.
pub(super) async fn infer(
    context: &Arc<RunContext>,
    model: &Arc<str>,
    inputs: Vec<StepTensor>,
    is_mirror: bool,
    served_by: &mut Option<ServedBy>,
) -> Result<Vec<InferTensor>, Error> {
    let worker = &context.worker;
    let wanted = Wanted::internal(model, is_mirror);
    let sticky = context.sticky.as_ref();
    let selected = worker.acquire_or_wake(wanted, sticky, Protocol::Rest, context.deadline).await;
    let in_flight = selected.map_err(|error| match error.code {
        // The pipeline exists; one of its models does not.
        Code::NotFound => Error { code: Code::Unavailable, retry_after: Some(1), ..error },
        _ => error,
    })?;
    if let Some(experiment) = in_flight.experiment.clone() {
        mirror::step(context, &experiment, &inputs);
    }
    *served_by = Some(ServedBy {
        replica: format!("{}-{}", in_flight.endpoint.server, in_flight.endpoint.replica),
        route: in_flight.version.route_header.clone(),
    });
    let bytes = inputs.iter().map(StepTensor::bytes).sum();
    let (inputs, _held): (Vec<InferTensor>, Vec<_>) = inputs.into_iter().map(StepTensor::split).unzip();
    let parameters = context.parameters.clone();
    let infer_request = InferRequest { inputs, parameters, ..InferRequest::default() };
    let local = in_flight.endpoint.local();
    let is_rest = local.is_none() && in_flight.endpoint.grpc_port == 0;
    let protocol = if is_rest { Protocol::Rest } else { Protocol::Grpc };
    let call = Call {
        model: Arc::clone(&in_flight.version.model),
        sticky: context.sticky.clone(),
        version: None,
        sequence: None,
        protocol,
        infer: true,
        started: Instant::now(),
        deadline: context.deadline,
        trace: context.trace.clone(),
        step: Some(Arc::clone(model)),
        is_component: false,
    };
    let mut headers = context.forwarded.clone();
    if let Some(local) = local {
        let response = worker.infer_local(&call, in_flight, &local.0, headers, infer_request).await?;
        return Ok(response.outputs);
    }
    let body = codec::encode(protocol, bytes, infer_request, &mut headers).await?;
    let head = Head { method: Method::POST, headers, request_id: context.request_id.clone() };
    let uri = Uri::from_static(MODEL_INFER);
    let target = match protocol {
        Protocol::Rest => Target::Rest { tail: "/infer", query: None, infer: true },
        Protocol::Grpc => Target::Grpc(&uri),
    };
    let limits = Limits { body: worker.shared.config.max_body, ..Limits::default() };
    let response = worker.forward(&call, in_flight, &target, head, Payload::Whole(body)).await?;
    let decoding =
        tokio::time::timeout_at(context.deadline, codec::decode(protocol, response, limits, &context.memory));
    let timed_out = |_| Error::new(Code::DeadlineExceeded, "the model did not respond in time");
    Ok(decoding.await.map_err(timed_out)??.outputs)
}
