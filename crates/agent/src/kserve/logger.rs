//! Requests and responses as `CloudEvents`, sent to a sink beside the request path.
//!
//! ```text
//! request, response ──▶ capture (memory budget) ──▶ queue (bounded) ──▶ deliveries (deadline each) ──▶ sink
//! ```
//!
//! Nothing waits for the sink: an event that does not fit into the budget or the queue is dropped and counted.

use super::sink::Sink;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, stream::FuturesUnordered};
use gantry_transport::{
    headers::REQUEST_ID,
    request_id::{RequestIds, is_sane},
};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use jiff::Timestamp;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use serde_json::{Map, Value};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

const ID: HeaderName = HeaderName::from_static("ce-id");
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogMode {
    All,
    Request,
    Response,
}

impl std::str::FromStr for LogMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "request" => Ok(Self::Request),
            "response" => Ok(Self::Response),
            other => Err(format!("\"{}\" is no mode: use all, request or response", other.escape_debug())),
        }
    }
}

#[derive(Clone, Debug)]
pub struct LoggerSettings {
    /// Where events are sent: `http://…` or `https://…`.
    pub url: String,
    /// Certificates that are trusted besides the public ones.
    pub ca: Option<Vec<u8>>,
    pub mode: LogMode,
    /// Attributes of every event.
    pub source: String,
    pub inference_service: String,
    pub namespace: String,
    pub component: String,
    pub endpoint: String,
    /// Request headers that are added to events.
    pub metadata_headers: Vec<String>,
    /// Annotations that are added to events.
    pub annotations: Vec<(String, String)>,
    /// Concurrent deliveries.
    pub workers: usize,
    /// Events that can wait for a delivery.
    pub queue: usize,
    /// Bytes of all events that are captured, wait or are delivered.
    pub memory: usize,
    /// Deadline of a delivery.
    pub timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    Request,
    Response,
}

/// Why an event is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    /// The memory budget of events is used up.
    NoMemory,
    QueueFull,
    /// The body did not arrive completely.
    Incomplete,
}

impl Dropped {
    const fn as_str(self) -> &'static str {
        match self {
            Self::NoMemory => "dropped_memory",
            Self::QueueFull => "dropped_queue",
            Self::Incomplete => "dropped_incomplete",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    result: &'static str,
}

/// What the events of a request and its response have in common.
#[derive(Clone)]
pub(super) struct Exchange {
    id: HeaderValue,
    metadata: HeaderValue,
}

pub(super) struct Event {
    headers: HeaderMap,
    body: Vec<Bytes>,
    memory: Option<OwnedSemaphorePermit>,
}

pub(super) struct Logger {
    mode: LogMode,
    metadata_headers: Vec<String>,
    /// Attributes of every event.
    attributes: HeaderMap,
    ids: RequestIds,
    queue: mpsc::Sender<Event>,
    memory: Arc<Semaphore>,
    events: Family<EventLabels, Counter>,
    warned: Mutex<Option<Instant>>,
}

impl Logger {
    /// The logger, and its deliveries, which end when `stop` is cancelled and the queue is empty.
    pub(super) fn new(
        settings: LoggerSettings,
        stop: CancellationToken,
        registry: &mut Registry,
    ) -> Result<(Arc<Self>, impl Future<Output = ()> + Send + 'static), String> {
        let sink = Sink::new(&settings.url, settings.ca.as_deref(), settings.timeout)?;
        let events = Family::default();
        registry.register("gantry_log_events", "Logged requests and responses by result", events.clone());
        let (queue, waiting) = mpsc::channel(settings.queue.max(1));
        let logger = Arc::new(Self {
            mode: settings.mode,
            attributes: attributes(&settings)?,
            metadata_headers: settings.metadata_headers,
            ids: RequestIds::new(0),
            queue,
            memory: Arc::new(Semaphore::new(settings.memory.min(Semaphore::MAX_PERMITS))),
            events,
            warned: Mutex::new(None),
        });
        let delivering = deliver(Arc::clone(&logger), sink, waiting, settings.workers.max(1), stop);
        Ok((logger, delivering))
    }

    pub(super) const fn logs(&self, kind: EventKind) -> bool {
        matches!(
            (self.mode, kind),
            (LogMode::All, _)
                | (LogMode::Request, EventKind::Request)
                | (LogMode::Response, EventKind::Response)
        )
    }

    /// The ID of the client, else of the request, else a new one.
    pub(super) fn exchange(&self, headers: &HeaderMap) -> Exchange {
        let given = [ID, REQUEST_ID].iter().find_map(|name| headers.get(name).filter(|id| is_sane(id)));
        let mut metadata = Map::new();
        for name in &self.metadata_headers {
            let values = headers.get_all(name).iter();
            let values = values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned().into());
            let values: Vec<Value> = values.collect();
            if !values.is_empty() {
                metadata.insert(name.clone(), values.into());
            }
        }
        Exchange {
            id: given.cloned().unwrap_or_else(|| self.ids.next()),
            metadata: text(&Value::from(metadata).to_string()),
        }
    }

