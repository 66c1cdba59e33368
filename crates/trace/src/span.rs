//! Tracers and spans: thin, optional wrappers around the SDK's.

use crate::{Settings, SettingsError, export::Pipeline};
use http::{HeaderMap, HeaderValue};
use opentelemetry::{
    Context, Key, KeyValue, Value,
    propagation::{Extractor, TextMapPropagator as _},
    trace::{Span as _, SpanContext, SpanKind, Status, TraceContextExt as _, TraceFlags, Tracer as _},
};
use opentelemetry_sdk::{propagation::TraceContextPropagator, trace::SdkTracer};
use prometheus_client::registry::Registry;
use std::{sync::Arc, time::Duration};

/// Starts spans, or does nothing when it is off. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Enabled>>);

#[derive(Debug)]
struct Enabled {
    tracer: SdkTracer,
    pipeline: Arc<Pipeline>,
}

impl Tracer {
    /// A tracer that records nothing.
    pub const fn off() -> Self {
        Self(None)
    }

    /// A tracer for `service`, exporting to the collector of `settings`. Requires a tokio runtime.
    pub fn start(settings: Settings, service: &str) -> Result<Self, SettingsError> {
        let pipeline = Arc::new(Pipeline::new(settings)?);
        let tracer = pipeline.tracer(service)?;
        Ok(Self(Some(Arc::new(Enabled { tracer, pipeline }))))
    }

    /// A tracer for another service of this process, with the same collector.
    #[must_use]
    pub fn of_part(&self, service: &str) -> Self {
        Self(self.0.as_ref().and_then(|enabled| {
            let pipeline = Arc::clone(&enabled.pipeline);
            let tracer = pipeline.tracer(service).ok()?;
            Some(Arc::new(Enabled { tracer, pipeline }))
        }))
    }

    /// Whether spans can be recorded.
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Registers counters of exported and dropped spans.
    pub fn register_metrics(&self, registry: &mut Registry) {
        if let Some(enabled) = &self.0 {
            enabled.pipeline.register_metrics(registry);
        }
    }

    /// Starts the span of an incoming request: a child of its `traceparent`, else the root of a new trace.
    pub fn server(&self, headers: &HeaderMap, name: impl FnOnce() -> String) -> Span {
        let Some(enabled) = &self.0 else { return Span(None) };
        enabled.span(&TraceContextPropagator::new().extract(&Headers(headers)), SpanKind::Server, name())
    }

    /// Starts the span of an outgoing call, if there is a parent.
    pub fn client(&self, parent: Option<SpanContext>, name: impl FnOnce() -> String) -> Span {
        match (&self.0, parent) {
            (Some(enabled), Some(parent)) => {
                let parent = Context::new().with_remote_span_context(parent);
                enabled.span(&parent, SpanKind::Client, name())
            }
            _ => Span(None),
        }
    }

    /// The span context in the headers of a request; `None` when the tracer is off.
    pub fn context(&self, headers: &HeaderMap) -> Option<SpanContext> {
        self.0.as_ref()?;
        let context = TraceContextPropagator::new().extract(&Headers(headers));
        Some(context.span().span_context().clone()).filter(SpanContext::is_valid)
    }

    /// Exports the queued spans, for at most `limit`.
    pub async fn close(&self, limit: Duration) {
        if let Some(enabled) = &self.0 {
            let _ = tokio::time::timeout(limit, enabled.pipeline.flush()).await;
        }
    }
}

impl Enabled {
    fn span(&self, parent: &Context, kind: SpanKind, name: String) -> Span {
        let builder = self.tracer.span_builder(name).with_kind(kind);
        Span(Some(Box::new(self.tracer.build_with_context(builder, parent))))
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(key)?.to_str().ok()?;
        // The SDK accepts IDs that are shorter than the specification requires.
        let dashes = [2, 35, 52].iter().all(|at| value.as_bytes().get(*at) == Some(&b'-'));
        (key != "traceparent" || dashes).then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

/// A span that ends when it is dropped.
#[derive(Debug, Default)]
pub struct Span(Option<Box<opentelemetry_sdk::trace::Span>>);

impl Span {
    /// Whether attributes are kept; check it before building expensive ones.
    pub fn is_recording(&self) -> bool {
        self.0.as_ref().is_some_and(|span| span.is_recording())
    }

    /// Sets an attribute.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        if let Some(span) = self.0.as_mut().filter(|span| span.is_recording()) {
            span.set_attribute(KeyValue::new(Key::from_static_str(key), value));
        }
    }

    /// Sets the status to error.
    pub fn fail(&mut self, description: &str) {
        if let Some(span) = self.0.as_mut().filter(|span| span.is_recording()) {
            span.set_status(Status::error(description.to_owned()));
        }
    }

    /// The parent of spans started by the next hop.
    pub fn context(&self) -> Option<SpanContext> {
        self.0.as_ref().map(|span| span.span_context().clone())
    }

    /// Sets `traceparent` for the next hop. `tracestate` is forwarded as received.
    pub fn inject(&self, headers: &mut HeaderMap) {
        if let Some(span) = &self.0 {
            let context = span.span_context();
            let flags = context.trace_flags() & TraceFlags::SAMPLED;
            let value = format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id());
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert("traceparent", value);
            }
        }
    }
}
