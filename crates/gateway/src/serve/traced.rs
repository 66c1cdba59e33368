//! What is told of a request where traces are told; nothing is put together where they are not.

use super::{headers, path::Path};
use crate::{body::ResponseBody, metrics::Protocol, routes::Entered};
use gantry_oip::grpc::SERVICE;
use gantry_trace::{Context, Span, Tracer};
use http::{HeaderValue, Response, request::Parts};

/// Goes on with a request's trace, or begins one. Requests that no model answers are not worth a trace.
pub(super) fn request(tracer: &Tracer, parts: &mut Parts, request_id: &HeaderValue, is_grpc: bool) -> Span {
    if !tracer.is_on() {
        return Span::default();
    }
    let path = parts.uri.path();
    let of_a_model = if is_grpc {
        path.strip_prefix(SERVICE).is_some_and(|method| method.starts_with("Model"))
    } else {
        matches!(Path::parse(path), Some(Path::Model { .. }))
    };
    if !of_a_model {
        return Span::default();
    }
    let mut span = tracer.server(&parts.headers, || match Path::parse(path) {
        Some(Path::Model { ask, .. }) if !is_grpc => {
            // A name for every model would make as many kinds of spans as there are models.
            format!("{} /v2/models/{{model}}{}", parts.method, ask.tail())
        }
        _ => path.trim_start_matches('/').to_owned(),
    });
    if span.is_recording() {
        if is_grpc {
            span.set("rpc.system", "grpc");
        } else {
            span.set("http.request.method", parts.method.as_str());
        }
        span.set("url.path", path);
        if let Ok(id) = request_id.to_str() {
            span.set("gantry.request_id", id);
        }
    }
    span.inject(&mut parts.headers);
    span
}

/// The request has its answer, or the beginning of it.
pub(super) fn answered(span: &mut Span, response: &Response<ResponseBody>, is_grpc: bool) {
    if !span.is_recording() {
        return;
    }
    if let Some(route) = response.headers().get(headers::ROUTE).and_then(|r| r.to_str().ok()) {
        span.set("seldon.route", route);
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

/// The part of the trace that is spent at a target.
pub(super) fn target(tracer: &Tracer, parent: Option<Context>, entered: &Entered) -> Span {
    let mut span = tracer.client(parent, || "target".to_owned());
    if span.is_recording() {
        span.set("gantry.model", &*entered.version.internal);
        span.set("gantry.server", entered.endpoint.server.as_str());
        span.set("gantry.replica", i64::from(entered.endpoint.replica));
    }
    span
}

/// The request has left its target, however that came about.
pub(super) fn left(span: &mut Span, protocol: Protocol, code: u16) {
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
