//! Connection to the scheduler.

use futures::future::BoxFuture;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens a connection to the scheduler's agent service.
///
/// Implemented by plaintext TCP here, and by TLS and in-memory streams elsewhere; [`scheduler_endpoint`] has the
/// common timeouts.
pub trait Connect: Send + Sync + 'static {
    /// Called again after each disconnect.
    fn connect(&self) -> BoxFuture<'_, Result<Channel, String>>;
}

#[derive(Clone, Debug)]
pub struct PlaintextConnector {
    uri: String,
}

impl PlaintextConnector {
    /// `uri` is `http://host:port`.
    pub fn new(uri: impl Into<String>) -> Self {
        Self { uri: uri.into() }
    }
}

impl Connect for PlaintextConnector {
    fn connect(&self) -> BoxFuture<'_, Result<Channel, String>> {
        Box::pin(async {
            let endpoint = scheduler_endpoint(&self.uri)?;
            endpoint.connect().await.map_err(|e| format!("{} is unreachable: {}", self.uri, deepest(&e)))
        })
    }
}

/// An endpoint with connect timeout and keepalive.
pub fn scheduler_endpoint(uri: &str) -> Result<Endpoint, String> {
    let endpoint = Endpoint::from_shared(uri.to_owned())
        .map_err(|_| format!("\"{}\" is not an address: use http://host:port", uri.escape_debug()))?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true))
}

/// The root cause, without wrappers such as "transport error".
pub(crate) fn deepest(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
