//! `ModelStreamInfer`: each message is routed on its own; responses keep the order.

use super::{
    Worker,
    forward::{Call, Head, Target},
    grpc::message_length,
    headers, request_body,
    rest::plain_model,
};
use crate::body::ResponseBody;
use bytes::{BufMut as _, Bytes, BytesMut};
use gantry_oip::{
    Code, Error,
    grpc::{
        PREFIX, SERVICE, decode_frame, encode_frame, frame_message, peek_name, percent_decode,
        status_trailers,
    },
};
use gantry_proto::inference as pb;
use gantry_transport::{BoxError, Protocol, body::Payload, deadline};
use http::{HeaderMap, HeaderValue, Method, Response, Uri, header, request::Parts};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;

impl Worker {
    pub(super) fn stream(
        self: &Arc<Self>,
        parts: Parts,
        body: Incoming,
        request_id: HeaderValue,
    ) -> Response<ResponseBody> {
        // Backpressure: a slow client blocks its stream after a few responses.
        let (answers, frames) = mpsc::channel(4);
        let worker = Arc::clone(self);
        tokio::spawn(async move {
            let ended = worker.messages(&parts, body, &request_id, &answers).await;
            let _ = answers.send(Frame::trailers(status_trailers(ended.err().as_ref()))).await;
        });
        let mut response = Response::new(ResponseBody::Messages(frames));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        response
    }

    async fn messages(
        self: &Arc<Self>,
        parts: &Parts,
        mut body: Incoming,
        request_id: &HeaderValue,
        answers: &mpsc::Sender<Frame<Bytes>>,
    ) -> Result<(), Error> {
        let limit = self.shared.config.max_body;
        let encoding = parts.headers.get("grpc-encoding").map(HeaderValue::as_bytes);
        let mut buffer = BytesMut::new();
        loop {
            let next = tokio::select! {
                next = next_message(&mut body, &mut buffer, limit) => next?,
                () = answers.closed() => return Ok(()),
            };
            let Some(framed) = next else {
                return Ok(());
            };
            let one = async {
                let message = decode_frame(&framed, encoding, limit)?;
                self.one(parts, message, request_id).await
            };
            let answer = tokio::select! {
                answer = one => answer,
                // The client disconnected.
                () = answers.closed() => return Ok(()),
            };
            // An error answers its message; the stream continues.
            let framed = answer.unwrap_or_else(|error| {
                encode_frame(&pb::ModelStreamInferResponse {
                    error_message: error.message,
                    infer_response: None,
                })
            });
            if answers.send(Frame::data(framed)).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Returns a framed `ModelStreamInferResponse`.
    async fn one(
        self: &Arc<Self>,
        parts: &Parts,
        message: Bytes,
        request_id: &HeaderValue,
    ) -> Result<Bytes, Error> {
        let started = Instant::now();
        let _counted = self.admit()?;
        let name = match parts.headers.get(headers::MODEL).map(HeaderValue::to_str) {
            Some(Ok(name)) => plain_model(name, Protocol::Grpc)?,
            _ => peek_name(&message).ok_or_else(|| Error::invalid("the message is not valid protobuf"))?,
        };
        let sticky = parts.headers.get(headers::ROUTE);
        let deadline = deadline(started, self.shared.config.request_timeout);
        let in_flight = self.acquire_or_wake(name, sticky, Protocol::Grpc, deadline).await?;
        let call = Call {
            model: Arc::clone(&in_flight.version.model),
            sticky: sticky.cloned(),
            protocol: Protocol::Grpc,
            infer: true,
            started,
            deadline,
            trace: self.shared.config.tracer.context(&parts.headers),
        };
        let uri = Uri::from_static("/inference.GRPCInferenceService/ModelInfer");
        debug_assert!(uri.path().starts_with(SERVICE));
        let mut sent = HeaderMap::with_capacity(8);
        sent.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        sent.insert(header::TE, HeaderValue::from_static("trailers"));
        if let Some(trace) = parts.headers.get("traceparent") {
            sent.insert("traceparent", trace.clone());
        }
        let head = Head { method: Method::POST, headers: sent, request_id: request_id.clone() };
        let payload = Payload::Whole(frame_message(&message));
        let response = self.forward(&call, in_flight, &Target::Grpc(&uri), head, payload).await?;
        let (head, body) = response.into_parts();
        let collecting = tokio::time::timeout_at(call.deadline, body.collect());
        let collected = match collecting.await {
            Ok(collected) => collected
                .map_err(|e: BoxError| Error::unavailable(format!("the response ended early: {e}"), 1))?,
            Err(_) => return Err(Error::new(Code::DeadlineExceeded, "the model did not respond in time")),
        };
        let status = |headers: &HeaderMap| -> Option<Result<(), Error>> {
            let status: u8 = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
            let message =
                headers.get("grpc-message").map(|m| percent_decode(m.as_bytes())).unwrap_or_default();
            Some(if status == 0 { Ok(()) } else { Err(Error::new(Code::from_grpc(status), message)) })
        };
        let ended = collected.trailers().and_then(status).or_else(|| status(&head.headers));
        ended.unwrap_or_else(|| Err(Error::internal("the response has no grpc-status")))?;
        let encoding = head.headers.get("grpc-encoding").map(HeaderValue::as_bytes);
        let answer = decode_frame(&collected.to_bytes(), encoding, self.shared.config.max_body)?;
        Ok(wrap(&answer))
    }
}

/// Wraps an encoded `ModelInferResponse` without decoding it.
fn wrap(answer: &[u8]) -> Bytes {
    const INFER_RESPONSE: u8 = 0x12;
    let length = answer.len() as u64;
    let inner = 1 + prost::length_delimiter_len(answer.len()) + answer.len();
    let mut out = BytesMut::with_capacity(PREFIX + inner);
    out.put_u8(0);
    out.put_u32(u32::try_from(inner).unwrap_or(u32::MAX));
    out.put_u8(INFER_RESPONSE);
    prost::encoding::encode_varint(length, &mut out);
    out.put_slice(answer);
    out.freeze()
}

/// The next message with its prefix; `None` at the end of the stream.
async fn next_message(
    body: &mut Incoming,
    buffer: &mut BytesMut,
    limit: usize,
) -> Result<Option<Bytes>, Error> {
    loop {
        if let Some(length) = message_length(buffer) {
            if length > limit {
                return Err(request_body::too_large(limit));
            }
            if buffer.len() >= PREFIX + length {
                return Ok(Some(buffer.split_to(PREFIX + length).freeze()));
            }
        }
        let Some(frame) = body.frame().await else {
            return if buffer.is_empty() {
                Ok(None)
            } else {
                Err(Error::invalid(format!("the stream ends within a message, after {} bytes", buffer.len())))
            };
        };
        let frame = frame.map_err(|e| Error::invalid(format!("failed to read the stream: {e}")))?;
        if let Some(data) = frame.data_ref() {
            buffer.extend_from_slice(data);
        }
    }
}
