//! gRPC calls: the methods of the protocol, health and reflection.

use super::{
    Worker,
    forward::{Call, Head, Payload, Target, deadline},
    headers, read, respond,
    rest::plain_model,
};
use crate::{body::ResponseBody, metrics::Protocol};
use bytes::Bytes;
use gantry_oip::{
    Code, Error,
    grpc::{SERVICE, decode_frame, peek_name},
    server,
};
use gantry_proto::inference as pb;
use http::{HeaderValue, Response, request::Parts};
use hyper::body::Incoming;
use std::{borrow::Cow, sync::Arc, time::Instant};

/// The bytes before a message.
pub(super) const PREFIX: usize = 5;

impl Worker {
    /// Answers one call, whatever it is.
    pub(super) async fn grpc(
        self: &Arc<Self>,
        parts: Parts,
        body: Incoming,
        request_id: HeaderValue,
    ) -> Response<ResponseBody> {
        let Some(method) = parts.uri.path().strip_prefix(SERVICE) else {
            return self.own_service(parts, body).await;
        };
        let answered = match method {
            "ModelInfer" => self.call(parts, body, request_id, true).await,
            "ModelMetadata" => self.call(parts, body, request_id, false).await,
            "ModelReady" => self.ready(parts, body, request_id).await,
            "ModelStatistics" => self.statistics(parts, body, request_id).await,
            "ModelStreamInfer" => Ok(self.stream(parts, body, request_id)),
            "ServerLive" => Ok(own(&pb::ServerLiveResponse { live: true })),
            "ServerReady" => Ok(own(&pb::ServerReadyResponse { ready: self.shared.routes.is_synced() })),
            "ServerMetadata" => Ok(own(&pb::ServerMetadataResponse::from(&super::own::metadata()))),
            "RepositoryIndex" => self.grpc_index(&parts, body).await,
            "RepositoryModelLoad" => self.grpc_load(&parts, body).await,
            "RepositoryModelUnload" => self.grpc_unload(&parts, body).await,
            _ => Err(Error::new(Code::Unimplemented, format!("there is no method {method:?}"))),
        };
        answered.unwrap_or_else(|error| respond::error(&error, Protocol::Grpc))
    }

    /// A unary call that goes to a model's server.
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
        let Ok(first) = tokio::time::timeout_at(deadline.into(), reading).await else {
            return Err(Error::new(Code::DeadlineExceeded, "the message did not arrive in time"));
        };
        let mut first = first?;
        let sticky = parts.headers.get(headers::ROUTE);
        let name = match parts.headers.get(headers::MODEL).map(HeaderValue::to_str) {
            Some(Ok(name)) => Cow::Borrowed(plain_model(name, Protocol::Grpc)?),
            Some(Err(_)) => return Err(Error::invalid("the header seldon-model is not a model's name")),
            None => {
                let naming = self.name(&parts, &mut body, &mut first);
                let Ok(name) = tokio::time::timeout_at(deadline.into(), naming).await else {
                    return Err(Error::new(Code::DeadlineExceeded, "the message did not arrive in time"));
                };
                Cow::Owned(name?)
            }
        };
        let entered = if infer {
            self.enter_awake(&name, sticky, Protocol::Grpc, deadline).await?
        } else {
            self.enter(&name, sticky, Protocol::Grpc, &[])?
        };
        let call = Call {
            model: Arc::clone(&entered.version.model),
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
        self.forward(&call, entered, &Target::Grpc(&parts.uri), head, payload).await
    }

    /// How long a call may take.
    pub(super) fn timeout(&self, parts: &Parts) -> std::time::Duration {
        let config = &self.shared.config;
        headers::grpc_timeout(&parts.headers)
            .unwrap_or(config.request_timeout)
            .min(config.max_request_timeout)
    }

    /// The whole message when it is small; otherwise enough of it to know the model.
    async fn first_part(&self, body: &mut Incoming) -> Result<Bytes, Error> {
        let limit = self.shared.config.max_body;
        let first = read::more(body, Bytes::new(), PREFIX, limit).await?;
        let Some(length) = message_length(&first) else {
            return Err(Error::invalid(format!("a gRPC body of {} bytes has no message", first.len())));
        };
        if length > limit {
            return Err(read::too_large(limit));
        }
        let enough = (PREFIX + length).min(read::SMALL);
        read::more(body, first, enough, limit).await
    }

