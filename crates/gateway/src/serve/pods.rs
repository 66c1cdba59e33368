//! Requests to InferenceServices that run in pods of their own. They pass unchanged: method, path, headers and body.

use super::{
    Worker, access,
    client::Exchange,
    destination::Wanted,
    forward::{Call, Head, Target},
    headers,
    request_body::BodyLimits,
};
use crate::{
    body::ResponseBody,
    routes::{InFlightRequest, Role, Service, role_name},
};
use bytes::Bytes;
use gantry_auth::Target as Object;
use gantry_oip::{Code, Error, grpc::SERVICE};
use gantry_transport::{Protocol, body::Payload, deadline};
use http::{HeaderValue, Method, Response, Uri, request::Parts, uri::PathAndQuery};
use hyper::body::Incoming;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// A request to an InferenceService.
pub(super) struct PodRequest<'a> {
    pub(super) service: Arc<Service>,
    /// The component that the host names.
    pub(super) role: Option<Role>,
    pub(super) request_id: HeaderValue,
    pub(super) exchange: &'a mut Exchange,
}

/// A request on its way to a pod.
pub(super) struct PodCall<'a> {
    pub(super) service: &'a Service,
    pub(super) role: Option<Role>,
    pub(super) head: Head,
    pub(super) target: Target<'a>,
    pub(super) payload: Payload,
    pub(super) started: Instant,
    pub(super) deadline: Instant,
    pub(super) trace: Option<gantry_trace::SpanContext>,
    /// The step of a graph that makes the call, within the request of a client.
    pub(super) step: Option<Arc<str>>,
}

/// The path below the prefix of a service, with the query.
pub(super) fn path(below: &str, uri: &Uri) -> Result<PathAndQuery, Error> {
    let slash = if below.starts_with('/') || below == "*" { "" } else { "/" };
    let (mark, query) = uri.query().map_or(("", ""), |query| ("?", query));
    format!("{slash}{below}{mark}{query}").parse().map_err(|_| Error::invalid("invalid path"))
}

/// Whether the explainer, if there is one, gets the request.
fn is_explain(path: &str) -> bool {
    let named = path.strip_prefix("/v1/models/").and_then(|rest| rest.strip_suffix(":explain"));
    named.is_some_and(|model| !model.is_empty() && !model.contains('/'))
}

impl Worker {
    pub(super) async fn rest_pods(
        self: &Arc<Self>,
        request: PodRequest<'_>,
        mut parts: Parts,
        path: &PathAndQuery,
        body: &mut Incoming,
    ) -> Result<Response<ResponseBody>, Error> {
        if parts.method == Method::CONNECT {
            return Err(Error::new(Code::MethodNotAllowed, "method CONNECT not allowed"));
        }
        let started = Instant::now();
        let timeout = request.service.timeout.unwrap_or(self.shared.config.request_timeout);
        let limits = BodyLimits {
            client: &request.exchange.client,
            protocol: Protocol::Rest,
            max: self.shared.config.max_body,
            deadline: deadline(started, timeout),
        };
        let payload = Payload::Whole(self.read_body(body, &limits).await?);
        parts.headers = headers::with_host(std::mem::take(&mut parts.headers), &parts.uri);
        let deadline = limits.deadline;
        self.to_pod(request, parts, Target::Pod(path), payload, (started, deadline)).await
    }

    pub(super) async fn grpc_pods(
        self: &Arc<Self>,
        request: PodRequest<'_>,
        parts: Parts,
        mut body: Incoming,
    ) -> Result<Response<ResponseBody>, Error> {
        if request.service.graph().is_some() {
            let message = format!("InferenceGraph {} serves HTTP only", request.service.key);
            return Err(Error::new(Code::Unimplemented, message));
        }
        let started = Instant::now();
        // A body of one message is read first, so that it can be sent again; any other may be a stream.
        let method = parts.uri.path().strip_prefix(SERVICE);
        let is_unary = method.is_some_and(|method| method != "ModelStreamInfer");
        let action = access::of_method(method.unwrap_or_default());
        let namespace = request.service.namespace();
        // The message may name a model of the service, which the client may have a right on.
        let names_model = is_unary && request.role.is_none() && request.service.has_models();
        if names_model {
            request.exchange.access.authorize_right(action)?;
        } else {
            request.exchange.access.authorize(action, Object::Service { namespace })?;
        }
        let timeout = self.grpc_pod_timeout(&request.service, &parts, is_unary);
        let limits = BodyLimits {
            client: &request.exchange.client,
            protocol: Protocol::Grpc,
            max: self.shared.config.max_body,
            deadline: deadline(started, timeout),
        };
        let deadline = limits.deadline;
        let payload = if is_unary {
            let framed = self.read_body(&mut body, &limits).await?;
            if request.role.is_none() && Self::is_of_scheduler(&request.service, &parts, &framed) {
                let PodRequest { service, request_id, exchange, .. } = request;
                let times = (started, deadline);
                return self.call_model(parts, framed, times, request_id, Some(&service), exchange).await;
            }
            if names_model {
                request.exchange.access.authorize(action, Object::Service { namespace })?;
            }
            Payload::Whole(framed)
        } else {
            Payload::Partial { first: Bytes::new(), rest: body }
        };
        let uri = parts.uri.clone();
        self.to_pod(request, parts, Target::Grpc(&uri), payload, (started, deadline)).await
    }

