//! Requests to InferenceGraphs. Steps that call InferenceServices of the gateway do so inside it.

use super::{
    Worker,
    destination::Wanted,
    forward::{Call, Head, Target},
    local_response,
    path::{Operation, Path},
    pods::{PodCall, PodRequest},
    request_body::BodyLimits,
    rest::{json_response, method_not_allowed},
    service::Named,
    v1::{Prediction, V1Request},
};
use crate::{
    body::ResponseBody,
    inference_graph::{CallTarget, GraphRequest, StepClient, StepRequest, StepResponse, execute},
    pipeline::{off_the_event_loop, read_response},
    routes::{GraphRoute, Service, StepUrl},
};
use bytes::Bytes;
use futures::future::BoxFuture;
use gantry_core::inference_graph::MAX_CALLS;
use gantry_oip::{Code, Error, rest, server::Reply};
use gantry_transport::{
    Protocol,
    body::{Payload, UpstreamBody},
    deadline,
    headers::REQUEST_ID,
    memory::ConnectionMemory,
};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, Uri, header, request::Parts, uri::PathAndQuery,
};
use hyper::body::Incoming;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tokio::time::Instant;

/// Graphs that call graphs.
const MAX_DEPTH: usize = 8;

/// The calls of a graph.
struct Steps<'a> {
    worker: &'a Arc<Worker>,
    service: &'a Service,
    route: &'a GraphRoute,
    request_id: HeaderValue,
    memory: Arc<ConnectionMemory>,
    trace: Option<gantry_trace::SpanContext>,
    /// Of the whole request, with those of graphs that it calls.
    calls: Arc<AtomicU64>,
    depth: usize,
}

impl Worker {
    pub(super) async fn rest_graph(
        self: &Arc<Self>,
        request: PodRequest<'_>,
        parts: Parts,
        path: &PathAndQuery,
        body: &mut Incoming,
    ) -> Result<Response<ResponseBody>, Error> {
        let PodRequest { service, request_id, exchange, .. } = request;
        let compiled = service.graph().ok_or_else(|| Error::internal("the service has no graph"))?;
        let route = executable(&service, &compiled)?;
        if path.path() == "/readyz" && matches!(parts.method, Method::GET | Method::HEAD) {
            return Ok(json_response("{\"ready\":true}"));
        }
        if parts.method != Method::POST {
            return Ok(method_not_allowed(&parts.method, &Method::POST));
        }
        let started = Instant::now();
        let config = &self.shared.config;
        let limits = BodyLimits {
            client: &exchange.client,
            protocol: Protocol::Rest,
            max: config.max_body,
            deadline: deadline(started, service.timeout.unwrap_or(config.request_timeout)),
        };
        let body = self.read_body(body, &limits).await?;
        let deadline = limits.deadline;
        exchange.admitted = Some(self.admit(&exchange.client, Protocol::Rest)?);
        let memory = Arc::clone(&exchange.client.memory);
        let body = decompress(&parts.headers, body, config.max_body, &memory).await?;
        let steps = Steps {
            worker: self,
            service: &service,
            route,
            request_id,
            memory: Arc::clone(&memory),
            trace: config.tracer.context(&parts.headers),
            calls: Arc::default(),
            depth: 0,
        };
        let request = GraphRequest { headers: &parts.headers, body, deadline, memory };
        let response = execute(&route.graph, &steps, request).await;
        Ok(response.map(|body| ResponseBody::Whole(Reply::new(body))))
    }
}

/// The graph, or 503 with the reason.
fn executable<'a>(
    service: &Service,
    compiled: &'a Result<GraphRoute, String>,
) -> Result<&'a GraphRoute, Error> {
    compiled.as_ref().map_err(|reason| {
        Error::unavailable(format!("InferenceGraph {} cannot be executed: {reason}", service.key), 1)
    })
}

async fn decompress(
    headers: &HeaderMap,
    body: Bytes,
    limit: usize,
    memory: &Arc<ConnectionMemory>,
) -> Result<Bytes, Error> {
    let encoding = rest::Encoding::of(headers)?;
    if encoding == rest::Encoding::Identity {
        return Ok(body);
    }
    let body = off_the_event_loop(limit, move || rest::decompress(body, encoding, limit)).await?;
    Ok(memory.charge(body))
}

