//! REST requests.

use super::{
    Worker, access,
    client::Exchange,
    destination::{Destination, Name},
    forward::{Call, Head, Target, version_number},
    headers, landing, local_response, metadata,
    mirror::Original,
    path::{self, Operation, Path},
    pipelines::PipelineRequest,
    pods::{self, PodRequest},
    request_body::{BodyLimits, SMALL},
    service::{self, Named},
    spans,
    v1::{Prediction, V1Request},
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
        let protocol = if is_grpc { Protocol::Grpc } else { Protocol::Rest };
        let mut response;
        let closes;
        if let Some(rejection) = invalid_head(&parts) {
            (response, closes) = (rejection, true);
        } else if let Err(denied) = self.authenticate(&mut parts, protocol, exchange) {
            response = access::refusal(&denied, protocol);
            closes = is_http1 && (is_grpc || self.closes(&mut body, expects_continue).await);
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
        let (mut named, text) = self.named(&parts)?;
        let mut owner = None;
        if let Named::Service(service, None) = &named
            && matches!(Path::parse(text), Some(Path::Model { model, .. }) if service.has_model(model))
        {
            owner = Some(Arc::clone(service));
            named = Named::Gateway;
        }
        access::authorize_rest(&exchange.access, &parts, &named, owner.as_deref(), text)?;
        if let Named::Service(service, role) = named {
            let path = pods::path(text, &parts.uri)?;
            let is_graph = service.graph().is_some();
            let request = PodRequest { service, role, request_id, exchange };
            if is_graph {
                return self.rest_graph(request, parts, &path, body).await;
            }
            return self.rest_pods(request, parts, &path, body).await;
        }
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
        if let Named::Model { name, .. } = named
            && let Some(response) = self.service_endpoint(name, path)?
        {
            return Ok(response);
        }
        match path {
            Path::Alive if matches!(named, Named::Gateway) && landing::wants_page(&parts.headers) => {
                Ok(self.landing_page())
            }
            Path::Alive => Ok(json_response("{\"status\":\"alive\"}")),
            Path::OpenApi => Ok(Self::openapi_response()),
            Path::ModelList => self.model_list(&parts, exchange),
            Path::Names => {
                let mut models = self.shared.routes.models();
                models.retain(|model| exchange.access.sees(model));
                Ok(json_response(gantry_oip::v1::encode_names(&models)))
            }
            Path::Model { .. } => self.model(parts, body, request_id, exchange).await,
            Path::Pipeline { pipeline, operation } => {
                let name = Name::of_pipeline(&parts.headers, pipeline)?;
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
        let infer = matches!(operation, Operation::Infer | Operation::Other(_));
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
        let whole = self.read_body(body, &limits).await?;
        exchange.admitted = Some(self.admit(&exchange.client, Protocol::Rest)?);
        let trace = self.shared.config.tracer.context(&parts.headers);
        if operation == Operation::Predict {
            // `wanted` may be a name in them.
            let headers = headers::with_host(parts.headers.clone(), &parts.uri);
            let memory = Arc::clone(&exchange.client.memory);
            let request = V1Request { sticky, request_id, memory, started, deadline, is_admitted: true };
            let (query, step) = (parts.uri.query(), None);
            let prediction = Prediction { wanted, headers, body: whole, query, trace, step };
            return self.predict(prediction, &request).await;
        }
        let version = version.map(|text| version_number(model, text)).transpose()?;
        let mut in_flight = if infer {
            self.acquire_or_wake(wanted, sticky.as_ref(), Protocol::Rest, deadline).await?
        } else {
            self.acquire(wanted, sticky.as_ref(), Protocol::Rest)?
        };
        if operation == Operation::Explain {
            return Err(no_explainer(&in_flight.version.model));
        }
        if operation == Operation::Infer {
            let (headers, protocol) = (&parts.headers, Protocol::Rest);
            let original = Original { protocol, headers, request_id: &request_id, body: &whole };
            self.mirror_all(&mut in_flight, &original);
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
            trace,
            step: None,
            is_component: false,
        };
        let target = Target::Rest {
            tail: operation.tail(),
            query: parts.uri.query(),
            infer: operation == Operation::Infer,
        };
        let headers = headers::with_host(std::mem::take(&mut parts.headers), &parts.uri);
        let head = Head { method: parts.method, headers, request_id };
        let answer = self.forward(&call, in_flight, &target, head, Payload::Whole(whole)).await?;
        if operation == Operation::Config {
            return metadata::config(answer);
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

pub(super) fn method_not_allowed(method: &Method, allowed: &Method) -> Response<ResponseBody> {
    let message = format!("method {method} not allowed: use {allowed}");
    let mut response = local_response::error(&Error::new(Code::MethodNotAllowed, message), Protocol::Rest);
    if let Ok(allow) = HeaderValue::from_str(allowed.as_str()) {
        response.headers_mut().insert(header::ALLOW, allow);
    }
    response
}
