//! gRPC: inference service, health and reflection.

use super::{
    Worker,
    forward::{Call, Head, Target},
    headers, local_response, request_body,
    rest::plain_model,
};
use crate::body::ResponseBody;
use bytes::Bytes;
use gantry_oip::{
    Code, Error, ServerMetadata,
    grpc::{PREFIX, SERVICE, decode_frame, peek_name},
    server,
};
use gantry_proto::inference as pb;
use gantry_transport::{Protocol, body::Payload, deadline};
use http::{HeaderValue, Response, request::Parts};
use hyper::body::Incoming;
use std::{borrow::Cow, sync::Arc};
use tokio::time::Instant;

impl Worker {
    pub(super) async fn grpc(
        self: &Arc<Self>,
        parts: Parts,
        body: Incoming,
        request_id: HeaderValue,
    ) -> Response<ResponseBody> {
        let Some(method) = parts.uri.path().strip_prefix(SERVICE) else {
            return self.builtin_service(parts, body).await;
        };
        let answered = match method {
            "ModelInfer" => self.call(parts, body, request_id, true).await,
            "ModelMetadata" => self.call(parts, body, request_id, false).await,
            "ModelReady" => self.ready(parts, body, request_id).await,
            "ModelStatistics" => self.statistics(parts, body, request_id).await,
            "ModelStreamInfer" => Ok(self.stream(parts, body, request_id)),
            "ServerLive" => Ok(reply(&pb::ServerLiveResponse { live: true })),
            "ServerReady" => Ok(reply(&pb::ServerReadyResponse { ready: self.shared.routes.is_synced() })),
            "ServerMetadata" => Ok(reply(&pb::ServerMetadataResponse::from(&ServerMetadata::gantry()))),
            "RepositoryIndex" => self.grpc_index(&parts, body).await,
            "RepositoryModelLoad" => self.grpc_load(&parts, body).await,
            "RepositoryModelUnload" => self.grpc_unload(&parts, body).await,
            _ => Err(Error::new(Code::Unimplemented, format!("there is no method {method:?}"))),
        };
        answered.unwrap_or_else(|error| local_response::error(&error, Protocol::Grpc))
    }

    /// A unary call forwarded to the model's server.
    async fn call(
        self: &Arc<Self>,
        mut parts: Parts,
        mut body: Incoming,
        request_id: HeaderValue,
        infer: bool,
    ) -> Result<Response<ResponseBody>, Error> {
        let started = Instant::now();
        let deadline = deadline(started, self.timeout(&parts));
        let _counted = self.admit()?;
        let reading = self.first_part(&mut body);
        let Ok(first) = tokio::time::timeout_at(deadline, reading).await else {
            return Err(Error::new(Code::DeadlineExceeded, "the message did not arrive in time"));
        };
        let mut first = first?;
        let sticky = parts.headers.get(headers::ROUTE);
        let name = match parts.headers.get(headers::MODEL).map(HeaderValue::to_str) {
            Some(Ok(name)) => Cow::Borrowed(plain_model(name, Protocol::Grpc)?),
            Some(Err(_)) => return Err(Error::invalid("header seldon-model: invalid model name")),
            None => {
                let naming = self.name(&parts, &mut body, &mut first);
                let Ok(name) = tokio::time::timeout_at(deadline, naming).await else {
                    return Err(Error::new(Code::DeadlineExceeded, "the message did not arrive in time"));
                };
                Cow::Owned(name?)
            }
        };
        let in_flight = if infer {
            self.acquire_or_wake(&name, sticky, Protocol::Grpc, deadline).await?
        } else {
            self.acquire(&name, sticky, Protocol::Grpc, &[])?
        };
        let call = Call {
            model: Arc::clone(&in_flight.version.model),
            sticky: sticky.cloned(),
            protocol: Protocol::Grpc,
            infer,
            started,
            deadline,
            trace: self.shared.config.tracer.context(&parts.headers),
        };
        let payload =
            if is_whole(&first) { Payload::Whole(first) } else { Payload::Partial { first, rest: body } };
        let head = Head { method: parts.method, headers: std::mem::take(&mut parts.headers), request_id };
        self.forward(&call, in_flight, &Target::Grpc(&parts.uri), head, payload).await
    }

    pub(super) fn timeout(&self, parts: &Parts) -> std::time::Duration {
        let config = &self.shared.config;
        headers::grpc_timeout(&parts.headers)
            .unwrap_or(config.request_timeout)
            .min(config.max_request_timeout)
    }

    /// The whole message if small, else enough of it to read the model name.
    async fn first_part(&self, body: &mut Incoming) -> Result<Bytes, Error> {
        let limit = self.shared.config.max_body;
        let first = request_body::read_more(body, Bytes::new(), PREFIX, limit).await?;
        let Some(length) = message_length(&first) else {
            return Err(Error::invalid(format!("a gRPC body of {} bytes has no message", first.len())));
        };
        if length > limit {
            return Err(request_body::too_large(limit));
        }
        let enough = (PREFIX + length).min(request_body::SMALL);
        request_body::read_more(body, first, enough, limit).await
    }

