//! `ModelStreamInfer`: each message is routed. Messages to a server that supports streams share a stream to their replica,
//! so that a message may have several responses; all other messages are unary calls, whose responses keep the order.

use super::{
    Worker,
    access::{self, Access},
    client::{Client, Exchange},
    destination::{Destination, Name, Wanted, no_candidate},
    forward::{Call, Head, Target},
    grpc::{message_length, version_of},
    headers, local_response,
    replica_stream::{ReplicaStream, peek_id},
    request_body::{self, Incomplete},
    sequence,
};
use crate::{
    body::ResponseBody,
    routes::{InFlightRequest, SelectError},
};
use bytes::{BufMut as _, Bytes, BytesMut};
use gantry_auth::{Action, Reason};
use gantry_oip::{
    Code, Error,
    grpc::{
        MODEL_INFER, PREFIX, RequestFields, decode_frame, encode_frame, frame_message, peek_request, status,
        status_trailers,
    },
};
use gantry_proto::inference as pb;
use gantry_transport::{BoxError, Protocol, body::Payload, deadline, memory::Reservation};
use http::{HeaderMap, HeaderValue, Method, Response, Uri, header, request::Parts};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use std::sync::Arc;
use tokio::{sync::mpsc, task::JoinSet, time::Instant};

/// A client's stream.
pub(super) struct ClientStream {
    pub(super) worker: Arc<Worker>,
    pub(super) parts: Parts,
    pub(super) request_id: HeaderValue,
    pub(super) client: Arc<Client>,
    access: Access,
    pub(super) answers: mpsc::Sender<Frame<Bytes>>,
    /// From `grpc-timeout`.
    pub(super) deadline: Instant,
    pub(super) replica_streams: Vec<ReplicaStream>,
    /// Forward the responses of `replica_streams`; aborted with the client's stream.
    pub(super) relays: JoinSet<()>,
    /// Replicas that do not support streams.
    pub(super) unary_only: Vec<u64>,
}

impl Worker {
    pub(super) fn stream(
        self: &Arc<Self>,
        parts: Parts,
        body: Incoming,
        request_id: HeaderValue,
        exchange: &Exchange,
    ) -> Response<ResponseBody> {
        // Backpressure: a slow client blocks its stream after a few responses.
        let (answers, frames) = mpsc::channel(4);
        let timeout = headers::grpc_timeout(&parts.headers);
        let mut stream = ClientStream {
            worker: Arc::clone(self),
            parts,
            request_id,
            client: Arc::clone(&exchange.client),
            access: exchange.access.clone(),
            answers,
            deadline: deadline(Instant::now(), timeout.unwrap_or(std::time::Duration::MAX)),
            replica_streams: Vec::new(),
            relays: JoinSet::new(),
            unary_only: Vec::new(),
        };
        tokio::spawn(async move {
            let (answers, end) = (stream.answers.clone(), stream.deadline);
            let ended = tokio::select! {
                ended = stream.run(body) => ended,
                () = tokio::time::sleep_until(end) => {
                    Err(Error::new(Code::DeadlineExceeded, "the deadline of the stream has passed"))
                }
                // The client disconnected.
                () = answers.closed() => return,
            };
            // No response follows the trailers.
            drop(stream);
            let _ = answers.send(Frame::trailers(status_trailers(ended.err().as_ref()))).await;
        });
        let mut response = Response::new(ResponseBody::Messages(frames));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        response
    }

