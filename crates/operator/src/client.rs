//! The client of the API server.

use http::{HeaderValue, header::USER_AGENT};
use kube::{Client, Config, client::ClientBuilder};
use std::time::Duration;

const CONNECT_TIME: Duration = Duration::from_secs(5);

/// A client that answers within its deadlines. What failed is tried again by whoever knows whether it is still wanted,
/// not by the client, which would try for minutes.
pub fn connect(mut config: Config, who: &str) -> Result<Client, kube::Error> {
    config.default_retry = false;
    // The API server logs who asks by this.
    let agent = format!("gantry-operator/{} ({who})", env!("CARGO_PKG_VERSION"));
    if let Ok(agent) = HeaderValue::try_from(agent) {
        config.headers.push((USER_AGENT, agent));
    }
    config.connect_timeout = Some(CONNECT_TIME);
    Ok(ClientBuilder::try_from(config)?.build())
}
