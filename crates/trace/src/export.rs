//! Telling the collector, in batches. Work never waits for it: what does not fit into the queue is dropped and counted.

use crate::{
    Settings, SettingsError, Value,
    otlp::{self, Any},
    span::Finished,
};
use gantry_tls::{Client, ClientFiles, Connector, explain};
use http::uri::PathAndQuery;
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::{mpsc, oneshot};
use tonic::{
    Code, Request, Status,
    metadata::{AsciiMetadataKey, AsciiMetadataValue},
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

/// Spans that may wait.
const QUEUE: usize = 4096;
/// Spans of one call.
const BATCH: usize = 512;
/// How long the first span of a batch waits for others.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a call may take, and how often it is tried.
const DEADLINE: Duration = Duration::from_secs(5);
const TRIES: u32 = 3;

/// Takes what has ended.
#[derive(Clone, Debug)]
pub(crate) struct Exporter {
    queue: mpsc::Sender<Finished>,
    flushes: mpsc::Sender<oneshot::Sender<()>>,
    counts: Counts,
    service: Option<Arc<str>>,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    told: Counter,
    dropped: Counter,
}

impl Exporter {
    /// Never waits.
    pub(crate) fn take(&self, span: Finished) {
        if self.queue.try_send(span).is_err() {
            self.counts.dropped.inc();
        }
    }

    /// The name that the settings give to every part.
    pub(crate) fn fixed_service(&self) -> Option<Arc<str>> {
        self.service.clone()
    }

    /// Waits until what is in the queue was told, or given up.
    pub(crate) async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        if self.flushes.send(done).await.is_ok() {
            let _ = is_done.await;
        }
    }

    pub(crate) fn register_metrics(&self, registry: &mut Registry) {
        let (told, dropped) = (self.counts.told.clone(), self.counts.dropped.clone());
        registry.register("gantry_trace_spans_exported", "Spans that the collector took", told);
        registry.register(
            "gantry_trace_spans_dropped",
            "Spans that nobody took: the queue was full, or the collector away",
            dropped,
        );
    }
}

/// Starts the task that tells.
pub(crate) fn start(settings: Settings) -> Result<Exporter, SettingsError> {
    let tls = match settings.ca.clone().filter(|_| settings.endpoint.starts_with("https://")) {
        None => None,
        Some(ca) => {
            let files = ClientFiles { ca, identity: None, server_name: None };
            Some(Client::open(files).map_err(|e| SettingsError::Certificate(e.to_string()))?)
        }
    };
    let wrong = |_| SettingsError::Endpoint("the collector's address".into(), settings.endpoint.clone());
    let endpoint = Endpoint::from_shared(settings.endpoint.clone()).map_err(wrong)?;
    let channel = endpoint.timeout(DEADLINE).connect_with_connector_lazy(Connector::new(tls));
    let (queue, spans) = mpsc::channel(QUEUE);
    let (flushes, asked) = mpsc::channel(1);
    let counts = Counts::default();
    let service = settings.service.as_deref().map(Arc::from);
    let teller = Teller { channel, settings, counts: counts.clone(), is_away: false };
    tokio::spawn(teller.run(spans, asked));
    Ok(Exporter { queue, flushes, counts, service })
}

struct Teller {
    channel: Channel,
    settings: Settings,
    counts: Counts,
    /// Whether the last attempt failed: told once, not each time.
    is_away: bool,
}

