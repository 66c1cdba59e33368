//! One request: probe, log, batch or forward.

use super::{
    batcher::Batcher,
    capture::Captured,
    component::{Call, ComponentClient, StreamedBody},
    logger::{EventKind, Exchange, Logger},
    probe::Prober,
};
use crate::proxy::RequestLimits;
use bytes::Bytes;
use gantry_oip::{
    Code, Error,
    server::{self, Reply},
};
use gantry_transport::{
    Protocol,
    body::{Payload, UpstreamBody, read_more},
    headers::grpc_timeout,
};
use http::{HeaderMap, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::Either;
use hyper::body::Incoming;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// Bodies up to this size are logged before they are sent, whatever becomes of the request.
const SMALL: usize = 64 << 10;
/// Header of readiness probes, as of Knative's queue proxy.
const PROBE: &str = "k-network-probe";
const PREDICT: &str = ":predict";

pub(super) type ResponseBody = Either<Reply, StreamedBody>;

pub(super) struct Handler {
    pub(super) component: Arc<ComponentClient>,
    pub(super) logger: Option<Arc<Logger>>,
    pub(super) batcher: Option<Batcher>,
    pub(super) prober: Prober,
    pub(super) limits: RequestLimits,
    pub(super) slots: Arc<Semaphore>,
    /// Bytes of the bodies that batches hold.
    pub(super) memory: Arc<Semaphore>,
    pub(super) is_draining: Arc<AtomicBool>,
}

impl Handler {
    pub(super) async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<ResponseBody> {
        let protocol = Protocol::of(request.headers());
        if is_probe(request.headers()) {
            return self.probe().await.map(Either::Left);
        }
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            let error = Error::new(Code::ResourceExhausted, "too many requests in flight");
            return protocol.error(&Error { retry_after: Some(1), ..error }).map(Either::Left);
        };
        let answered = self.answer(request, protocol, slot).await;
        answered.unwrap_or_else(|error| protocol.error(&error).map(Either::Left))
    }

    async fn probe(&self) -> Response<Reply> {
        let not_ready = |message: &str| server::rest_error(&Error::unavailable(message, 1));
        if self.is_draining.load(Relaxed) {
            return not_ready("shutting down");
        }
        if !self.prober.is_ready().await {
            return not_ready("the model server is not ready");
        }
        Response::new(Reply::new("queue".into()))
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        protocol: Protocol,
        slot: OwnedSemaphorePermit,
    ) -> Result<Response<ResponseBody>, Error> {
        let timeout = self.limits.timeout;
        let timeout = grpc_timeout(request.headers()).map_or(timeout, |t| t.min(self.limits.max_timeout));
        let deadline = gantry_transport::deadline(Instant::now(), timeout);
        let (parts, body) = request.into_parts();
        let logger = self.logger.as_ref().filter(|_| is_inference(&parts.method, parts.uri.path(), protocol));
        let logged = logger.map(|logger| (logger, logger.exchange(&parts.headers)));
        match &self.batcher {
            Some(batcher)
                if protocol == Protocol::Rest
                    && parts.method == Method::POST
                    && parts.uri.path().ends_with(PREDICT) =>
            {
                let batched = self.batch(batcher, &parts, body, logged);
                let batched = tokio::time::timeout_at(deadline, batched);
                let response = batched.await.map_err(|_| self.component.deadline_exceeded())??;
                Ok(response.map(Either::Left))
            }
            _ => self.forward(parts, body, protocol, deadline, logged, slot).await,
        }
    }

    async fn batch(
        &self,
        batcher: &Batcher,
        parts: &Parts,
        mut body: Incoming,
        logged: Option<(&Arc<Logger>, Exchange)>,
    ) -> Result<Response<Reply>, Error> {
        let mut held: Option<OwnedSemaphorePermit> = None;
        let charge = |total: usize| {
            let more = total.saturating_sub(held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
            let permit = u32::try_from(more).ok();
            let permit = permit.and_then(|n| Arc::clone(&self.memory).try_acquire_many_owned(n).ok());
            let permit = permit.ok_or_else(|| Error::unavailable("too many bytes wait for a batch", 1))?;
            match &mut held {
                Some(held) => held.merge(permit),
                none => *none = Some(permit),
            }
            Ok(())
        };
        let (body, _) = read_more(&mut body, Bytes::new(), usize::MAX, self.limits.max_body, charge).await?;
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        if let Some((logger, exchange)) = &logged {
            logger.log(EventKind::Request, exchange, content_type, &body);
        }
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let response = batcher.predict(path, &body).await?;
        if let Some((logger, exchange)) = &logged
            && response.status() == StatusCode::OK
        {
            let content_type = response.headers().get(header::CONTENT_TYPE);
            logger.log(EventKind::Response, exchange, content_type, response.body().data());
        }
        Ok(response)
    }

    async fn forward(
        &self,
        parts: Parts,
        body: Incoming,
        protocol: Protocol,
        deadline: Instant,
        logged: Option<(&Arc<Logger>, Exchange)>,
        slot: OwnedSemaphorePermit,
    ) -> Result<Response<ResponseBody>, Error> {
        // A stream may send its next message after a response.
        let enough = if protocol == Protocol::Rest && logged.is_some() { SMALL } else { 0 };
        let reading = Payload::read(body, enough, self.limits.max_body);
        let reading = tokio::time::timeout_at(deadline, reading).await;
        let payload =
            reading.map_err(|_| Error::new(Code::DeadlineExceeded, "the body did not arrive in time"))??;
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        let mut capture = None;
        if let Some((logger, exchange)) = &logged {
            match &payload {
                Payload::Whole(body) => logger.log(EventKind::Request, exchange, content_type, body),
                Payload::Partial { .. } | Payload::Messages(_) => {
                    capture = logger.capture(EventKind::Request, exchange, content_type);
                }
            }
        }
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let call = Call { protocol, method: parts.method, path, headers: parts.headers, deadline };
        let body = Captured::new(UpstreamBody::new(payload, self.limits.max_body), capture);
        let response = self.component.send(call, body).await?;
        let capture =
            logged.filter(|_| response.status() == StatusCode::OK).and_then(|(logger, exchange)| {
                logger.capture(EventKind::Response, &exchange, response.headers().get(header::CONTENT_TYPE))
            });
        Ok(response
            .map(|body| Either::Right(StreamedBody::new(Captured::new(body, capture), deadline, slot))))
    }
}

/// Probes of the kubelet and of Knative.
fn is_probe(headers: &HeaderMap) -> bool {
    let is_kubelet = |agent: &http::HeaderValue| agent.as_bytes().starts_with(b"kube-probe/");
    headers.contains_key(PROBE) || headers.get(header::USER_AGENT).is_some_and(is_kubelet)
}

/// Whether a request is for a model: not one for metadata, health or the repository.
fn is_inference(method: &Method, path: &str, protocol: Protocol) -> bool {
    if method != Method::POST {
        return false;
    }
    match protocol {
        Protocol::Rest => !path.starts_with("/v2/repository/"),
        Protocol::Grpc => path.rsplit('/').next().is_some_and(|name| name.ends_with("Infer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_inference_is_logged() {
        for (method, path, protocol, expected) in [
            (Method::POST, "/v1/models/m:predict", Protocol::Rest, true),
            (Method::POST, "/v1/models/m:explain", Protocol::Rest, true),
            (Method::POST, "/v2/models/m/infer", Protocol::Rest, true),
            (Method::POST, "/openai/v1/chat/completions", Protocol::Rest, true),
            (Method::POST, "/v2/repository/models/m/load", Protocol::Rest, false),
            (Method::GET, "/v1/models/m", Protocol::Rest, false),
            (Method::GET, "/v2/health/ready", Protocol::Rest, false),
            (Method::POST, "/inference.GRPCInferenceService/ModelInfer", Protocol::Grpc, true),
            (Method::POST, "/inference.GRPCInferenceService/ModelStreamInfer", Protocol::Grpc, true),
            (Method::POST, "/inference.GRPCInferenceService/ServerLive", Protocol::Grpc, false),
            (Method::POST, "/grpc.health.v1.Health/Check", Protocol::Grpc, false),
        ] {
            assert_eq!(is_inference(&method, path, protocol), expected, "{method} {path}");
        }
    }
}