    /// The next message with its prefix; `None` at the end of the stream. An incomplete message is limited as a body is.
    async fn next_message(
        &self,
        body: &mut Incoming,
        received: &mut BytesMut,
        client: &Arc<Client>,
    ) -> Result<Option<Bytes>, Error> {
        let config = &self.shared.config;
        let mut memory = Reservation::new(&client.memory);
        // Set with the first bytes of a message.
        let mut incomplete: Option<(Incomplete, Instant)> = None;
        loop {
            if let Some(length) = message_length(received) {
                if length > config.max_body {
                    return Err(request_body::too_large(config.max_body));
                }
                if received.len() >= PREFIX + length {
                    return Ok(Some(memory.attach(received.split_to(PREFIX + length).freeze())));
                }
            }
            if !received.is_empty() && incomplete.is_none() {
                incomplete = Some((self.incomplete(client, Protocol::Grpc)?, Instant::now()));
            }
            let timeout = match &incomplete {
                None => deadline(Instant::now(), config.max_request_timeout),
                Some((_, since)) => {
                    let is_small = received.len() < request_body::SMALL;
                    deadline(*since, if is_small { config.body_timeout } else { config.request_timeout })
                }
            };
            let Ok(frame) = tokio::time::timeout_at(timeout, body.frame()).await else {
                return Err(Error::new(Code::DeadlineExceeded, "the next message did not arrive in time"));
            };
            let Some(frame) = frame else {
                return if received.is_empty() {
                    Ok(None)
                } else {
                    let length = received.len();
                    Err(Error::invalid(format!("the stream ends within a message, after {length} bytes")))
                };
            };
            let frame = frame.map_err(|e| Error::invalid(format!("failed to read the stream: {e}")))?;
            if let Some(data) = frame.data_ref() {
                let exhausted = |_| request_body::memory_exhausted(Protocol::Grpc);
                memory.grow_to(received.len() + data.len()).map_err(exhausted)?;
                received.extend_from_slice(data);
            }
        }
    }
}

impl ClientStream {
    async fn run(&mut self, mut body: Incoming) -> Result<(), Error> {
        let limit = self.worker.shared.config.max_body;
        let encoding = self.parts.headers.get("grpc-encoding").cloned();
        let mut received = BytesMut::new();
        let worker = Arc::clone(&self.worker);
        while let Some(framed) = worker.next_message(&mut body, &mut received, &self.client).await? {
            let renewed = self.access.renew(worker.shared.config.auth.as_ref());
            let limited = match &renewed {
                Err(denied) if denied.reason != Reason::Limited => return Err(access::error(denied)),
                renewed => renewed.as_ref().err().map(access::error),
            };
            let handled = match decode(framed, encoding.clone(), limit).await {
                Ok(message) => {
                    let answered = match limited {
                        Some(error) => Err(error),
                        None => self.message(&message).await,
                    };
                    answered.unwrap_or_else(|error| Some(error_answer(error, peek_id(&message))))
                }
                Err(error) => Some(error_answer(error, String::new())),
            };
            // An error answers its message; the stream continues.
            if let Some(answer) = handled
                && self.answers.send(Frame::data(self.client.memory.charge(answer))).await.is_err()
            {
                return Ok(());
            }
        }
        // Ends the streams to the replicas, and waits for their last responses.
        self.replica_streams.clear();
        while self.relays.join_next().await.is_some() {}
        Ok(())
    }

    /// Returns a framed `ModelStreamInferResponse`, or `None` if a replica's stream answers.
    async fn message(&mut self, message: &Bytes) -> Result<Option<Bytes>, Error> {
        let fields =
            peek_request(message).ok_or_else(|| Error::invalid("the message is not valid protobuf"))?;
        let name = self.chosen_model(&fields)?;
        let version = version_of(&name, &fields)?;
        let sequence = fields.sequence.map(|id| sequence::grpc_key(&name, id));
        if self.send_to_open_stream(&name, version, message).await? {
            return Ok(None);
        }
        let admitted = self.worker.admit(&self.client, Protocol::Grpc)?;
        let call_deadline = deadline(Instant::now(), self.worker.shared.config.request_timeout);
        let in_flight = self.acquire(&name, call_deadline).await?;
        let endpoint = &in_flight.endpoint;
        if endpoint.local().is_some() || self.unary_only.contains(&endpoint.id) {
            let call = Call { version, sequence, ..self.call(&in_flight, call_deadline) };
            return self.unary(call, in_flight, message).await.map(Some);
        }
        check_version(&name, version, in_flight.version.number)?;
        let id = endpoint.id;
        if self.open_stream(&name, in_flight, message, admitted).await? {
            return Ok(None);
        }
        self.unary_only.push(id);
        let in_flight = self.acquire(&name, call_deadline).await?;
        let call = Call { version, sequence, ..self.call(&in_flight, call_deadline) };
        self.unary(call, in_flight, message).await.map(Some)
    }

