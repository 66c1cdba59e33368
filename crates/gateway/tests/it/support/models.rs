//! A server of models that compute on texts: the value of an output says which model made it from which inputs.

use super::{Answer, Running, config, event, local_endpoint, remote_endpoint, route};
use crate::support::FakeRemote;
use bytes::Bytes;
use futures::future::BoxFuture;
use gantry_oip::{
    Code, Error, InferRequest, InferResponse, InferTensor, Limits, grpc, rest,
    server::{InferenceServer, Reply, grpc_error, grpc_reply, inferred, rest_error},
};
use gantry_proto::{
    gantry::{Endpoint, PipelineRoute, route_event::Event},
    inference as pb,
    scheduler::{Pipeline, PipelineOutput, PipelineStep},
};
use gantry_tensor::{Elements, Tensor};
use http::{HeaderMap, Request, Response};
use prost::Message as _;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::Notify;

#[derive(Clone)]
enum Behaviour {
    /// Tensors with these names, call by call; the last ones repeat.
    Returns(Vec<Vec<String>>),
    Fails(Code, String),
    /// `y` with a value for each row of the first input; a value `bad` fails the call.
    ByRow,
    /// Until `release`.
    Waits,
}

#[derive(Default)]
pub(crate) struct FakeModels {
    behaviours: Mutex<HashMap<String, Behaviour>>,
    /// Names of the models in the order of their calls.
    pub(crate) called: Mutex<Vec<String>>,
    /// The model and inputs of each call.
    inputs: Mutex<Vec<(String, String)>>,
    pub(crate) headers: Mutex<Vec<HeaderMap>>,
    /// Calls on values.
    pub(crate) typed: AtomicUsize,
    /// Calls that were cancelled.
    pub(crate) cancelled: Arc<AtomicUsize>,
    released: Notify,
}

struct CountCancelled(Arc<AtomicUsize>, bool);

