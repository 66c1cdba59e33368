//! REST requests.

use super::{
    Worker,
    forward::{Call, Head, Target},
    headers, local_response,
    path::{self, Operation, Path},
    request_body, spans,
};
use crate::body::ResponseBody;
use gantry_oip::{Code, Error, server};
use gantry_transport::{Protocol, body::Payload, deadline, request_id};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header, request::Parts};
use hyper::body::Incoming;
use std::sync::Arc;
use tokio::time::Instant;

impl Worker {
    pub(super) async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<ResponseBody> {
        let (mut parts, body) = request.into_parts();
        let request_id = match parts.headers.get(headers::REQUEST_ID) {
            Some(id) if request_id::is_sane(id) => id.clone(),
            _ => self.ids.next(),
        };
        let is_grpc = Protocol::of(&parts.headers) == Protocol::Grpc;
        let mut span = spans::request(&self.shared.config.tracer, &mut parts, &request_id, is_grpc);
        let mut response = if is_grpc {
            self.grpc(parts, body, request_id.clone()).await
        } else {
            let answered = self.rest(parts, body, request_id.clone()).await;
            answered.unwrap_or_else(|error| local_response::error(&error, Protocol::Rest))
        };
        spans::response(&mut span, &response, is_grpc);
        response.headers_mut().insert(headers::REQUEST_ID, request_id);
        response
    }

    async fn rest(
        self: &Arc<Self>,
        parts: Parts,
        body: Incoming,
        request_id: HeaderValue,
    ) -> Result<Response<ResponseBody>, Error> {
        let Some(path) = Path::parse(parts.uri.path()) else {
            let shown: String = parts.uri.path().chars().take(100).collect();
            let nearest = path::nearest(parts.uri.path());
            return Err(Error::not_found(format!("there is no path {shown}: the nearest is {nearest}")));
        };
        let allowed = path.method();
        if parts.method != allowed {
            return Ok(method_not_allowed(&parts.method, &allowed));
        }
        match path {
            Path::Model { .. } => self.model(parts, body, request_id).await,
            Path::Pipeline => Err(Error::not_found("pipelines are not served yet")),
            Path::ServerMetadata => Ok(Self::server_metadata_response()),
            Path::Live => Ok(json_response("{\"live\":true}")),
            Path::Ready => self.server_ready(),
            Path::AllStatistics => self.all_statistics().await,
            Path::Index => self.index(body).await,
            Path::Load(model) => self.load(model).await,
            Path::Unload(model) => self.unload(model).await,
        }
    }

    async fn model(
        self: &Arc<Self>,
        mut parts: Parts,
        mut body: Incoming,
        request_id: HeaderValue,
    ) -> Result<Response<ResponseBody>, Error> {
        let started = Instant::now();
        let Some(Path::Model { model: path_model, operation }) = Path::parse(parts.uri.path()) else {
            return Err(Error::internal("model path could not be parsed again"));
        };
        let model = match parts.headers.get(headers::MODEL).map(HeaderValue::to_str) {
            None => path_model,
            Some(Ok(name)) => plain_model(name, Protocol::Rest)?,
            Some(Err(_)) => return Err(Error::invalid("header seldon-model: invalid model name")),
        };
        let _counted = self.admit()?;
        let limit = self.shared.config.max_body;
        let size = request_body::announced(&body, limit)?;
        let sticky = parts.headers.get(headers::ROUTE);
        let infer = matches!(operation, Operation::Infer | Operation::Other(_));
        let deadline = deadline(started, self.shared.config.request_timeout);
        let in_flight = if infer {
            self.acquire_or_wake(model, sticky, Protocol::Rest, deadline).await?
        } else {
            self.acquire(model, sticky, Protocol::Rest, &[])?
        };
        let call = Call {
            model: Arc::clone(&in_flight.version.model),
            sticky: sticky.cloned(),
            protocol: Protocol::Rest,
            infer,
            started,
            deadline,
            trace: self.shared.config.tracer.context(&parts.headers),
        };
        let payload = if size.is_some_and(|n| n <= request_body::SMALL) {
            let reading = request_body::read_all(&mut body, limit);
            match tokio::time::timeout_at(call.deadline, reading).await {
                Ok(bytes) => Payload::Whole(bytes?),
                Err(_) => return Err(Error::new(Code::DeadlineExceeded, "the body did not arrive in time")),
            }
        } else {
            Payload::Partial { first: bytes::Bytes::new(), rest: body }
        };
        let target = Target::Rest {
            tail: operation.tail(),
            query: parts.uri.query(),
            infer: operation == Operation::Infer,
        };
        let mut headers = std::mem::take(&mut parts.headers);
        if parts.version == Version::HTTP_2
            && let Some(host) = parts.uri.authority().and_then(|a| HeaderValue::from_str(a.as_str()).ok())
        {
            headers.entry(header::HOST).or_insert(host);
        }
        let head = Head { method: parts.method, headers, request_id };
        let answer = self.forward(&call, in_flight, &target, head, payload).await?;
        // Readiness bodies differ between servers; KServe clients expect this one.
        if operation == Operation::Ready && answer.status() == StatusCode::OK {
            let (head, _) = answer.into_parts();
            let mut local = json_response(format!("{{\"name\":\"{}\",\"ready\":true}}", call.model));
            local.headers_mut().extend(head.headers.get(headers::ROUTE).map(|r| (headers::ROUTE, r.clone())));
            return Ok(local);
        }
        Ok(answer)
    }

    /// Counts a request in flight, or sheds it.
    pub(super) fn admit(&self) -> Result<Admitted<'_>, Error> {
        let metrics = &self.shared.metrics;
        let before = metrics.in_flight.inc();
        let admitted = Admitted { worker: self };
        if usize::try_from(before).unwrap_or(0) >= self.shared.config.max_in_flight {
            metrics.shed.inc();
            return Err(Error::unavailable("the gateway is at its request limit: retry in 1 s", 1));
        }
        Ok(admitted)
    }
}

/// A request counted in flight until dropped.
pub(super) struct Admitted<'a> {
    worker: &'a Worker,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.worker.shared.metrics.in_flight.dec();
    }
}

/// The model named by `seldon-model`; a suffix denotes pipelines and experiments.
pub(super) fn plain_model(name: &str, protocol: Protocol) -> Result<&str, Error> {
    let code = if protocol == Protocol::Grpc { Code::Unimplemented } else { Code::NotFound };
    if name.ends_with(".pipeline") {
        return Err(Error::new(code, "pipelines are not served yet"));
    }
    if name.ends_with(".experiment") {
        return Err(Error::new(code, "experiments are not served yet"));
    }
    Ok(name)
}

pub(super) fn json_response(body: impl Into<bytes::Bytes>) -> Response<ResponseBody> {
    local_response::from_reply(server::json(StatusCode::OK, body.into()))
}

fn method_not_allowed(method: &Method, allowed: &Method) -> Response<ResponseBody> {
    let message = format!("method {method} not allowed: use {allowed}");
    let mut response = local_response::error(&Error::new(Code::MethodNotAllowed, message), Protocol::Rest);
    if let Ok(allow) = HeaderValue::from_str(allowed.as_str()) {
        response.headers_mut().insert(header::ALLOW, allow);
    }
    response
}
