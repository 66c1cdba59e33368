//! How the agent reaches the scheduler.

use futures::future::BoxFuture;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Pings that tell a dead scheduler from a quiet one.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens a connection to the scheduler's agent service. An error is a sentence for the log.
///
/// TLS, or a stream within one process, is another implementation of this; [`tuned`] gives it the same pings.
pub trait Connect: Send + Sync + 'static {
    /// One connection; it is asked for again when that one has ended.
    fn connect(&self) -> BoxFuture<'_, Result<Channel, String>>;
}

/// TCP without TLS.
#[derive(Clone, Debug)]
pub struct Plain {
    uri: String,
}

impl Plain {
    /// To `http://host:port`.
    pub fn new(uri: impl Into<String>) -> Self {
        Self { uri: uri.into() }
    }
}

impl Connect for Plain {
    fn connect(&self) -> BoxFuture<'_, Result<Channel, String>> {
        Box::pin(async {
            let endpoint = tuned(&self.uri)?;
            endpoint.connect().await.map_err(|e| format!("{} cannot be reached: {}", self.uri, deepest(&e)))
        })
    }
}

/// An endpoint with the time limits and pings that the agent wants.
pub fn tuned(uri: &str) -> Result<Endpoint, String> {
    let endpoint = Endpoint::from_shared(uri.to_owned())
        .map_err(|_| format!("\"{}\" is not an address: write http://host:port", uri.escape_debug()))?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIME)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true))
}

/// What the operating system said, below the layers that say only "transport error".
pub(crate) fn deepest(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