impl Teller {
    async fn run(
        mut self,
        mut spans: mpsc::Receiver<Finished>,
        mut asked: mpsc::Receiver<oneshot::Sender<()>>,
    ) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let flush = tokio::select! {
                taken = spans.recv_many(&mut batch, BATCH) => {
                    if taken == 0 {
                        return;
                    }
                    // Others may follow soon.
                    tokio::select! {
                        flush = asked.recv() => flush,
                        () = tokio::time::sleep(PAUSE), if batch.len() < BATCH => None,
                        () = std::future::ready(()), if batch.len() >= BATCH => None,
                    }
                }
                flush = asked.recv() => flush,
            };
            loop {
                while batch.len() < BATCH
                    && let Ok(span) = spans.try_recv()
                {
                    batch.push(span);
                }
                if batch.is_empty() {
                    break;
                }
                self.tell(std::mem::take(&mut batch)).await;
                if flush.is_none() {
                    break;
                }
            }
            if let Some(done) = flush {
                let _ = done.send(());
            }
        }
    }

    async fn tell(&mut self, batch: Vec<Finished>) {
        let count = batch.len() as u64;
        let request = message(batch, &self.settings.resource);
        let mut pause = Duration::from_millis(500);
        for left in (0..TRIES).rev() {
            match self.call(request.clone()).await {
                Ok(refused) => {
                    self.counts.told.inc_by(count.saturating_sub(refused));
                    self.counts.dropped.inc_by(refused.min(count));
                    if std::mem::take(&mut self.is_away) {
                        tracing::info!("the collector of traces takes spans again");
                    }
                    return;
                }
                Err(status) => {
                    if !std::mem::replace(&mut self.is_away, true) {
                        let error = explain(&status);
                        tracing::warn!(collector = %self.settings.endpoint, %error, "the collector of traces takes no spans");
                    }
                    if left == 0 || !is_passing(status.code()) {
                        break;
                    }
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
            }
        }
        self.counts.dropped.inc_by(count);
    }

    /// Gives how many spans the collector refused.
    async fn call(&self, message: otlp::ExportRequest) -> Result<u64, Status> {
        let mut request = Request::new(message);
        request.set_timeout(DEADLINE);
        for (name, value) in &self.settings.headers {
            let name = name.to_ascii_lowercase();
            if let (Ok(name), Ok(value)) =
                (AsciiMetadataKey::from_bytes(name.as_bytes()), AsciiMetadataValue::try_from(value.as_str()))
            {
                request.metadata_mut().insert(name, value);
            }
        }
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.map_err(|e| Status::from_error(e.into()))?;
        let codec: ProstCodec<otlp::ExportRequest, otlp::ExportResponse> = ProstCodec::default();
        let answer =
            client.unary(request, PathAndQuery::from_static(otlp::EXPORT), codec).await?.into_inner();
        Ok(answer.partial_success.map_or(0, |p| u64::try_from(p.rejected_spans).unwrap_or(0)))
    }
}

/// Whether it may be better the next time.
const fn is_passing(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable
            | Code::Cancelled
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::Unknown
    )
}

fn message(batch: Vec<Finished>, resource: &[(String, String)]) -> otlp::ExportRequest {
    let mut services: BTreeMap<Arc<str>, Vec<otlp::Span>> = BTreeMap::new();
    for span in batch {
        services.entry(span.service.clone()).or_default().push(encoded(span));
    }
    let resource_spans = services.into_iter().map(|(service, spans)| {
        let mut attributes =
            vec![text("service.name", &service), text("service.version", env!("CARGO_PKG_VERSION"))];
        attributes.extend(resource.iter().map(|(key, value)| text(key, value)));
        let scope = otlp::Scope { name: "gantry".into(), version: env!("CARGO_PKG_VERSION").into() };
        otlp::ResourceSpans {
            resource: Some(otlp::Resource { attributes }),
            scope_spans: vec![otlp::ScopeSpans { scope: Some(scope), spans }],
        }
    });
    otlp::ExportRequest { resource_spans: resource_spans.collect() }
}

fn text(key: &str, value: &str) -> otlp::KeyValue {
    pair(key, Any::Text(value.to_owned()))
}

fn pair(key: &str, value: Any) -> otlp::KeyValue {
    otlp::KeyValue { key: key.to_owned(), value: Some(otlp::AnyValue { value: Some(value) }) }
}

fn encoded(span: Finished) -> otlp::Span {
    let any = |value: Value| match value {
        Value::Text(text) => Any::Text(text),
        Value::Int(number) => Any::Int(number),
        Value::Bool(is) => Any::Bool(is),
    };
    otlp::Span {
        trace_id: span.context.trace.to_be_bytes().to_vec(),
        span_id: span.context.span.to_be_bytes().to_vec(),
        trace_state: span.state,
        parent_span_id: span.parent.map(|p| p.to_be_bytes().to_vec()).unwrap_or_default(),
        name: span.name,
        kind: span.kind as i32,
        start_time_unix_nano: span.start,
        end_time_unix_nano: span.end,
        attributes: span.attributes.into_iter().map(|(key, value)| pair(key, any(value))).collect(),
        status: span.error.map(|message| otlp::Status { message, code: 2 }),
        flags: u32::from(span.context.sampled),
    }
}
