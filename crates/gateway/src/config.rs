//! What a gateway can be told.

use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    time::Duration,
};

/// Settings of a gateway; the defaults protect it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; port 0 takes any free one.
    pub listen: SocketAddr,
    /// Threads that serve connections.
    pub workers: usize,
    /// Bytes of a request's body.
    pub max_body: usize,
    /// Bytes of a request's headers.
    pub max_headers: usize,
    /// How long a client may take to send the headers of a request, from the end of the one before: so an idle
    /// connection is closed after it, too.
    pub header_timeout: Duration,
    /// How long a request may take when it does not say.
    pub request_timeout: Duration,
    /// The longest time a request may ask for (`grpc-timeout`).
    pub max_request_timeout: Duration,
    /// How long connecting to a replica may take.
    pub connect_timeout: Duration,
    /// Connections at once; more are answered with 503 and closed.
    pub max_connections: usize,
    /// Requests at once; more are answered with 503.
    pub max_in_flight: usize,
    /// Requests at once to one replica; more are answered with 429.
    pub max_in_flight_per_replica: usize,
    /// How long [`serve`](crate::Gateway::serve) waits for requests to end once it is told to stop.
    pub drain_timeout: Duration,
    /// How long connections that clients keep may be used once more before they are closed, once it is told to stop: a
    /// client that is told to close its connection by an answer cannot meet a closed one with its next request.
    pub linger: Duration,
    /// Makes spans of requests; off unless somebody takes them.
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
