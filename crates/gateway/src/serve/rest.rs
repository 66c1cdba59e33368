//! REST requests.

use super::{
    Worker,
    client::Exchange,
    destination::{Destination, Name},
    forward::{Call, Head, Target, version_number},
    headers, local_response,
    mirror::Original,
    path::{self, Operation, Path},
    pipelines::PipelineRequest,
    request_body::{BodyLimits, SMALL},
    service, spans,
    v1::V1Request,
};
use crate::{body::ResponseBody, routes::SelectError};
use gantry_oip::{Code, Error, server};
use gantry_transport::{Protocol, body::Payload, deadline, request_id};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header, request::Parts};
use hyper::body::{Body as _, Incoming};
use std::sync::Arc;
use tokio::time::Instant;

impl Worker {
    pub(super) async fn handle(
        self: &Arc<Self>,
        request: Request<Incoming>,
        exchange: &mut Exchange,
    ) -> Response<ResponseBody> {
        let (mut parts, mut body) = request.into_parts();
        let is_http1 = parts.version < Version::HTTP_2;
        let expects_continue = parts.headers.contains_key(header::EXPECT);
        let request_id = match parts.headers.get(headers::REQUEST_ID) {
            Some(id) if request_id::is_sane(id) => id.clone(),
            _ => self.ids.next(),
        };
        let is_grpc = Protocol::of(&parts.headers) == Protocol::Grpc;
        let mut span = spans::request(&self.shared.config.tracer, &mut parts, &request_id, is_grpc);
        let mut response;
        let closes;
        if let Some(rejection) = invalid_head(&parts) {
            (response, closes) = (rejection, true);
        } else if is_grpc {
            response = self.grpc(parts, body, request_id.clone(), exchange).await;
            closes = true;
        } else {
            let is_head = parts.method == Method::HEAD;
            let answered = self.rest(parts, &mut body, request_id.clone(), exchange).await;
            response = answered.unwrap_or_else(|error| local_response::error(&error, Protocol::Rest));
            if is_head {
                response = local_response::without_body(response);
            }
            closes = is_http1 && self.closes(&mut body, expects_continue).await;
        }
        if is_http1 && closes {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        spans::response(&mut span, &response, is_grpc);
        response.headers_mut().insert(headers::REQUEST_ID, request_id);
        response
    }

    async fn rest(
        self: &Arc<Self>,
        parts: Parts,
        body: &mut Incoming,
        request_id: HeaderValue,
        exchange: &mut Exchange,
    ) -> Result<Response<ResponseBody>, Error> {
        let (service, text) = self.service(&parts)?;
        let Some(path) = Path::parse(text) else {
            let shown: String = text.chars().take(100).collect();
            let nearest = path::nearest(text);
            return Err(Error::not_found(format!("there is no path {shown}: the nearest is {nearest}")));
        };
        let allowed = path.method();
        let is_head = parts.method == Method::HEAD
            && matches!(path, Path::Alive | Path::ServerMetadata | Path::Live | Path::Ready);
        if parts.method != allowed && !is_head {
            return Ok(method_not_allowed(&parts.method, &allowed));
        }
        if let Some(name) = service
            && let Some(response) = self.service_endpoint(name, path)?
        {
            return Ok(response);
        }
        match path {
            Path::Alive => Ok(json_response("{\"status\":\"alive\"}")),
            Path::Names => Ok(json_response(gantry_oip::v1::encode_names(&self.shared.routes.models()))),
            Path::Model { .. } => self.model(parts, body, request_id, exchange).await,
            Path::Pipeline { pipeline, operation } => {
                let name = Name::of(&parts.headers, "").map(|name| match name {
                    Name::Model(_) => Name::Pipeline(pipeline),
                    named => named,
                })?;
                let sticky = headers::sticky(&parts.headers);
                match self.destination(name, sticky.as_ref(), Protocol::Rest)? {
                    Destination::Pipeline(wanted) => {
                        let request = PipelineRequest { wanted: *wanted, sticky, request_id, exchange };
                        self.rest_pipeline(request, operation, &parts, body).await
                    }
                    Destination::Model(_) => Err(Error::invalid(
                        "the experiment chooses between models: use /v2/models/{model}/infer",
                    )),
                }
            }
            Path::ServerMetadata => Ok(Self::server_metadata_response()),
            Path::Live => Ok(json_response("{\"live\":true}")),
            Path::Ready => self.server_ready(),
            Path::AllStatistics => self.all_statistics().await,
            Path::Index => self.index(body, exchange).await,
            Path::Load(model) => self.load(model, body, exchange).await,
            Path::Unload(model) => self.unload(model).await,
        }
    }

    async fn model(
        self: &Arc<Self>,
        mut parts: Parts,
        body: &mut Incoming,
        request_id: HeaderValue,
        exchange: &mut Exchange,
    ) -> Result<Response<ResponseBody>, Error> {
        let started = Instant::now();
        let Some(Path::Model { model: path_model, version, operation }) =
            Path::parse(service::below_prefix(parts.uri.path()))
        else {
            return Err(Error::internal("model path could not be parsed again"));
        };
        let sticky = headers::sticky(&parts.headers);
        let name = Name::of(&parts.headers, path_model)?;
        let wanted = match self.destination(name, sticky.as_ref(), Protocol::Rest)? {
            Destination::Model(wanted) => wanted.with_version(version.is_some()),
            Destination::Pipeline(wanted) => {
                let request = PipelineRequest { wanted: *wanted, sticky, request_id, exchange };
                return self.rest_pipeline(request, operation, &parts, body).await;
            }
        };
        let model = &*wanted.model;
        let is_v1 = operation == Operation::Predict;
        let infer = is_v1 || matches!(operation, Operation::Infer | Operation::Other(_));
        let deadline = deadline(started, self.shared.config.request_timeout);
        let limits = BodyLimits {
            client: &exchange.client,
            protocol: Protocol::Rest,
            max: self.shared.config.max_body,
            deadline,
        };
        let is_small = body.size_hint().exact().is_some_and(|n| n <= SMALL as u64);
        if !is_small && !self.shared.routes.contains(model) {
            let nearest = self.shared.routes.nearest(model);
            return Err(local_response::select_error(
                &SelectError::UnknownModel,
                model,
                Protocol::Rest,
                nearest,
            ));
        }
        let mut whole = self.read_body(body, &limits).await?;
        exchange.admitted = Some(self.admit(&exchange.client, Protocol::Rest)?);
        let version = version.map(|text| version_number(model, text)).transpose()?;
        let mut in_flight = if infer {
            self.acquire_or_wake(wanted, sticky.as_ref(), Protocol::Rest, deadline).await?
        } else {
            self.acquire(wanted, sticky.as_ref(), Protocol::Rest)?
        };
        if operation == Operation::Explain {
            return Err(no_explainer(&in_flight.version.model));
        }
        let v1 = is_v1.then(|| V1Request {
            sticky: sticky.clone(),
            request_id: request_id.clone(),
            memory: Arc::clone(&exchange.client.memory),
            started,
            deadline,
        });
        if let Some(v1) = &v1 {
            let inputs;
            (in_flight, inputs) = self.with_inputs(in_flight, v1).await?;
            let is_local = in_flight.endpoint.local().is_some();
            whole = self.v1_request(v1, inputs, &mut parts.headers, whole, is_local).await?;
        }
        if let Some(experiment) = &in_flight.experiment
            && matches!(operation, Operation::Infer | Operation::Predict)
        {
            let (headers, protocol) = (&parts.headers, Protocol::Rest);
            let original = Original { protocol, headers, request_id: &request_id, body: &whole };
            self.mirror(experiment, &original);
        }
        let call = Call {
            model: Arc::clone(&in_flight.version.model),
            sticky,
            version,
            sequence: None,
            protocol: Protocol::Rest,
            infer,
            started,
            deadline,
            trace: self.shared.config.tracer.context(&parts.headers),
            step: None,
        };
        let target = Target::Rest {
            tail: operation.tail(),
            query: parts.uri.query(),
            infer: matches!(operation, Operation::Infer | Operation::Predict),
        };
        let mut headers = std::mem::take(&mut parts.headers);
        if parts.version == Version::HTTP_2
            && let Some(host) = parts.uri.authority().and_then(|a| HeaderValue::from_str(a.as_str()).ok())
        {
            headers.entry(header::HOST).or_insert(host);
        }
        let head = Head { method: parts.method, headers, request_id };
        let answer = self.forward(&call, in_flight, &target, head, Payload::Whole(whole)).await?;
        if let Some(v1) = &v1 {
            return self.v1_response(v1, answer).await;
        }
        // Readiness bodies differ between servers; KServe clients expect this one.
        if operation == Operation::Ready && answer.status() == StatusCode::OK {
            let (head, _) = answer.into_parts();
            let mut local = json_response(format!("{{\"name\":\"{}\",\"ready\":true}}", call.model));
            local.headers_mut().extend(head.headers.get(headers::ROUTE).map(|r| (headers::ROUTE, r.clone())));
            return Ok(local);
        }
        Ok(answer)
    }
}

pub(super) fn json_response(body: impl Into<bytes::Bytes>) -> Response<ResponseBody> {
    local_response::from_reply(server::json(StatusCode::OK, body.into()))
}

/// Refuses requests that another HTTP implementation may read differently.
fn invalid_head(parts: &Parts) -> Option<Response<ResponseBody>> {
    let rejected = |status, message: &str| {
        let mut response = local_response::error(&Error::invalid(message), Protocol::Rest);
        *response.status_mut() = status;
        Some(response)
    };
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() || (host.is_none() && parts.version == Version::HTTP_11) {
        return rejected(StatusCode::BAD_REQUEST, "a request must have one host header");
    }
    let mut codings = parts.headers.get_all(header::TRANSFER_ENCODING).iter();
    if codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        return rejected(
            StatusCode::NOT_IMPLEMENTED,
            "the only supported transfer-encoding is chunked: use content-encoding to compress",
        );
    }
    let content_type = parts.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if content_type.is_some_and(|t| t.starts_with(b"application/grpc-web")) {
        return rejected(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "gRPC-Web is not supported: use gRPC (application/grpc) or REST",
        );
    }
    None
}

fn no_explainer(model: &str) -> Error {
    Error::new(Code::Unimplemented, format!("model {model} has no explainer"))
}

fn method_not_allowed(method: &Method, allowed: &Method) -> Response<ResponseBody> {
    let message = format!("method {method} not allowed: use {allowed}");
    let mut response = local_response::error(&Error::new(Code::MethodNotAllowed, message), Protocol::Rest);
    if let Ok(allow) = HeaderValue::from_str(allowed.as_str()) {
        response.headers_mut().insert(header::ALLOW, allow);
    }
    response
}