    fn grpc_pod_timeout(&self, service: &Service, parts: &Parts, is_unary: bool) -> Duration {
        let config = &self.shared.config;
        let of_client =
            headers::grpc_timeout(&parts.headers).map(|timeout| timeout.min(config.max_request_timeout));
        let default = if is_unary { config.request_timeout } else { config.max_request_timeout };
        of_client.or(service.timeout).unwrap_or(default)
    }

    /// Admits the client's request and sends it to a pod.
    async fn to_pod(
        self: &Arc<Self>,
        request: PodRequest<'_>,
        parts: Parts,
        target: Target<'_>,
        payload: Payload,
        (started, deadline): (Instant, Instant),
    ) -> Result<Response<ResponseBody>, Error> {
        let PodRequest { service, role, request_id, exchange } = request;
        exchange.admitted = Some(self.admit(&exchange.client, target.protocol())?);
        let trace = self.shared.config.tracer.context(&parts.headers);
        let head = Head { method: parts.method, headers: parts.headers, request_id };
        let step = None;
        let call = PodCall { service: &service, role, head, target, payload, started, deadline, trace, step };
        self.call_pod(call).await
    }

    pub(super) async fn call_pod(
        self: &Arc<Self>,
        call: PodCall<'_>,
    ) -> Result<Response<ResponseBody>, Error> {
        let PodCall { service, role, head, target, payload, started, deadline, trace, step } = call;
        let protocol = target.protocol();
        let is_explain = matches!(target, Target::Pod(path) if is_explain(path.path()));
        let sticky = headers::sticky(&head.headers);
        let is_admitted = step.is_none();
        let acquire = || async {
            // The components may have changed while the body arrived.
            let latest = self.shared.routes.latest(service);
            let entry = latest.as_ref().and_then(|latest| match role {
                Some(role) => latest.component(role),
                None => latest.front(is_explain),
            });
            let entry = entry.ok_or_else(|| no_component(service, latest.is_some(), role))?;
            let wanted = Wanted { is_admitted, ..Wanted::component(entry) };
            self.acquire_or_wake(wanted, sticky.as_ref(), protocol, deadline).await
        };
        let mut acquired = acquire().await;
        if acquired.as_ref().is_err_and(|error| error.code == Code::NotFound) {
            // Another component took over.
            acquired = acquire().await;
        }
        let in_flight = acquired?;
        check_port(&in_flight, protocol, service)?;
        let call = Call {
            model: Arc::clone(&in_flight.version.model),
            sticky,
            version: None,
            sequence: None,
            protocol,
            infer: true,
            started,
            deadline,
            trace,
            step,
            is_component: true,
        };
        self.forward(&call, in_flight, &target, head, payload).await
    }
}

fn no_component(service: &Service, exists: bool, role: Option<Role>) -> Error {
    if exists {
        let role = role_name(role.unwrap_or(Role::Predictor));
        return Error::unavailable(format!("InferenceService {} has no {role}", service.key), 1);
    }
    Error::not_found(format!("InferenceService {} was deleted", service.key))
}

fn check_port(in_flight: &InFlightRequest, protocol: Protocol, service: &Service) -> Result<(), Error> {
    let (port, only, other) = match protocol {
        Protocol::Rest => (in_flight.endpoint.http_port, "gRPC", "HTTP"),
        Protocol::Grpc => (in_flight.endpoint.grpc_port, "HTTP", "gRPC"),
    };
    if port > 0 {
        return Ok(());
    }
    let message = format!(
        "InferenceService {} serves {only} only: its containers declare no port for {other}",
        service.key
    );
    Err(Error::new(Code::Unimplemented, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_explain_of_a_model_is_explained() {
        for (path, expected) in [
            ("/v1/models/iris:explain", true),
            ("/v1/models/a:b:explain", true),
            ("/v1/models/:explain", false),
            ("/v1/models/iris:predict", false),
            ("/v1/models/a/b:explain", false),
            ("/v2/models/iris:explain", false),
            ("/explain", false),
        ] {
            assert_eq!(is_explain(path), expected, "{path}");
        }
    }

    #[test]
    fn path_below_the_prefix_keeps_the_query() {
        for (below, uri, expected) in [
            ("", "/serving/a/b", "/"),
            ("", "/serving/a/b?x=1", "/?x=1"),
            ("/v1/x", "/serving/a/b/v1/x?y", "/v1/x?y"),
            ("/%2f", "/%2f", "/%2f"),
        ] {
            assert_eq!(path(below, &uri.parse().unwrap()).unwrap().as_str(), expected);
        }
    }
}
