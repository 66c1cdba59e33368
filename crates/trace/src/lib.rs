//! Traces: which part of the way of a request took how long, told to a collector over OTLP.
//!
//! ```text
//! traceparent of the request ─▶ Tracer ─▶ Span ─▶ traceparent of the next hop
//!                                           └─ at its end ─▶ queue (bounded) ─▶ collector, in batches
//! ```
//!
//! A [`Tracer`] that is off costs a look at an `Option`, and nothing is allocated. Whether a trace is recorded is
//! decided where it begins; every part after that follows the word of the one before it. The messages are written
//! here by hand: they are a dozen, and the SDK that speaks them would bring seventeen crates and its own idea of spans.

#[cfg(any(test, feature = "collector"))]
pub mod collector;
mod context;
mod export;
mod ids;
mod otlp;
mod sampler;
mod settings;
mod span;

pub use context::{Context, TRACEPARENT};
pub use settings::{Settings, SettingsError};
pub use span::{Kind, Span, Tracer, Value};

#[cfg(test)]
mod tests;
