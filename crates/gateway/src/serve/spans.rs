//! Trace spans of requests; no work is done while tracing is off.

use super::{Call, headers, path::Path};
use crate::{body::ResponseBody, routes::InFlightRequest};
use gantry_oip::grpc::SERVICE;
use gantry_trace::{Span, Tracer};
use gantry_transport::Protocol;
use http::{HeaderValue, Response, request::Parts};

/// Continues or starts a trace. Requests that concern no model are not traced.
pub(super) fn request(tracer: &Tracer, parts: &mut Parts, request_id: &HeaderValue, is_grpc: bool) -> Span {
    if !tracer.is_on() {
        return Span::default();
    }
    let path = parts.uri.path();
    let is_model_request = if is_grpc {
        path.strip_prefix(SERVICE).is_some_and(|method| method.starts_with("Model"))
    } else {
        matches!(Path::parse(path), Some(Path::Model { .. } | Path::Pipeline { .. }))
    };
    if !is_model_request {
        return Span::default();
    }
    let mut span = tracer.server(&parts.headers, || match Path::parse(path) {
        Some(Path::Model { operation, .. }) if !is_grpc => {
            // Low cardinality: the span name does not contain the model.
            format!("{} /v2/models/{{model}}{}", parts.method, operation.tail())
        }
        Some(Path::Pipeline { operation, .. }) if !is_grpc => {
            format!("{} /v2/pipelines/{{pipeline}}{}", parts.method, operation.tail())
        }
        _ => path.trim_start_matches('/').to_owned(),
    });
    if span.is_recording() {
        if is_grpc {
            span.set("rpc.system", "grpc");
        } else {
            span.set("http.request.method", parts.method.to_string());
        }
        span.set("url.path", path.to_owned());
        if let Ok(id) = request_id.to_str() {
            span.set("gantry.request_id", id.to_owned());
        }
    }
    span.inject(&mut parts.headers);
    span
}

pub(super) fn response(span: &mut Span, response: &Response<ResponseBody>, is_grpc: bool) {
    if !span.is_recording() {
        return;
    }
    if let Some(route) = response.headers().get(headers::ROUTE).and_then(|r| r.to_str().ok()) {
        span.set("seldon.route", route.to_owned());
    }
    let status = i64::from(response.status().as_u16());
    let grpc = response.headers().get("grpc-status").and_then(|s| s.to_str().ok()?.parse::<i64>().ok());
    match grpc {
        Some(code) if is_grpc => {
            span.set("rpc.grpc.status_code", code);
            if code != 0 {
                span.fail("");
            }
        }
        _ => {
            span.set("http.response.status_code", status);
            if status >= 500 {
                span.fail("");
            }
        }
    }
}

/// Span of the upstream request.
pub(super) fn target(tracer: &Tracer, call: &Call, in_flight: &InFlightRequest) -> Span {
    let what = if call.step.is_some() { "step" } else { "target" };
    let mut span = tracer.client(call.trace.clone(), || what.to_owned());
    if span.is_recording() {
        if let Some(step) = &call.step {
            span.set("gantry.step", step.to_string());
        }
        span.set("gantry.model", in_flight.version.internal.to_string());
        span.set("gantry.server", in_flight.endpoint.server.clone());
        span.set("gantry.replica", i64::from(in_flight.endpoint.replica));
    }
    span
}

pub(super) fn finish(span: &mut Span, protocol: Protocol, code: u16) {
    if !span.is_recording() {
        return;
    }
    let (key, failed) = match protocol {
        Protocol::Rest => ("http.response.status_code", code >= 499),
        Protocol::Grpc => ("rpc.grpc.status_code", code != 0),
    };
    span.set(key, i64::from(code));
    if failed {
        span.fail("");
    }
}
