//! Where traces go, and spans of the calls that a scheduler answers.

use crate::failure::Failure;
use axum::{
    extract::{Request, State},
    middleware::{self, Next},
    response::Response,
};
use gantry_trace::{Settings, Span, Tracer};
use std::time::Duration;
use tonic::service::Routes;

/// How long the last spans may take when a process stops.
const FAREWELL: Duration = Duration::from_secs(2);

/// Who is told how long things took.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Traces")]
pub(crate) struct TraceArgs {
    /// Tell traces to an OpenTelemetry collector over gRPC, such as http://127.0.0.1:4317; OTEL_EXPORTER_OTLP_ENDPOINT
    /// counts too. Without it nothing is traced.
    #[arg(long, value_name = "URL")]
    trace_endpoint: Option<String>,

    /// The share of traces that begin here and are recorded, from 0 to 1; OTEL_TRACES_SAMPLER_ARG counts too
    /// [default: 1]
    #[arg(long, value_name = "SHARE")]
    trace_ratio: Option<f64>,
}

impl TraceArgs {
    /// A tracer for a part of this process; off unless somebody is to be told.
    pub(crate) fn start(&self, part: &str) -> Result<Tracer, Failure> {
        let environment = |name: &str| std::env::var(name).ok();
        let usage = |e: gantry_trace::SettingsError| Failure::usage(e.to_string());
        let settings = Settings::resolve(self.trace_endpoint.clone(), self.trace_ratio, &environment);
        match settings.map_err(usage)? {
            None => Ok(Tracer::off()),
            Some(settings) => Tracer::start(settings, part).map_err(usage),
        }
    }
}

/// Tells the last spans.
pub(crate) async fn close(tracer: &Tracer) {
    tracer.close(FAREWELL).await;
}

/// The same services, with a span around each call of a contract of ours.
pub(crate) fn traced(routes: Routes, tracer: &Tracer) -> Routes {
    if !tracer.is_on() {
        return routes;
    }
    routes.into_axum_router().layer(middleware::from_fn_with_state(tracer.clone(), call)).into()
}

async fn call(State(tracer): State<Tracer>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    // Health and reflection are asked all the time, and nobody waits for them.
    let is_ours = path.starts_with("/seldon.") || path.starts_with("/gantry.");
    let mut span = if is_ours {
        tracer.server(request.headers(), || path.trim_start_matches('/').to_owned())
    } else {
        Span::default()
    };
    span.set("rpc.system", "grpc");
    let response = next.run(request).await;
    if span.is_recording() {
        let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok());
        // A call that succeeds says so in its trailers, after its message; one that is refused says so at once.
        if let Some(code) = header("grpc-status").and_then(|c| c.parse::<i64>().ok()).filter(|c| *c != 0) {
            span.set("rpc.grpc.status_code", code);
            span.fail(header("grpc-message").unwrap_or_default());
        }
    }
    response
}