impl StepClient for Steps<'_> {
    async fn call(&self, request: StepRequest) -> Result<StepResponse, String> {
        if self.calls.fetch_add(1, Ordering::Relaxed) >= MAX_CALLS {
            return Err(format!("the request makes more than {MAX_CALLS} calls: does a graph call itself?"));
        }
        let target = request.target.clone();
        match &target {
            CallTarget::Service(name) => {
                let (namespace, _) = self.service.key.split_once('/').unwrap_or_default();
                let routes = &self.worker.shared.routes;
                if let Some(service) = routes.service(namespace, name) {
                    let path = service.predict_path.clone();
                    return self.service(Named::Service(service, None), &path, request).await;
                }
                let deadline = request.deadline;
                let answered = if routes.is_service(name, namespace) {
                    self.predict(name, request).await
                } else {
                    Err(Error::unavailable(format!("there is no InferenceService {namespace}/{name}"), 1))
                };
                self.respond(answered, deadline).await
            }
            CallTarget::Url(url) => {
                let Some(url) = self.route.urls.get(url) else {
                    return Err(format!("serviceUrl {url} is unknown"));
                };
                let url = url.as_ref().map_err(String::clone)?;
                match self.worker.service_of_host(&url.host) {
                    Ok(Some(named)) => self.service(named, &url.path, request).await,
                    _ => self.external(url, request).await,
                }
            }
        }
    }
}

