//! Upstream requests, with one retry after a reload.

use super::{
    Failed, Proxy, Unprocessed,
    body::{Count, Guard, ResponseBody, StreamedResponse},
    deadline_exceeded, rejected,
};
use bytes::Bytes;
use gantry_oip::Error;
use gantry_transport::{
    Protocol,
    body::{BodyError, Payload, SharedScanner, UpstreamBody, exceeded_limit, too_large},
    headers::{grpc_status, remove_hop_by_hop},
};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header, uri::Scheme,
};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use std::sync::Arc;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

pub(super) struct Call {
    pub(super) protocol: Protocol,
    pub(super) internal: Arc<str>,
    /// Recorded as inference.
    pub(super) infer: bool,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) started: Instant,
    pub(super) deadline: Instant,
    pub(super) max_body: usize,
    /// For the rest of a partial gRPC message.
    pub(super) scanner: Option<SharedScanner>,
}

/// A response up to its status.
struct UpstreamResponse {
    parts: http::response::Parts,
    body: Incoming,
    /// Read ahead to find the gRPC status.
    first: Option<Frame<Bytes>>,
    /// HTTP status, or gRPC status if known.
    code: u16,
}

impl Proxy {
    pub(super) async fn forward(
        &self,
        call: Call,
        payload: Payload,
        slot: OwnedSemaphorePermit,
    ) -> Result<Response<ResponseBody>, Failed> {
        let name = call.internal.clone();
        let started = call.started;
        let protocol = call.protocol;
        let counted = call.infer.then(|| (self.metrics.clone(), name.clone()));
        let deadline = call.deadline;
        let answering = tokio::time::timeout_at(deadline, self.attempt(call, payload, slot));
        let result = answering.await.unwrap_or_else(|_| Err(deadline_exceeded(&name).into()));
        // Clients choose the name of an unknown model: it is no label.
        if let (Err(failed), Some((metrics, name))) = (&result, counted)
            && failed.unprocessed != Some(Unprocessed::UnknownModel)
        {
            metrics.record_inference(&name, protocol, protocol.code(&failed.error), started.elapsed());
        }
        result
    }

    async fn attempt(
        &self,
        call: Call,
        payload: Payload,
        slot: OwnedSemaphorePermit,
    ) -> Result<Response<ResponseBody>, Failed> {
        let acquire =
            || async { self.cache.acquire(&call.internal).await.map_err(|r| rejected(r, &call.internal)) };
        let mut in_flight = acquire().await?;
        let again = if let Payload::Whole(bytes) = &payload { Some(bytes.clone()) } else { None };
        let first_body = UpstreamBody::new(payload, call.max_body).scanned_by(call.scanner.clone());
        let mut response = self.send(&call, first_body).await?;
        // A restarted server has lost its models: reload and retry.
        if may_be_missing(call.protocol, response.code) && self.cache.handle_missing(&call.internal).await {
            let Some(bytes) = again else {
                return Err(Failed {
                    error: Error::unavailable(format!("model {} is being reloaded", call.internal), 1),
                    unprocessed: Some(Unprocessed::ModelNotLoaded),
                });
            };
            drop(in_flight);
            in_flight = acquire().await?;
            response = self.send(&call, UpstreamBody::Whole(bytes)).await?;
        }
        let UpstreamResponse { mut parts, body, first, code } = response;
        remove_hop_by_hop(&mut parts.headers);
        let count = call.infer.then(|| Count {
            metrics: self.metrics.clone(),
            internal: call.internal.clone(),
            protocol: call.protocol,
            started: call.started,
            code,
        });
        let relayed = StreamedResponse {
            first,
            body,
            guard: Guard { _in_flight: in_flight, _slot: slot, count },
            deadline: Box::pin(tokio::time::sleep_until(call.deadline)),
        };
        Ok(Response::from_parts(parts, ResponseBody::Server(Box::new(relayed))))
    }

    async fn send(&self, call: &Call, body: UpstreamBody) -> Result<UpstreamResponse, Failed> {
        let (client, authority, version) = match call.protocol {
            Protocol::Rest => (&self.http, &self.http_at, Version::HTTP_11),
            Protocol::Grpc => (&self.grpc, &self.grpc_at, Version::HTTP_2),
        };
        let bad = |_| Error::invalid("invalid path");
        let uri = Uri::builder().scheme(Scheme::HTTP).authority(authority.clone());
        let mut request = Request::new(body);
        *request.uri_mut() = uri.path_and_query(call.path.as_str()).build().map_err(bad)?;
        *request.method_mut() = call.method.clone();
        *request.version_mut() = version;
        *request.headers_mut() = call.headers.clone();
        request.headers_mut().remove(header::CONTENT_LENGTH);
        if let UpstreamBody::Whole(bytes) = request.body()
            && call.protocol == Protocol::Rest
            && (!bytes.is_empty() || call.method == Method::POST)
        {
            let length = HeaderValue::from(bytes.len());
            request.headers_mut().insert(header::CONTENT_LENGTH, length);
        }
        let response = client.request(request).await.map_err(|error| self.unreachable(&error, call))?;
        let (parts, mut body) = response.into_parts();
        if call.protocol == Protocol::Rest {
            let code = parts.status.as_u16();
            return Ok(UpstreamResponse { parts, body, first: None, code });
        }
        // Trailers-only responses carry the status in the headers.
        if let Some(code) = grpc_status(&parts.headers) {
            return Ok(UpstreamResponse { parts, body, first: None, code });
        }
        let first = body.frame().await.transpose().map_err(|_| self.connection_lost(call))?;
        let code = first.as_ref().and_then(|f| f.trailers_ref()).and_then(grpc_status);
        Ok(UpstreamResponse { parts, body, first, code: code.unwrap_or(0) })
    }

    fn unreachable(&self, error: &hyper_util::client::legacy::Error, call: &Call) -> Failed {
        if let Some(limit) = exceeded_limit(error) {
            return too_large(limit).into();
        }
        let has_failed = |s: &SharedScanner| s.lock().is_ok_and(|s| s.has_failed());
        if call.scanner.as_ref().is_some_and(has_failed) {
            return Error::invalid(BodyError::RepeatedName.to_string()).into();
        }
        self.cache.request_health_check();
        if error.is_connect() {
            return Failed {
                error: Error::unavailable("the inference server is unreachable", 1),
                unprocessed: Some(Unprocessed::ServerUnreachable),
            };
        }
        self.connection_lost(call).into()
    }

    fn connection_lost(&self, call: &Call) -> Error {
        self.cache.request_health_check();
        let model = &call.internal;
        Error::unavailable(format!("the inference server closed the connection (model {model})"), 1)
    }
}

/// Servers report a missing model with different codes.
fn may_be_missing(protocol: Protocol, code: u16) -> bool {
    match protocol {
        Protocol::Rest => StatusCode::from_u16(code).is_ok_and(|status| {
            matches!(
                status,
                StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST | StatusCode::SERVICE_UNAVAILABLE
            )
        }),
        Protocol::Grpc => matches!(code, 5 | 14),
    }
}