    /// Starts the event of a body; `None` if events of this kind are not logged.
    pub(super) fn capture(
        self: &Arc<Self>,
        kind: EventKind,
        exchange: &Exchange,
        content_type: Option<&HeaderValue>,
    ) -> Option<Capture> {
        if !self.logs(kind) {
            return None;
        }
        let mut headers = self.attributes.clone();
        let kind = match kind {
            EventKind::Request => "org.kubeflow.serving.inference.request",
            EventKind::Response => "org.kubeflow.serving.inference.response",
        };
        headers.insert(ID, exchange.id.clone());
        headers.insert("ce-type", HeaderValue::from_static(kind));
        headers.insert("ce-time", text(&Timestamp::now().to_string()));
        headers.insert("ce-metadata", exchange.metadata.clone());
        if let Some(content_type) = content_type {
            headers.insert(header::CONTENT_TYPE, content_type.clone());
        }
        let event = Event { headers, body: Vec::new(), memory: None };
        Some(Capture { logger: Arc::clone(self), event: Some(event) })
    }

    /// The event of a body that is there.
    pub(super) fn log(
        self: &Arc<Self>,
        kind: EventKind,
        exchange: &Exchange,
        content_type: Option<&HeaderValue>,
        body: &Bytes,
    ) {
        if let Some(mut capture) = self.capture(kind, exchange, content_type) {
            if capture.push(body) { capture.finish() } else { capture.discard(Dropped::NoMemory) }
        }
    }

    fn count(&self, result: &'static str) {
        self.events.get_or_create(&EventLabels { result }).inc();
    }

    fn drop_event(&self, reason: Dropped) {
        self.count(reason.as_str());
        self.warn(|| format!("an event was dropped ({})", reason.as_str()));
    }

    /// A sink that is down would fill the log.
    fn warn(&self, message: impl FnOnce() -> String) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
            *warned = Some(Instant::now());
            drop(warned);
            tracing::warn!(reason = message(), "events are not logged; counted in gantry_log_events_total");
        }
    }
}

/// An event whose body is being forwarded. Dropped without an end, it is incomplete.
pub(super) struct Capture {
    logger: Arc<Logger>,
    event: Option<Event>,
}

impl Capture {
    /// Whether there is memory for the data.
    pub(super) fn push(&mut self, data: &Bytes) -> bool {
        let Some(event) = &mut self.event else { return false };
        let Ok(bytes) = u32::try_from(data.len()) else { return false };
        let Ok(permit) = Arc::clone(&self.logger.memory).try_acquire_many_owned(bytes) else { return false };
        match &mut event.memory {
            Some(held) => held.merge(permit),
            none => *none = Some(permit),
        }
        event.body.push(data.clone());
        true
    }

    /// Queues the event.
    pub(super) fn finish(mut self) {
        if let Some(event) = self.event.take()
            && self.logger.queue.try_send(event).is_err()
        {
            self.logger.drop_event(Dropped::QueueFull);
        }
    }

    pub(super) fn discard(mut self, reason: Dropped) {
        self.event = None;
        self.logger.drop_event(reason);
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.event.take().is_some() {
            self.logger.drop_event(Dropped::Incomplete);
        }
    }
}

async fn deliver(
    logger: Arc<Logger>,
    sink: Sink,
    mut waiting: mpsc::Receiver<Event>,
    workers: usize,
    stop: CancellationToken,
) {
    let mut deliveries = FuturesUnordered::new();
    loop {
        tokio::select! {
            event = waiting.recv(), if deliveries.len() < workers => match event {
                None => break,
                Some(event) => deliveries.push(send(&logger, &sink, event)),
            },
            Some(()) = deliveries.next(), if !deliveries.is_empty() => {}
            () = stop.cancelled(), if !waiting.is_closed() => waiting.close(),
        }
    }
    while deliveries.next().await.is_some() {}
}

async fn send(logger: &Logger, sink: &Sink, event: Event) {
    let Event { mut headers, body, memory: _held } = event;
    let body = match body.as_slice() {
        [whole] => whole.clone(),
        frames => {
            let mut whole = BytesMut::with_capacity(frames.iter().map(Bytes::len).sum());
            for frame in frames {
                whole.extend_from_slice(frame);
            }
            whole.freeze()
        }
    };
    headers.insert("ce-recordedtime", text(&Timestamp::now().to_string()));
    match sink.send(headers, body).await {
        Ok(()) => logger.count("delivered"),
        Err(error) => {
            logger.count("failed");
            logger.warn(|| error);
        }
    }
}

/// Bytes that a header cannot have are left out.
fn text(value: &str) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| {
        let printable: String = value.chars().filter(|c| !c.is_control()).collect();
        HeaderValue::from_bytes(printable.as_bytes()).unwrap_or(HeaderValue::from_static(""))
    })
}

fn attributes(settings: &LoggerSettings) -> Result<HeaderMap, String> {
    let mut attributes = HeaderMap::new();
    attributes.insert("ce-specversion", HeaderValue::from_static("1.0"));
    for (name, value) in [
        ("ce-source", &settings.source),
        ("ce-inferenceservicename", &settings.inference_service),
        ("ce-namespace", &settings.namespace),
        ("ce-component", &settings.component),
        ("ce-endpoint", &settings.endpoint),
    ] {
        let value = HeaderValue::from_bytes(value.as_bytes())
            .map_err(|_| format!("\"{}\" cannot be an attribute of events", value.escape_debug()))?;
        attributes.insert(name, value);
    }
    if !settings.annotations.is_empty() {
        let pairs = settings.annotations.iter().map(|(name, value)| (name.clone(), value.clone().into()));
        attributes.insert("ce-annotations", text(&Value::Object(pairs.collect()).to_string()));
    }
    Ok(attributes)
}
