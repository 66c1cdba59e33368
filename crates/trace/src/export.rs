//! The export pipeline: one tracer provider per service name, all on one channel to the collector.
//!
//! Requests never wait for the collector: spans beyond the queue's capacity are dropped and counted.

use crate::{Settings, SettingsError};
use gantry_tls::{Client, ClientFiles, Connector};
use opentelemetry::{Context, InstrumentationScope, KeyValue, trace::TracerProvider as _};
use opentelemetry_otlp::WithTonicConfig as _;
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{
        BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, Span, SpanData,
        SpanExporter, SpanProcessor,
    },
};
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tonic::transport::{Channel, Endpoint};

pub(crate) const QUEUE_CAPACITY: usize = 4096;
const BATCH_SIZE: usize = 512;
const BATCH_DELAY: Duration = Duration::from_secs(1);
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug)]
pub(crate) struct Pipeline {
    channel: Channel,
    settings: Settings,
    counters: Arc<Counters>,
    providers: Mutex<BTreeMap<String, SdkTracerProvider>>,
}

#[derive(Debug, Default)]
struct Counters {
    exported: Counter,
    dropped: Counter,
    /// Spans in the queue or in the batch being exported.
    queued: AtomicUsize,
    /// Whether the last export failed: logged on the change, not on every batch.
    failing: AtomicBool,
}

impl Pipeline {
    /// Requires a tokio runtime.
    pub(crate) fn new(settings: Settings) -> Result<Self, SettingsError> {
        let tls = match settings.ca.clone().filter(|_| settings.endpoint.starts_with("https://")) {
            None => None,
            Some(ca) => {
                let files = ClientFiles { ca, identity: None, server_name: None };
                Some(Client::open(files).map_err(|e| SettingsError::Certificate(e.to_string()))?)
            }
        };
        let invalid =
            |_| SettingsError::Endpoint("the collector's address".into(), settings.endpoint.clone());
        let endpoint = Endpoint::from_shared(settings.endpoint.clone()).map_err(invalid)?;
        let channel = endpoint.timeout(EXPORT_TIMEOUT).connect_with_connector_lazy(Connector::new(tls));
        Ok(Self { channel, settings, counters: Arc::default(), providers: Mutex::default() })
    }

    /// The tracer of a service. `OTEL_SERVICE_NAME` overrides the name.
    pub(crate) fn tracer(&self, service: &str) -> Result<SdkTracer, SettingsError> {
        let service = self.settings.service.as_deref().unwrap_or(service);
        let mut providers = self.providers.lock().unwrap_or_else(PoisonError::into_inner);
        let provider = if let Some(provider) = providers.get(service) {
            provider.clone()
        } else {
            let provider = self.provider(service)?;
            providers.insert(service.to_owned(), provider.clone());
            provider
        };
        Ok(provider.tracer_with_scope(InstrumentationScope::builder("gantry").with_version(VERSION).build()))
    }

    fn provider(&self, service: &str) -> Result<SdkTracerProvider, SettingsError> {
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_channel(self.channel.clone())
            .build()
            .map_err(|e| SettingsError::Exporter(e.to_string()))?;
        let (counters, endpoint) = (Arc::clone(&self.counters), self.settings.endpoint.clone());
        let exporter = CountingExporter { exporter, counters, endpoint };
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE_CAPACITY)
            .with_max_export_batch_size(BATCH_SIZE)
            .with_scheduled_delay(BATCH_DELAY)
            .build();
        let batches = BatchSpanProcessor::new(exporter, config);
        // The default detectors read OTEL_RESOURCE_ATTRIBUTES.
        let resource = Resource::builder()
            .with_service_name(service.to_owned())
            .with_attribute(KeyValue::new("service.version", VERSION))
            .build();
        let root = Sampler::TraceIdRatioBased(self.settings.ratio);
        Ok(SdkTracerProvider::builder()
            .with_resource(resource)
            .with_sampler(Sampler::ParentBased(Box::new(root)))
            .with_span_processor(BoundedProcessor { batches, counters: Arc::clone(&self.counters) })
            .build())
    }

    /// Waits until every queued span is exported or dropped.
    pub(crate) async fn flush(&self) {
        let providers = self.providers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let flushed = tokio::task::spawn_blocking(move || {
            for provider in providers.values() {
                let _ = provider.force_flush();
            }
        });
        let _ = flushed.await;
    }

    pub(crate) fn register_metrics(&self, registry: &mut Registry) {
        let (exported, dropped) = (self.counters.exported.clone(), self.counters.dropped.clone());
        registry.register("gantry_trace_spans_exported", "Spans accepted by the trace collector", exported);
        registry.register(
            "gantry_trace_spans_dropped",
            "Spans dropped because the queue was full or the trace collector unavailable",
            dropped,
        );
    }
}

/// Bounds the SDK's batch processor: it has a queue, but does not report what it drops.
#[derive(Debug)]
struct BoundedProcessor {
    batches: BatchSpanProcessor,
    counters: Arc<Counters>,
}

impl SpanProcessor for BoundedProcessor {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.counters.queued.fetch_add(1, Ordering::Relaxed) < QUEUE_CAPACITY {
            self.batches.on_end(span);
        } else {
            self.counters.queued.fetch_sub(1, Ordering::Relaxed);
            self.counters.dropped.inc();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    /// Called by the SDK when the last tracer is dropped, possibly on a runtime thread: never blocks. `Pipeline::flush`
    /// is the call that waits.
    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(Duration::ZERO)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

#[derive(Debug)]
struct CountingExporter {
    exporter: opentelemetry_otlp::SpanExporter,
    counters: Arc<Counters>,
    endpoint: String,
}

impl SpanExporter for CountingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let result = self.exporter.export(batch).await;
        self.counters.queued.fetch_sub(spans, Ordering::Relaxed);
        match &result {
            Ok(()) => {
                self.counters.exported.inc_by(spans as u64);
                if self.counters.failing.swap(false, Ordering::Relaxed) {
                    tracing::info!(collector = self.endpoint, "trace export recovered");
                }
            }
            Err(error) => {
                self.counters.dropped.inc_by(spans as u64);
                if !self.counters.failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(collector = self.endpoint, %error, "trace export failed; dropping spans");
                }
            }
        }
        result
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