    /// Model name of a message. `first` is the prefix received so far; more is read if needed.
    async fn name(&self, parts: &Parts, body: &mut Incoming, first: &mut Bytes) -> Result<String, Error> {
        if let [0, _, _, _, _, start @ ..] = &**first
            && !is_whole(first)
        {
            // Large message: generated clients encode the name first.
            return leading_name(start).map(str::to_owned).ok_or_else(|| {
                Error::invalid(
                    "the model name must precede the tensors, or be set in the header seldon-model",
                )
            });
        }
        let limit = self.shared.config.max_body;
        *first = request_body::read_more(body, std::mem::take(first), usize::MAX, limit).await?;
        let encoding = parts.headers.get("grpc-encoding").map(HeaderValue::as_bytes);
        let message = decode_frame(first, encoding, limit)?;
        let name = peek_name(&message).ok_or_else(|| Error::invalid("the message is not valid protobuf"))?;
        if name.is_empty() {
            return Err(Error::invalid("the message has no model name"));
        }
        Ok(name.to_owned())
    }

    /// A model without ready replicas is reported as `ready: false`, not as an error.
    async fn ready(
        self: &Arc<Self>,
        parts: Parts,
        body: Incoming,
        request_id: HeaderValue,
    ) -> Result<Response<ResponseBody>, Error> {
        match self.call(parts, body, request_id, false).await {
            Err(error) if error.code == Code::Unavailable => {
                Ok(reply(&pb::ModelReadyResponse { ready: false }))
            }
            answered => answered,
        }
    }

    /// Reads a unary request of a built-in endpoint.
    pub(super) async fn message<M: prost::Message + Default>(
        &self,
        parts: &Parts,
        mut body: Incoming,
    ) -> Result<M, Error> {
        let limit = request_body::SMALL;
        let reading = request_body::read_all(&mut body, limit);
        let Ok(bytes) = tokio::time::timeout(self.timeout(parts), reading).await else {
            return Err(Error::new(Code::DeadlineExceeded, "the message did not arrive in time"));
        };
        let encoding = parts.headers.get("grpc-encoding").map(HeaderValue::as_bytes);
        let message = decode_frame(&bytes?, encoding, limit)?;
        M::decode(message).map_err(|e| Error::invalid(format!("the message is not valid protobuf: {e}")))
    }

    /// Statistics of one model from its server, or of all models.
    async fn statistics(
        self: &Arc<Self>,
        parts: Parts,
        mut body: Incoming,
        request_id: HeaderValue,
    ) -> Result<Response<ResponseBody>, Error> {
        // Only a prefix: an empty message names no model.
        let first = request_body::read_more(&mut body, Bytes::new(), PREFIX, request_body::SMALL).await?;
        if message_length(&first) == Some(0) && !parts.headers.contains_key(headers::MODEL) {
            return self.grpc_all_statistics().await;
        }
        self.call_with(parts, body, request_id, first).await
    }

    async fn call_with(
        self: &Arc<Self>,
        mut parts: Parts,
        mut body: Incoming,
        request_id: HeaderValue,
        first: Bytes,
    ) -> Result<Response<ResponseBody>, Error> {
        let started = Instant::now();
        let deadline = deadline(started, self.timeout(&parts));
        let mut whole = request_body::read_more(&mut body, first, usize::MAX, request_body::SMALL).await?;
        let name = match parts.headers.get(headers::MODEL).map(HeaderValue::to_str) {
            Some(Ok(name)) => plain_model(name, Protocol::Grpc)?.to_owned(),
            _ => self.name(&parts, &mut body, &mut whole).await?,
        };
        let in_flight = self.acquire(&name, None, Protocol::Grpc, &[])?;
        let call = Call {
            model: Arc::clone(&in_flight.version.model),
            sticky: None,
            protocol: Protocol::Grpc,
            infer: false,
            started,
            deadline,
            trace: self.shared.config.tracer.context(&parts.headers),
        };
        let head = Head { method: parts.method, headers: std::mem::take(&mut parts.headers), request_id };
        self.forward(&call, in_flight, &Target::Grpc(&parts.uri), head, Payload::Whole(whole)).await
    }
}

pub(super) fn reply(message: &impl prost::Message) -> Response<ResponseBody> {
    local_response::from_reply(server::grpc_reply(message))
}

pub(super) fn message_length(body: &[u8]) -> Option<usize> {
    let (&[_, a, b, c, d], _) = body.split_first_chunk::<PREFIX>()?;
    Some(u32::from_be_bytes([a, b, c, d]) as usize)
}

fn is_whole(body: &[u8]) -> bool {
    message_length(body).is_some_and(|length| body.len() == PREFIX + length)
}

/// The model name at the start of a partial message.
fn leading_name(start: &[u8]) -> Option<&str> {
    let (&tag, rest) = start.split_first()?;
    let (&length, rest) = rest.split_first()?;
    // Model names are shorter than 128 bytes.
    if tag != 0x0a || length >= 128 {
        return None;
    }
    std::str::from_utf8(rest.get(..usize::from(length))?).ok()
}
