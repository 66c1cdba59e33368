//! Streams to replicas: the messages of a client's stream for one model, on one replica.
//!
//! Responses are forwarded as they come, because only the server knows how many a message has (decoupled models). A stream
//! counts as one request in flight. It ends with the client's stream, when its replica leaves the route, after a time
//! without messages and responses, and at the request timeout's upper bound at the latest.

use super::{
    client::{Admitted, Client},
    forward::Target,
    grpc::message_length,
    request_body,
    stream::{ClientStream, check_version, error_answer},
};
use crate::{
    body::ResponseBody,
    policy::result_class::ResultClass,
    routes::{Attribution, InFlightRequest, Target as ReplicaTarget},
};
use bytes::{Bytes, BytesMut};
use gantry_oip::{
    Code, Error,
    grpc::{PREFIX, frame_message, replace_name, status},
};
use gantry_transport::{Protocol, body::Payload, deadline};
use http::Uri;
use http_body::Frame;
use http_body_util::BodyExt as _;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};
use tokio::{sync::mpsc, task::AbortHandle, time::Instant};

pub(super) struct ReplicaStream {
    model: String,
    version: u32,
    internal: Arc<str>,
    target: Weak<ReplicaTarget>,
    messages: mpsc::Sender<Bytes>,
    progress: Arc<Mutex<Progress>>,
    relay: AbortHandle,
}

struct Progress {
    last: Instant,
    /// Messages without a response, oldest first; at most [`MAX_UNANSWERED`].
    unanswered: VecDeque<Unanswered>,
}

struct Unanswered {
    id: String,
    sent: Instant,
}

impl Unanswered {
    fn new(id: String) -> Self {
        Self { id, sent: Instant::now() }
    }
}

/// Messages beyond it get no error when the stream fails.
const MAX_UNANSWERED: usize = 1024;

impl ReplicaStream {
    fn on_sent(&self, id: String) {
        let message = Unanswered::new(id);
        let mut progress = lock(&self.progress);
        progress.last = message.sent;
        if progress.unanswered.len() < MAX_UNANSWERED {
            progress.unanswered.push_back(message);
        }
    }
}

impl ClientStream {
    /// Sends a message on the stream that is open for its model; `false` if there is none.
    pub(super) async fn send_to_open_stream(
        &mut self,
        model: &str,
        version: Option<u32>,
        message: &Bytes,
    ) -> Result<bool, Error> {
        let routes = &self.worker.shared.routes;
        self.replica_streams
            .retain(|s| !s.relay.is_finished() && (s.model != model || routes.is_routed(model, &s.target)));
        let Some(stream) = self.replica_streams.iter().find(|s| s.model == model) else {
            return Ok(false);
        };
        check_version(model, version, stream.version)?;
        self.client.memory.check().map_err(|_| request_body::memory_exhausted(Protocol::Grpc))?;
        let framed = self.client.memory.charge(renamed(message, &stream.internal)?);
        let timeout = self.worker.shared.config.request_timeout;
        stream.on_sent(peek_id(message));
        match tokio::time::timeout(timeout, stream.messages.send(framed)).await {
            Ok(sent) => Ok(sent.is_ok()),
            Err(_) => Err(Error::new(Code::DeadlineExceeded, "the replica did not take the message in time")),
        }
    }

    /// Opens a stream to a replica with its first message; `false` if the server does not support streams.
    pub(super) async fn open_stream(
        &mut self,
        model: &str,
        in_flight: InFlightRequest,
        message: &Bytes,
        admitted: Admitted,
    ) -> Result<bool, Error> {
        let config = &self.worker.shared.config;
        let timeout = config.request_timeout;
        let end = self.deadline.min(deadline(Instant::now(), config.max_request_timeout));
        let (call, target) = (self.call(&in_flight, end), in_flight.target());
        let internal = Arc::clone(&in_flight.version.internal);
        let version = in_flight.version.number;
        let started = call.started;
        let (messages, receiver) = mpsc::channel(1);
        let first = self.client.memory.charge(renamed(message, &internal)?);
        let _ = messages.try_send(first);
        let uri = Uri::from_static("/inference.GRPCInferenceService/ModelStreamInfer");
        let target_uri = Target::Grpc(&uri);
        let payload = Payload::Messages(receiver);
        let opening = self.worker.forward(&call, in_flight, &target_uri, self.head(), payload);
        let response = match opening.await {
            Err(error) if error.code == Code::Unimplemented => return Ok(false),
            Err(error) if error.code == Code::DeadlineExceeded => return Err(no_response(model, timeout)),
            response => response?,
        };
        match status(response.headers()) {
            Some(Err(error)) if error.code == Code::Unimplemented => {
                // The unary call that follows counts.
                response.body().take_attribution();
                return Ok(false);
            }
            Some(Err(error)) => return Err(error),
            _ => {}
        }
        let first = Unanswered { id: peek_id(message), sent: started };
        let progress = Progress { last: Instant::now(), unanswered: [first].into() };
        let progress = Arc::new(Mutex::new(progress));
        let relay = Relay {
            model: model.to_owned(),
            attribution: response.body().take_attribution(),
            body: response.into_body(),
            progress: Arc::clone(&progress),
            answers: self.answers.clone(),
            client: Arc::clone(&self.client),
            max_message: config.max_body,
            timeout,
            _admitted: admitted,
        };
        let relay = self.relays.spawn(relay.run());
        let model = model.to_owned();
        self.replica_streams.push(ReplicaStream {
            model,
            version,
            internal,
            target,
            messages,
            progress,
            relay,
        });
        Ok(true)
    }
}