impl Steps<'_> {
    /// Calls an InferenceService of the gateway.
    async fn service(
        &self,
        named: Named<'_>,
        path: &PathAndQuery,
        request: StepRequest,
    ) -> Result<StepResponse, String> {
        let deadline = request.deadline;
        let answered = match named {
            Named::Gateway => Err(Error::not_found("the URL is the gateway's own")),
            Named::Service(service, _) if service.graph().is_some() => {
                return self.nested(service, request).await;
            }
            Named::Service(service, role) => {
                let call = PodCall {
                    service: &service,
                    role,
                    head: self.head(&request),
                    target: Target::Pod(path),
                    payload: Payload::Whole(request.body.clone()),
                    started: Instant::now(),
                    deadline,
                    trace: self.trace.clone(),
                    step: Some(Arc::clone(&request.step)),
                };
                self.worker.call_pod(call).await
            }
            Named::Model { name, .. } => match Path::parse(path.path()) {
                Some(Path::Model { model, operation: Operation::Predict, .. }) if model == name => {
                    self.predict(name, request).await
                }
                Some(Path::Model { model, version: None, operation: Operation::Infer }) if model == name => {
                    self.infer(name, request).await
                }
                _ => Err(Error::not_found(format!(
                    "InferenceService {name} is a model of the scheduler: call /v1/models/{name}:predict \
                     or /v2/models/{name}/infer"
                ))),
            },
        };
        self.respond(answered, deadline).await
    }

    fn head(&self, request: &StepRequest) -> Head {
        let (method, headers) = (Method::POST, request.headers.clone());
        Head { method, headers, request_id: self.request_id.clone() }
    }

    /// The V1 protocol of a model.
    async fn predict(&self, model: &str, request: StepRequest) -> Result<Response<ResponseBody>, Error> {
        let prediction = Prediction {
            wanted: Wanted::internal(model, false),
            headers: request.headers,
            body: request.body,
            query: None,
            trace: self.trace.clone(),
            step: Some(request.step),
        };
        let request = V1Request {
            sticky: None,
            request_id: self.request_id.clone(),
            memory: Arc::clone(&self.memory),
            started: Instant::now(),
            deadline: request.deadline,
            is_admitted: false,
        };
        self.worker.predict(prediction, &request).await
    }

    /// The V2 protocol of a model.
    async fn infer(&self, model: &str, request: StepRequest) -> Result<Response<ResponseBody>, Error> {
        let (worker, deadline) = (self.worker, request.deadline);
        let wanted = Wanted::internal(model, false);
        let in_flight = worker.acquire_or_wake(wanted, None, Protocol::Rest, deadline).await?;
        let call = Call {
            model: Arc::clone(&in_flight.version.model),
            sticky: None,
            version: None,
            sequence: None,
            protocol: Protocol::Rest,
            infer: true,
            started: Instant::now(),
            deadline,
            trace: self.trace.clone(),
            step: Some(Arc::clone(&request.step)),
            is_component: false,
        };
        let target = Target::Rest { tail: "/infer", query: None, infer: true };
        let head = self.head(&request);
        worker.forward(&call, in_flight, &target, head, Payload::Whole(request.body)).await
    }

    /// A graph that the step calls.
    fn nested(
        &self,
        service: Arc<Service>,
        request: StepRequest,
    ) -> BoxFuture<'_, Result<StepResponse, String>> {
        Box::pin(async move {
            if self.depth >= MAX_DEPTH {
                return Err(format!("more than {MAX_DEPTH} graphs call each other"));
            }
            let Some(compiled) = service.graph() else { return Err("the service has no graph".into()) };
            let route = match executable(&service, &compiled) {
                Ok(route) => route,
                Err(error) => return self.respond(Err(error), request.deadline).await,
            };
            let steps = Steps {
                worker: self.worker,
                service: &service,
                route,
                request_id: self.request_id.clone(),
                memory: Arc::clone(&self.memory),
                trace: self.trace.clone(),
                calls: Arc::clone(&self.calls),
                depth: self.depth + 1,
            };
            let (body, deadline, memory) = (request.body, request.deadline, Arc::clone(&self.memory));
            let nested = GraphRequest { headers: &request.headers, body, deadline, memory };
            let (head, body) = execute(&route.graph, &steps, nested).await.into_parts();
            Ok(StepResponse { status: head.status, headers: head.headers, body })
        })
    }

    /// A host that is none of the gateway's services.
    async fn external(&self, url: &StepUrl, request: StepRequest) -> Result<StepResponse, String> {
        let deadline = request.deadline;
        let mut sent = Request::new(UpstreamBody::Whole(request.body.clone()));
        *sent.method_mut() = Method::POST;
        *sent.uri_mut() = Uri::from(url.path.clone());
        *sent.headers_mut() = request.headers;
        let headers = sent.headers_mut();
        headers.insert(header::HOST, url.authority.clone());
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(request.body.len()));
        headers.insert(REQUEST_ID, self.request_id.clone());
        let server = &url.endpoint.server;
        let sending = async {
            let (response, reuse) = self
                .worker
                .pools
                .http(&url.endpoint, sent)
                .await
                .map_err(|failure| format!("the call of {server} failed: {}", failure.error))?;
            let (head, body) = response.into_parts();
            let limit = self.worker.shared.config.max_body;
            let (body, _) = read_response(body, limit, &self.memory)
                .await
                .map_err(|error| format!("the response of {server} failed: {}", error.message))?;
            reuse();
            Ok(StepResponse { status: head.status, headers: head.headers, body })
        };
        let late = |_| Err(format!("{server} did not respond in time"));
        tokio::time::timeout_at(deadline, sending).await.unwrap_or_else(late)
    }

    /// The whole response; errors of the gateway are responses too, but for a call without a response in time.
    async fn respond(
        &self,
        answered: Result<Response<ResponseBody>, Error>,
        deadline: Instant,
    ) -> Result<StepResponse, String> {
        let response = match answered {
            Err(error) if error.code == Code::DeadlineExceeded => return Err(error.message),
            answered => answered.unwrap_or_else(|error| local_response::error(&error, Protocol::Rest)),
        };
        let (head, body) = response.into_parts();
        let reading = read_response(body, self.worker.shared.config.max_body, &self.memory);
        let late = |_| Err(Error::new(Code::DeadlineExceeded, "the response did not end in time"));
        let read = tokio::time::timeout_at(deadline, reading).await.unwrap_or_else(late);
        let (body, _) = read.map_err(|error| error.message)?;
        Ok(StepResponse { status: head.status, headers: head.headers, body })
    }
}
