//! Answers to the API server.

use super::{
    access::Access,
    api::{self, Call, Failure},
    front_proxy::FrontProxy,
    latency::Latencies,
};
use crate::{
    cluster::Key,
    https::{Handler, json_response},
};
use bytes::Bytes;
use gantry_tls::Peer;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// Longer than its parts: reading permissions and measuring.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(12);

pub(super) struct MetricsHandler {
    pub(super) front_proxy: Arc<FrontProxy>,
    pub(super) access: Access,
    pub(super) latencies: Latencies,
}

impl Handler for MetricsHandler {
    async fn handle(&self, request: Request<Incoming>, peer: &Peer) -> Response<Full<Bytes>> {
        let answered = tokio::time::timeout(REQUEST_TIMEOUT, self.answer(&request, peer)).await;
        let late = || Failure::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", "the request took too long");
        let (code, body) = match answered.unwrap_or_else(|_| Err(late())) {
            Ok(body) => (StatusCode::OK, body),
            Err(failure) => {
                let path = request.uri().path();
                tracing::debug!(code = failure.code.as_u16(), path, "external metrics: {}", failure.message);
                (failure.code, failure.body())
            }
        };
        json_response(code, body.to_string().into_bytes())
    }
}

impl MetricsHandler {
    async fn answer(&self, request: &Request<Incoming>, peer: &Peer) -> Result<Value, Failure> {
        let caller = self.front_proxy.caller(peer, request.headers())?;
        if request.method() != Method::GET {
            let message = "external metrics can only be read: use GET";
            return Err(Failure::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message));
        }
        match api::parse(request.uri().path(), request.uri().query())? {
            // The names of metrics are no secret; the caller is authenticated.
            Call::Discovery => Ok(api::resources()),
            Call::Value { namespace, algorithm } => {
                self.access.check(caller, &namespace).await?;
                let key = algorithm.map(|algorithm| Key::new(namespace, algorithm));
                let latency = match &key {
                    Some(key) => self.latencies.of(key).await?,
                    None => None,
                };
                Ok(api::values(key.as_ref(), latency, self.latencies.now()))
            }
        }
    }
}
