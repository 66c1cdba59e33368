//! Gateway configuration.

use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    time::Duration,
};

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
    /// Time to receive the headers of a request, counted from the end of the previous one: also closes idle
    /// connections.
    pub header_timeout: Duration,
    /// Default request deadline.
    pub request_timeout: Duration,
    /// Upper bound for a client's `grpc-timeout`.
    pub max_request_timeout: Duration,
    pub connect_timeout: Duration,
    /// Excess connections get 503 and are closed.
    pub max_connections: usize,
    /// Excess requests get 503.
    pub max_in_flight: usize,
    /// Excess requests to one replica get 429.
    pub max_in_flight_per_replica: usize,
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
            header_timeout: Duration::from_mins(1),
            request_timeout: Duration::from_mins(1),
            max_request_timeout: Duration::from_mins(10),
            connect_timeout: Duration::from_secs(2),
            max_connections: 10_000,
            max_in_flight: 4096,
            max_in_flight_per_replica: 1024,
            drain_timeout: Duration::from_secs(30),
            linger: Duration::ZERO,
            tracer: gantry_trace::Tracer::off(),
        }
    }
}