    /// The model of a message, after experiments. Copies to mirrors are made of unary requests only.
    fn chosen_model(&self, fields: &RequestFields<'_>) -> Result<String, Error> {
        let sticky = headers::sticky(&self.parts.headers);
        let name = Name::of(&self.parts.headers, fields.name)?;
        self.access.authorize(Action::Infer, access::of_name(name))?;
        let mut wanted = match self.worker.destination(name, sticky.as_ref(), Protocol::Grpc)? {
            Destination::Model(wanted) => wanted.with_version(!fields.version.is_empty()),
            Destination::Pipeline(_) => {
                let message = "pipelines are not served on streams: use ModelInfer";
                return Err(Error::new(Code::Unimplemented, message));
            }
        };
        if !wanted.is_chosen
            && let Some(experiment) = self.worker.shared.routes.takeover(&wanted.model)
            && !wanted.choose(Arc::clone(&experiment), sticky.as_ref().map(HeaderValue::as_bytes))
        {
            return Err(no_candidate(&experiment));
        }
        Ok(wanted.model.to_owned())
    }

    async fn acquire(&self, name: &str, deadline: Instant) -> Result<InFlightRequest, Error> {
        let sticky = headers::sticky(&self.parts.headers);
        let wanted = Wanted::new(name).with_version(true);
        self.worker.acquire_or_wake(wanted, sticky.as_ref(), Protocol::Grpc, deadline).await
    }

    pub(super) fn call(&self, in_flight: &InFlightRequest, deadline: Instant) -> Call {
        Call {
            model: Arc::clone(&in_flight.version.model),
            sticky: headers::sticky(&self.parts.headers),
            version: None,
            sequence: None,
            protocol: Protocol::Grpc,
            infer: true,
            started: Instant::now(),
            deadline,
            trace: self.worker.shared.config.tracer.context(&self.parts.headers),
            step: None,
            is_component: false,
        }
    }

    pub(super) fn head(&self) -> Head {
        let mut sent = HeaderMap::with_capacity(8);
        sent.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        sent.insert(header::TE, HeaderValue::from_static("trailers"));
        if let Some(trace) = self.parts.headers.get("traceparent") {
            sent.insert("traceparent", trace.clone());
        }
        Head { method: Method::POST, headers: sent, request_id: self.request_id.clone() }
    }

    async fn unary(&self, call: Call, in_flight: InFlightRequest, message: &Bytes) -> Result<Bytes, Error> {
        let uri = Uri::from_static(MODEL_INFER);
        let payload = Payload::Whole(frame_message(message));
        let response =
            self.worker.forward(&call, in_flight, &Target::Grpc(&uri), self.head(), payload).await?;
        let (head, body) = response.into_parts();
        let collecting = tokio::time::timeout_at(call.deadline, body.collect());
        let collected = match collecting.await {
            Ok(collected) => collected
                .map_err(|e: BoxError| Error::unavailable(format!("the response ended early: {e}"), 1))?,
            Err(_) => return Err(Error::new(Code::DeadlineExceeded, "the model did not respond in time")),
        };
        let ended = collected.trailers().and_then(status).or_else(|| status(&head.headers));
        ended.unwrap_or_else(|| Err(Error::internal("the response has no grpc-status")))?;
        let encoding = head.headers.get("grpc-encoding").map(HeaderValue::as_bytes);
        let answer = decode_frame(&collected.to_bytes(), encoding, self.worker.shared.config.max_body)?;
        Ok(wrap(&answer))
    }
}

/// All messages on a replica's stream are for one version.
pub(super) fn check_version(model: &str, wanted: Option<u32>, served: u32) -> Result<(), Error> {
    if wanted.is_none_or(|wanted| wanted == served) {
        return Ok(());
    }
    let unknown = SelectError::UnknownVersion { served };
    Err(local_response::select_error(&unknown, model, Protocol::Grpc, None))
}

/// Inflates compressed messages off the event loop.
async fn decode(framed: Bytes, encoding: Option<HeaderValue>, limit: usize) -> Result<Bytes, Error> {
    if framed.first() == Some(&0) {
        return decode_frame(&framed, None, limit);
    }
    let inflate = move || decode_frame(&framed, encoding.as_ref().map(HeaderValue::as_bytes), limit);
    tokio::task::spawn_blocking(inflate)
        .await
        .map_err(|_| Error::internal("the message could not be decoded"))?
}

/// An error as the answer to a message; it carries the message's ID.
pub(super) fn error_answer(error: Error, id: String) -> Bytes {
    let infer_response = (!id.is_empty()).then(|| pb::ModelInferResponse { id, ..Default::default() });
    encode_frame(&pb::ModelStreamInferResponse { error_message: error.message, infer_response })
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