impl Drop for CountCancelled {
    fn drop(&mut self) {
        if !self.1 {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl FakeModels {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The model returns these tensors instead of `y`.
    pub(crate) fn returns(&self, model: &str, tensors: &[&str]) {
        self.set(model, Behaviour::Returns(vec![tensors.iter().map(|&t| t.to_owned()).collect()]));
    }

    /// The models return these tensors call by call, and all others `y`.
    pub(crate) fn start_over(&self, models: &HashMap<String, Vec<String>>) {
        let tensors = |call: &String| call.split_whitespace().map(str::to_owned).collect();
        let returned = models
            .iter()
            .map(|(model, calls)| (model.clone(), Behaviour::Returns(calls.iter().map(tensors).collect())));
        *self.behaviours.lock().unwrap() = returned.collect();
        self.called.lock().unwrap().clear();
        self.inputs.lock().unwrap().clear();
    }

    /// The model maps rows to rows.
    pub(crate) fn by_row(&self, model: &str) {
        self.set(model, Behaviour::ByRow);
    }

    pub(crate) fn fails(&self, model: &str, code: Code, message: &str) {
        self.set(model, Behaviour::Fails(code, message.into()));
    }

    pub(crate) fn waits(&self, model: &str) {
        self.set(model, Behaviour::Waits);
    }

    /// Ends the calls that wait.
    pub(crate) fn release(&self) {
        self.behaviours.lock().unwrap().retain(|_, b| !matches!(b, Behaviour::Waits));
        self.released.notify_waiters();
    }

    fn set(&self, model: &str, behaviour: Behaviour) {
        self.behaviours.lock().unwrap().insert(model.into(), behaviour);
    }

    fn behaviour(&self, model: &str) -> Behaviour {
        let known = self.behaviours.lock().unwrap().get(model).cloned();
        known.unwrap_or_else(|| Behaviour::Returns(vec![vec!["y".into()]]))
    }

    /// Calls of a model, with its version.
    pub(crate) fn calls(&self, internal: &str) -> usize {
        self.called.lock().unwrap().iter().filter(|called| *called == internal).count()
    }

    /// The inputs of a model's calls.
    pub(crate) fn inputs(&self, internal: &str) -> Vec<String> {
        let inputs = self.inputs.lock().unwrap();
        inputs.iter().filter(|(model, _)| model == internal).map(|(_, inputs)| inputs.clone()).collect()
    }

    async fn answer(&self, internal: &str, request: &InferRequest) -> Result<InferResponse, Error> {
        self.inputs.lock().unwrap().push((internal.to_owned(), shown(&request.inputs)));
        let call = {
            let mut called = self.called.lock().unwrap();
            called.push(internal.to_owned());
            called.iter().filter(|model| **model == internal).count() - 1
        };
        let mut watch = CountCancelled(Arc::clone(&self.cancelled), false);
        let model = internal.rsplit_once('_').map_or(internal, |(model, _)| model);
        let mut behaviour = self.behaviour(model);
        while matches!(behaviour, Behaviour::Waits) {
            let mut released = std::pin::pin!(self.released.notified());
            released.as_mut().enable();
            behaviour = self.behaviour(model);
            if matches!(behaviour, Behaviour::Waits) {
                released.await;
            }
        }
        watch.1 = true;
        match behaviour {
            Behaviour::Fails(code, message) => Err(Error::new(code, message)),
            Behaviour::Returns(calls) => {
                let names = calls.get(call).or(calls.last()).unwrap();
                let value = format!("{model}({})", shown(&request.inputs));
                let output = |name: &String| text(name, &value).into();
                let outputs = names.iter().map(output).collect();
                Ok(InferResponse { model_name: internal.into(), outputs, ..InferResponse::default() })
            }
            Behaviour::ByRow => {
                let input = &request.inputs[0].tensor;
                let Elements::Bytes(rows) = input.elements() else { panic!("{input:?}") };
                if rows.iter().any(|row| row == "bad") {
                    return Err(Error::invalid("a row is bad"));
                }
                let row = |row: &Bytes| format!("{model}({})", std::str::from_utf8(row).unwrap()).into();
                let rows = Elements::Bytes(rows.iter().map(row).collect());
                let outputs = vec![Tensor::new("y", input.shape(), rows).unwrap().into()];
                Ok(InferResponse { outputs, ..InferResponse::default() })
            }
            Behaviour::Waits => unreachable!(),
        }
    }

    async fn rest(&self, internal: &str, headers: &HeaderMap, body: Bytes) -> Result<Response<Reply>, Error> {
        let request = rest::decode_request(body, rest::header_length(headers)?, &Limits::default())?;
        let response = self.answer(internal, &request).await?;
        Ok(inferred(rest::encode_response(&response, &request)?))
    }

    async fn grpc(&self, internal: &str, body: &Bytes) -> Result<Response<Reply>, Error> {
        let message = grpc::decode_frame(body, None, 1 << 26)?;
        let message = pb::ModelInferRequest::decode(message).unwrap();
        let request = grpc::decode_request(message, &Limits::default())?;
        let response = self.answer(internal, &request).await?;
        Ok(grpc_reply(&grpc::encode_response(response, &request)))
    }
}

impl InferenceServer for FakeModels {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Response<Reply>> {
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            self.headers.lock().unwrap().push(parts.headers.clone());
            let internal = parts.headers.get("seldon-internal-model").map_or("", |v| v.to_str().unwrap());
            if parts.uri.path().starts_with(grpc::SERVICE) {
                self.grpc(internal, &body).await.unwrap_or_else(|error| grpc_error(&error))
            } else {
                self.rest(internal, &parts.headers, body).await.unwrap_or_else(|error| rest_error(&error))
            }
        })
    }

    fn infer(
        &self,
        request: InferRequest,
        headers: HeaderMap,
    ) -> BoxFuture<'_, Result<InferResponse, Error>> {
        Box::pin(async move {
            self.typed.fetch_add(1, Ordering::SeqCst);
            self.headers.lock().unwrap().push(headers);
            self.answer(&request.model_name, &request).await
        })
    }
}

fn text(name: &str, value: &str) -> Tensor {
    Tensor::new(name, [1], Elements::Bytes(vec![value.to_owned().into()])).unwrap()
}

/// `x=1,y=1`.
fn shown(tensors: &[InferTensor]) -> String {
    let value = |t: &Tensor| match t.elements() {
        Elements::Bytes(values) => values.iter().map(|v| String::from_utf8(v.to_vec()).unwrap()).collect(),
        other => vec![format!("{} elements", other.len())],
    };
    let tensors: Vec<_> =
        tensors.iter().map(|t| format!("{}={}", t.tensor.name(), value(&t.tensor).join("+"))).collect();
    tensors.join(",")
}

/// Where the models of a pipeline are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    Local,
    Grpc,
    Rest,
}

/// A gateway with models.
pub(crate) struct Pipelined {
    pub(crate) running: Running,
    pub(crate) models: Arc<FakeModels>,
    pub(crate) remote: FakeRemote,
    pub(crate) placement: Placement,
}