/// Forwards the responses of a replica's stream to the client.
struct Relay {
    model: String,
    /// What its messages count for, if the model has a rollout.
    attribution: Option<Attribution>,
    body: ResponseBody,
    progress: Arc<Mutex<Progress>>,
    answers: mpsc::Sender<Frame<Bytes>>,
    client: Arc<Client>,
    max_message: usize,
    timeout: Duration,
    _admitted: Admitted,
}

impl Relay {
    async fn run(mut self) {
        let mut received = BytesMut::new();
        let error = loop {
            let end = deadline(lock(&self.progress).last, self.timeout);
            match tokio::time::timeout_at(end, self.next_response(&mut received)).await {
                // A message was sent in the meantime.
                Err(_) if lock(&self.progress).last + self.timeout > end => {}
                Err(_) => break no_response(&self.model, self.timeout),
                Ok(Err(error)) => break error,
                Ok(Ok(None)) => break Error::unavailable("the replica ended the stream", 1),
                Ok(Ok(Some(framed))) => {
                    self.on_response(&framed);
                    let frame = Frame::data(self.client.memory.charge(framed));
                    if self.answers.send(frame).await.is_err() {
                        return;
                    }
                }
            }
        };
        // Only messages without any response: a decoupled model may have answered the others completely.
        let unanswered = std::mem::take(&mut lock(&self.progress).unanswered);
        for Unanswered { id, sent } in unanswered {
            self.record(result_class(&error), sent);
            if self.answers.send(Frame::data(error_answer(error.clone(), id))).await.is_err() {
                return;
            }
        }
    }

    fn on_response(&self, framed: &Bytes) {
        let message = framed.slice(PREFIX.min(framed.len())..);
        let id = peek_response_id(&message);
        let mut progress = lock(&self.progress);
        progress.last = Instant::now();
        let index = progress.unanswered.iter().position(|unanswered| unanswered.id == id);
        let first = index.and_then(|index| progress.unanswered.remove(index));
        drop(progress);
        if let Some(Unanswered { sent, .. }) = first {
            let is_error = peek_field(&message, ERROR_MESSAGE).is_some_and(|text| !text.is_empty());
            self.record(if is_error { ResultClass::ServerError } else { ResultClass::Success }, sent);
        }
    }

    /// Counts a message with its first response.
    fn record(&self, class: ResultClass, sent: Instant) {
        if let Some(attribution) = &self.attribution {
            attribution.record_latency(class, sent.elapsed());
        }
    }

    /// The next framed response; `None` at the end of the stream.
    async fn next_response(&mut self, received: &mut BytesMut) -> Result<Option<Bytes>, Error> {
        loop {
            if let Some(length) = message_length(received) {
                if length > self.max_message {
                    return Err(request_body::too_large(self.max_message));
                }
                if received.len() >= PREFIX + length {
                    return Ok(Some(received.split_to(PREFIX + length).freeze()));
                }
            }
            let Some(frame) = self.body.frame().await else {
                return Ok(None);
            };
            let lost = |e| Error::unavailable(format!("the replica's stream ended early: {e}"), 1);
            let frame = frame.map_err(lost)?;
            if let Some(trailers) = frame.trailers_ref() {
                status(trailers).unwrap_or(Ok(()))?;
            } else if let Some(data) = frame.data_ref() {
                received.extend_from_slice(data);
            }
        }
    }
}

/// Of messages that a stream ended without a response to.
fn result_class(error: &Error) -> ResultClass {
    match error.code {
        Code::Unavailable => ResultClass::NoResponse,
        _ => ResultClass::of(Protocol::Grpc, Protocol::Grpc.code(error)),
    }
}

fn no_response(model: &str, timeout: Duration) -> Error {
    let seconds = timeout.as_secs_f64();
    Error::new(Code::DeadlineExceeded, format!("model {model} did not respond within {seconds:.1} s"))
}

/// The message with the name under which the server has the model.
fn renamed(message: &Bytes, internal: &str) -> Result<Bytes, Error> {
    let renamed = replace_name(message, internal);
    Ok(frame_message(&renamed.ok_or_else(|| Error::invalid("the message is not valid protobuf"))?))
}

/// The ID of a `ModelInferRequest` or `ModelInferResponse`; empty if there is none.
pub(super) fn peek_id(message: &Bytes) -> String {
    const ID: u32 = 3;
    const MAX_LEN: usize = 1024;
    let id = peek_field(message, ID).filter(|id| id.len() <= MAX_LEN);
    id.and_then(|id| String::from_utf8(id.into()).ok()).unwrap_or_default()
}

/// Of a `ModelStreamInferResponse`.
const ERROR_MESSAGE: u32 = 1;

/// The ID in a `ModelStreamInferResponse`.
fn peek_response_id(message: &Bytes) -> String {
    const INFER_RESPONSE: u32 = 2;
    peek_field(message, INFER_RESPONSE).map(|response| peek_id(&response)).unwrap_or_default()
}

/// A field of bytes; the last one if it is repeated.
fn peek_field(message: &Bytes, field: u32) -> Option<Bytes> {
    use prost::encoding::{DecodeContext, WireType, bytes, decode_key, skip_field};
    let (mut rest, mut found) = (message.clone(), None);
    while !rest.is_empty() {
        let (tag, wire_type) = decode_key(&mut rest).ok()?;
        if tag == field && wire_type == WireType::LengthDelimited {
            let mut value = Bytes::new();
            bytes::merge(wire_type, &mut value, &mut rest, DecodeContext::default()).ok()?;
            found = Some(value);
        } else {
            skip_field(wire_type, tag, &mut rest, DecodeContext::default()).ok()?;
        }
    }
    found
}

fn lock(progress: &Mutex<Progress>) -> std::sync::MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}
