//! Gateway configuration.

use gantry_auth::Auth;
use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    sync::Arc,
    time::Duration,
};

/// As in KServe.
pub const DEFAULT_INGRESS_DOMAIN: &str = "example.com";

#[derive(Clone, Debug)]
pub struct Config {
    /// Port 0 binds any free port.
    pub listen: SocketAddr,
    /// Worker threads; each serves its own connections.
    pub workers: usize,
    /// Request body limit in bytes.
    pub max_body: usize,
    /// Request header limit in bytes.
    pub max_headers: usize,
    /// Memory budget of request bodies and responses in bytes; a connection may use a quarter of it. Requests beyond it
    /// get 503.
    pub max_memory: usize,
    /// Time to receive the headers of a request, counted from the end of the previous one: also limits the first bytes
    /// of a connection and closes idle ones.
    pub header_timeout: Duration,
    /// Time to receive the first 64 KiB of a body, or all of a smaller one. The whole body must arrive before the
    /// request's deadline.
    pub body_timeout: Duration,
    /// How long a client may leave a part of a response unread; then its connection is closed.
    pub unread_timeout: Duration,
    /// Default request deadline.
    pub request_timeout: Duration,
    /// Upper bound for a client's `grpc-timeout`.
    pub max_request_timeout: Duration,
    pub connect_timeout: Duration,
    /// Excess connections get 503 and are closed.
    pub max_connections: usize,
    /// Excess requests get 503.
    pub max_in_flight: usize,
    /// Requests whose body has not arrived completely; each connection may have one more.
    pub max_incomplete: usize,
    pub max_incomplete_per_connection: usize,
    /// Excess requests to one replica get 429.
    pub max_in_flight_per_replica: usize,
    /// Domain of the hosts of InferenceServices: `{name}-{namespace}.{domain}`.
    pub ingress_domain: String,
    /// Credentials of clients; without it, clients need none.
    pub auth: Option<Arc<Auth>>,
    /// Whether clients of the inference port may load and unload models by the repository API.
    pub allow_repository_changes: bool,
    /// Whether the tensors of the last runs of each pipeline are kept for [`recent_runs`](crate::Routes::recent_runs).
    pub keep_pipeline_payloads: bool,
    /// How long [`serve`](crate::Gateway::serve) waits for in-flight requests after shutdown.
    pub drain_timeout: Duration,
    /// How long keep-alive connections stay open after shutdown: responses then carry `connection: close`, so that no
    /// client sends a request on a connection that is already closed.
    pub linger: Duration,
    /// Disabled unless an exporter is configured.
    pub tracer: gantry_trace::Tracer,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9000)),
            workers: std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            max_body: 64 << 20,
            max_headers: 64 << 10,
            max_memory: 1 << 30,
            header_timeout: Duration::from_mins(1),
            body_timeout: Duration::from_secs(10),
            unread_timeout: Duration::from_secs(20),
            request_timeout: Duration::from_mins(1),
            max_request_timeout: Duration::from_mins(10),
            connect_timeout: Duration::from_secs(2),
            max_connections: 10_000,
            max_in_flight: 4096,
            max_incomplete: 4096,
            max_incomplete_per_connection: 256,
            max_in_flight_per_replica: 1024,
            ingress_domain: DEFAULT_INGRESS_DOMAIN.to_owned(),
            auth: None,
            allow_repository_changes: false,
            keep_pipeline_payloads: false,
            drain_timeout: Duration::from_secs(30),
            linger: Duration::ZERO,
            tracer: gantry_trace::Tracer::off(),
        }
    }
}
