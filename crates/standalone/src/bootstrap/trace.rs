//! Trace export, and spans of the calls that a scheduler serves.

use crate::error::CommandError;
use axum::{
    extract::{Request, State},
    middleware::{self, Next},
    response::Response,
};
use gantry_trace::{Settings, Span, Tracer};
use std::time::Duration;
use tonic::service::Routes;

/// Limit for the export of the last spans at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Traces")]
pub struct TraceArgs {
    /// Export traces to an OpenTelemetry collector over gRPC, such as http://127.0.0.1:4317 (also read from
    /// OTEL_EXPORTER_OTLP_ENDPOINT). Tracing is off without it.
    #[arg(long, value_name = "URL")]
    trace_endpoint: Option<String>,

    /// Share of locally started traces that are sampled, from 0 to 1 (also read from OTEL_TRACES_SAMPLER_ARG)
    /// [default: 1]
    #[arg(long, value_name = "SHARE")]
    trace_ratio: Option<f64>,
}

impl TraceArgs {
    /// The tracer of a component; off without an endpoint.
    pub fn start(&self, component: &str) -> Result<Tracer, CommandError> {
        let environment = |name: &str| std::env::var(name).ok();
        let usage = |e: gantry_trace::SettingsError| CommandError::usage(e.to_string());
        let settings = Settings::resolve(self.trace_endpoint.clone(), self.trace_ratio, &environment);
        match settings.map_err(usage)? {
            None => Ok(Tracer::off()),
            Some(settings) => Tracer::start(settings, component).map_err(usage),
        }
    }
}

/// Exports the remaining spans.
pub async fn flush(tracer: &Tracer) {
    tracer.close(FLUSH_TIMEOUT).await;
}

/// The same services, with a span around each scheduler call.
pub fn traced(routes: Routes, tracer: &Tracer) -> Routes {
    if !tracer.is_on() {
        return routes;
    }
    routes.into_axum_router().layer(middleware::from_fn_with_state(tracer.clone(), trace_call)).into()
}

async fn trace_call(State(tracer): State<Tracer>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    // Health and reflection calls would drown the others.
    let is_traced = path.starts_with("/seldon.") || path.starts_with("/gantry.");
    let mut span = if is_traced {
        tracer.server(request.headers(), || path.trim_start_matches('/').to_owned())
    } else {
        Span::default()
    };
    span.set("rpc.system", "grpc");
    let response = next.run(request).await;
    if span.is_recording() {
        let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok());
        // A rejected call has its status in the headers; a successful one has it in the trailers.
        if let Some(code) = header("grpc-status").and_then(|c| c.parse::<i64>().ok()).filter(|c| *c != 0) {
            span.set("rpc.grpc.status_code", code);
            span.fail(header("grpc-message").unwrap_or_default());
        }
    }
    response
}