impl Pipelined {
    pub(crate) async fn start(placement: Placement) -> Self {
        Self::start_with(placement, config()).await
    }

    pub(crate) async fn start_with(placement: Placement, config: gantry_gateway::Config) -> Self {
        Self::prepared(placement, config, |_| {}).await
    }

    pub(crate) async fn prepared(
        placement: Placement,
        config: gantry_gateway::Config,
        prepare: impl FnOnce(&gantry_gateway::Gateway),
    ) -> Self {
        let models = FakeModels::new();
        let remote = FakeRemote::start(Arc::clone(&models)).await;
        let running = Running::start(config, |gateway| {
            gateway.register_local("builtin", 0, Arc::clone(&models) as _);
            prepare(gateway);
        });
        Self { running, models, remote, placement }
    }

    pub(crate) async fn local() -> Self {
        Self::start(Placement::Local).await
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        let remote = remote_endpoint("mlserver", 0, self.remote.address);
        match self.placement {
            Placement::Local => local_endpoint("builtin", 0),
            Placement::Grpc => Endpoint { http_port: 0, ..remote },
            Placement::Rest => Endpoint { grpc_port: 0, ..remote },
        }
    }

    /// Routes version 1 of a model.
    pub(crate) fn model(&self, name: &str) {
        self.running.route(route(name, &[(1, 1, &[self.endpoint()])]));
    }

    pub(crate) fn apply(&self, change: Event) {
        self.running.routes.apply(event(change));
    }

    /// Routes the pipeline, and version 1 of the models of its steps.
    pub(crate) fn pipeline(&self, definition: Pipeline) {
        for step in &definition.steps {
            self.model(&step.name);
        }
        self.apply(Event::UpsertPipeline(pipeline_route(definition)));
    }

    pub(crate) async fn infer(&self, pipeline: &str, inputs: &[&str]) -> Answer {
        self.send(pipeline, &[], inputs).await
    }

    pub(crate) async fn send(&self, pipeline: &str, headers: &[(&str, &str)], inputs: &[&str]) -> Answer {
        let path = format!("/v2/pipelines/{pipeline}/infer");
        self.running.client().send("POST", &path, headers, request(inputs)).await
    }
}

pub(crate) fn pipeline_route(definition: Pipeline) -> PipelineRoute {
    PipelineRoute {
        pipeline: definition.name.clone(),
        definition: Some(definition),
        ready: true,
        ..PipelineRoute::default()
    }
}

/// Inputs with the value `1`.
pub(crate) fn request(inputs: &[&str]) -> String {
    let input =
        |name: &&str| serde_json::json!({ "name": name, "shape": [1], "datatype": "BYTES", "data": ["1"] });
    serde_json::json!({ "id": "7", "inputs": inputs.iter().map(input).collect::<Vec<_>>() }).to_string()
}

/// An input with these rows.
pub(crate) fn rows(rows: &[&str]) -> String {
    let input = serde_json::json!({ "name": "x", "shape": [rows.len()], "datatype": "BYTES", "data": rows });
    serde_json::json!({ "inputs": [input] }).to_string()
}

/// The outputs of a response, as `y=1`.
pub(crate) fn outputs(answer: &Answer) -> String {
    match rest::decode_response(answer.body.clone(), None, &Limits::default()) {
        Ok(response) => shown(&response.outputs),
        Err(_) => answer.text().to_owned(),
    }
}

pub(crate) fn grpc_request(inputs: &[&str]) -> pb::ModelInferRequest {
    let inputs = inputs.iter().map(|name| text(name, "1").into()).collect();
    grpc::encode_request(InferRequest { id: "7".into(), inputs, ..InferRequest::default() })
}

pub(crate) fn grpc_outputs(response: pb::ModelInferResponse) -> String {
    shown(&grpc::decode_response(response, &Limits::default()).unwrap().outputs)
}

/// Version 1 of a pipeline.
pub(crate) fn pipeline(name: &str, steps: Vec<PipelineStep>, output: &[&str]) -> Pipeline {
    Pipeline {
        name: name.into(),
        uid: format!("{name}-1"),
        version: 1,
        steps,
        output: Some(PipelineOutput {
            steps: output.iter().map(|&s| s.to_owned()).collect(),
            ..PipelineOutput::default()
        }),
        ..Pipeline::default()
    }
}

pub(crate) fn step(name: &str, inputs: &[&str]) -> PipelineStep {
    let inputs = inputs.iter().map(|&i| i.to_owned()).collect();
    PipelineStep { name: name.into(), inputs, ..PipelineStep::default() }
}
