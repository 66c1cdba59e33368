//! Distributed tracing: spans with W3C `traceparent` propagation, exported over OTLP by the OpenTelemetry SDK.
//!
//! ```text
//! traceparent of the request ─▶ Tracer ─▶ Span ─▶ traceparent of the next hop
//!                                           └─ on drop ─▶ bounded queue ─▶ collector, in batches
//! ```
//!
//! A disabled [`Tracer`] costs one branch per request and allocates nothing. The first service of a trace decides
//! whether it is sampled; every later service follows that decision.

#[cfg(any(test, feature = "collector"))]
#[allow(missing_docs, reason = "test support")]
pub mod collector;
mod export;
mod settings;
mod span;

pub use opentelemetry::trace::SpanContext;
pub use settings::{Settings, SettingsError};
pub use span::{Span, Tracer};

#[cfg(test)]
mod tests;
