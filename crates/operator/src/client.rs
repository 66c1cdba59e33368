//! API server client.

use http::{HeaderValue, header::USER_AGENT};
use kube::{Client, Config, client::ClientBuilder};
use std::time::Duration;

const CONNECT_TIME: Duration = Duration::from_secs(5);

/// A client without retries of its own: reconciliation retries what is still needed.
pub fn connect(mut config: Config, component: &str) -> Result<Client, kube::Error> {
    config.default_retry = false;
    // Appears in the audit log.
    let agent = format!("gantry-operator/{} ({component})", env!("CARGO_PKG_VERSION"));
    if let Ok(agent) = HeaderValue::try_from(agent) {
        config.headers.push((USER_AGENT, agent));
    }
    config.connect_timeout = Some(CONNECT_TIME);
    Ok(ClientBuilder::try_from(config)?.build())
}
