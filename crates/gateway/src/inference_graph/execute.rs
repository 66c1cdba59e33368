//! The request of a graph.

use super::{GraphRequest, InferenceGraph, StepClient, StepRequest, StepResponse};
use bytes::Bytes;
use futures::{
    StreamExt as _,
    future::{AbortHandle, abortable},
    stream::FuturesUnordered,
};
use gantry_core::inference_graph::{Call, CallId, Context, Failure, Response, Run, error_body, is_valid};
use gantry_transport::memory::ConnectionMemory;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Calls of one request that run side by side.
const MAX_PARALLEL: usize = 64;
/// Larger bodies are evaluated off the event loop.
const SMALL: usize = 256 << 10;

/// Executes a request to its response; failures are responses with an error body.
pub async fn execute<C: StepClient>(
    graph: &InferenceGraph,
    client: &C,
    request: GraphRequest<'_>,
) -> http::Response<Bytes> {
    let started = Instant::now();
    let of_graph = graph.timeout.and_then(|timeout| started.checked_add(timeout));
    let deadline = of_graph.map_or(request.deadline, |of_graph| of_graph.min(request.deadline));
    let execution = Execution {
        graph,
        client,
        headers: graph.propagated.select(request.headers),
        memory: request.memory,
        started,
        deadline,
    };
    match execution.outcome(request.body).await {
        Ok(Response { status, body }) => {
            let text = body.clone();
            let is_json = off_the_event_loop(body.len(), move || is_valid(&text)).await;
            respond(status, body, is_json.unwrap_or(false))
        }
        Err(Failure { status, cause }) => {
            let mut response = respond(status, error_body(&cause).into(), true);
            if status == StatusCode::SERVICE_UNAVAILABLE.as_u16() {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            response
        }
    }
}

fn respond(status: u16, body: Bytes, is_json: bool) -> http::Response<Bytes> {
    let mut response = http::Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if is_json {
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
    }
    response
}

struct Execution<'a, C> {
    graph: &'a InferenceGraph,
    client: &'a C,
    headers: HeaderMap,
    memory: Arc<ConnectionMemory>,
    started: Instant,
    deadline: Instant,
}

/// Random numbers, and bodies charged to the connection.
struct Charging(Arc<ConnectionMemory>);

impl Context<Bytes> for Charging {
    fn random(&mut self) -> u64 {
        fastrand::u64(..)
    }

    fn body(&mut self, bytes: Vec<u8>) -> Bytes {
        self.0.charge(bytes.into())
    }
}

impl<C: StepClient> Execution<'_, C> {
    async fn outcome(&self, body: Bytes) -> Result<Response<Bytes>, Failure> {
        let graph = Arc::clone(&self.graph.graph);
        let memory = Arc::clone(&self.memory);
        let size = body.len();
        let start = move || Run::start(graph, body, &mut Charging(memory));
        let mut run = off_the_event_loop(size, start).await?;
        let mut steps = FuturesUnordered::new();
        let mut in_flight: HashMap<CallId, (AbortHandle, String)> = HashMap::new();
        loop {
            for id in run.cancelled() {
                if let Some((call, _)) = in_flight.remove(&id) {
                    call.abort();
                }
            }
            if let Some(outcome) = run.outcome() {
                return outcome;
            }
            while in_flight.len() < MAX_PARALLEL
                && let Some(call) = run.next_call()
            {
                self.memory.check().map_err(|_| memory_exhausted())?;
                let (id, name) = (call.id, format!("step {} of node {}", call.step, call.node));
                let (call, abort) = abortable(self.call(call));
                in_flight.insert(id, (abort, name));
                steps.push(async move { (id, call.await) });
            }
            let finished = tokio::select! {
                biased;
                // Before a call that ends at the same deadline.
                () = tokio::time::sleep_until(self.deadline) => {
                    let names = in_flight.values().map(|(_, name)| name.as_str());
                    return Err(self.deadline_exceeded(names.collect()));
                }
                finished = steps.next() => finished,
            };
            let Some((id, response)) = finished else {
                return Err(Failure { status: 500, cause: "no step can run".into() });
            };
            // A cancelled call.
            let Ok(response) = response else { continue };
            in_flight.remove(&id);
            let response = response.map(|response| Response {
                status: response.status.as_u16(),
                body: self.memory.charge(response.body),
            });
            let size = response.as_ref().map_or(0, |response| response.body.len());
            let memory = Arc::clone(&self.memory);
            let complete = move || {
                run.complete(id, response, &mut Charging(memory));
                run
            };
            run = off_the_event_loop(size, complete).await?;
        }
    }

    async fn call(&self, call: Call<Bytes>) -> Result<StepResponse, String> {
        let of_step = self.graph.step_timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let deadline = of_step.map_or(self.deadline, |of_step| of_step.min(self.deadline));
        let response = self.client.call(StepRequest {
            target: call.target,
            headers: self.headers.clone(),
            body: call.input,
            deadline,
            node: call.node,
            step: call.step,
        });
        match of_step.filter(|of_step| *of_step < self.deadline) {
            None => response.await,
            Some(of_step) => tokio::time::timeout_at(of_step, response).await.unwrap_or_else(|_| {
                let seconds = self.graph.step_timeout.unwrap_or_default().as_secs_f64();
                Err(format!("no response within {seconds:.1} s (routerTimeouts.serviceClient)"))
            }),
        }
    }

    fn deadline_exceeded(&self, mut waiting: Vec<&str>) -> Failure {
        waiting.sort_unstable();
        let took: Duration = self.deadline.saturating_duration_since(self.started);
        let cause = format!(
            "graph {} did not respond within {:.1} s: it waits for {}",
            self.graph.name,
            took.as_secs_f64(),
            waiting.join(", ")
        );
        Failure { status: StatusCode::GATEWAY_TIMEOUT.as_u16(), cause }
    }
}

fn memory_exhausted() -> Failure {
    let cause = "the gateway is at its memory limit: retry in 1 s".to_owned();
    Failure { status: StatusCode::SERVICE_UNAVAILABLE.as_u16(), cause }
}

/// Runs work on a body of `bytes` bytes; off the event loop unless it is short.
async fn off_the_event_loop<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    if bytes <= SMALL {
        return Ok(work());
    }
    let failed = |_| Failure { status: 500, cause: "the body could not be evaluated; see the log".into() };
    tokio::task::spawn_blocking(work).await.map_err(failed)
}