    /// The model that a message names. `first` is what has arrived of it, and grows if more must be read.
    async fn name(&self, parts: &Parts, body: &mut Incoming, first: &mut Bytes) -> Result<String, Error> {
        if let [0, _, _, _, _, start @ ..] = &**first
            && !is_whole(first)
        {
            // A large message: writers put the name in front, so it is in what has arrived.
            return leading_name(start).map(str::to_owned).ok_or_else(|| {
                Error::invalid(
                    "the model's name must stand before the tensors, or in the header seldon-model",
                )
            });
        }
        let limit = self.shared.config.max_body;
        *first = read::more(body, std::mem::take(first), usize::MAX, limit).await?;
        let encoding = parts.headers.get("grpc-encoding").map(HeaderValue::as_bytes);
        let message = decode_frame(first, encoding, limit)?;
        let name = peek_name(&message).ok_or_else(|| Error::invalid("the message is not valid protobuf"))?;
        if name.is_empty() {
            return Err(Error::invalid("the message names no model"));
        }
        Ok(name.to_owned())
    }

    /// A model that exists but is not served is not ready; that is an answer, not an error.
    async fn ready(
        self: &Arc<Self>,
        parts: Parts,
        body: Incoming,
        request_id: HeaderValue,
    ) -> Result<Response<ResponseBody>, Error> {
        match self.call(parts, body, request_id, false).await {
            Err(error) if error.code == Code::Unavailable => {
                Ok(own(&pb::ModelReadyResponse { ready: false }))
            }
            answered => answered,
        }
    }

    /// A tonic-free way to read the one message of a call that the gateway answers itself.
    pub(super) async fn message<M: prost::Message + Default>(
        &self,
        parts: &Parts,
        mut body: Incoming,
    ) -> Result<M, Error> {
        let limit = read::SMALL;
        let reading = read::whole(&mut body, limit);
        let Ok(bytes) = tokio::time::timeout(self.timeout(parts), reading).await else {
            return Err(Error::new(Code::DeadlineExceeded, "the message did not arrive in time"));
        };
        let encoding = parts.headers.get("grpc-encoding").map(HeaderValue::as_bytes);
        let message = decode_frame(&bytes?, encoding, limit)?;
        M::decode(message).map_err(|e| Error::invalid(format!("the message is not valid protobuf: {e}")))
    }

    /// The statistics of one model from its server, or of all.
    async fn statistics(
        self: &Arc<Self>,
        parts: Parts,
        mut body: Incoming,
        request_id: HeaderValue,
    ) -> Result<Response<ResponseBody>, Error> {
        // Nothing but a prefix: the message is empty, so it names no model.
        let first = read::more(&mut body, Bytes::new(), PREFIX, read::SMALL).await?;
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
        let mut whole = read::more(&mut body, first, usize::MAX, read::SMALL).await?;
        let name = match parts.headers.get(headers::MODEL).map(HeaderValue::to_str) {
            Some(Ok(name)) => plain_model(name, Protocol::Grpc)?.to_owned(),
            _ => self.name(&parts, &mut body, &mut whole).await?,
        };
        let entered = self.enter(&name, None, Protocol::Grpc, &[])?;
        let call = Call {
            model: Arc::clone(&entered.version.model),
            sticky: None,
            protocol: Protocol::Grpc,
            infer: false,
            started,
            deadline,
            trace: self.shared.config.tracer.context(&parts.headers),
        };
        let head = Head { method: parts.method, headers: std::mem::take(&mut parts.headers), request_id };
        self.forward(&call, entered, &Target::Grpc(&parts.uri), head, Payload::Whole(whole)).await
    }
}

/// A message of our own as a response.
pub(super) fn own(message: &impl prost::Message) -> Response<ResponseBody> {
    respond::own(server::grpc_reply(message))
}

/// The length of the message that a prefix announces.
pub(super) fn message_length(body: &[u8]) -> Option<usize> {
    let (&[_, a, b, c, d], _) = body.split_first_chunk::<PREFIX>()?;
    Some(u32::from_be_bytes([a, b, c, d]) as usize)
}

fn is_whole(body: &[u8]) -> bool {
    message_length(body).is_some_and(|length| body.len() == PREFIX + length)
}

/// The name at the start of a message of which only the start is here.
fn leading_name(start: &[u8]) -> Option<&str> {
    let (&tag, rest) = start.split_first()?;
    let (&length, rest) = rest.split_first()?;
    // A name of 128 bytes or more is no model's.
    if tag != 0x0a || length >= 128 {
        return None;
    }
    std::str::from_utf8(rest.get(..usize::from(length))?).ok()
}
