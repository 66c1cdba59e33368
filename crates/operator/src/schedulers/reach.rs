//! How a namespace's scheduler is reached.

use futures::future::BoxFuture;
use gantry_tls::{Client, Connector, endpoint, explain};
use std::{fmt::Debug, time::Duration};
use tonic::transport::Channel;

const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Pings that tell a dead scheduler from a quiet one.
const KEEPALIVE: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens connections to schedulers. An error is a sentence for a status.
pub trait Reach: Debug + Send + Sync + 'static {
    /// A new connection to a namespace's scheduler.
    fn connect<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Channel, String>>;

    /// Whether every namespace has a scheduler, also one without a runtime.
    fn serves_all(&self) -> bool {
        false
    }
}

/// Schedulers on the network, by their Service's name.
#[derive(Clone, Debug)]
pub struct Network {
    address: String,
    tls: Option<Client>,
}

impl Network {
    /// The Service that a runtime makes, without TLS and with it.
    pub const SERVICE: &'static str = "seldon-scheduler.{namespace}:9004";
    /// The same with TLS.
    pub const SERVICE_TLS: &'static str = "seldon-scheduler.{namespace}:9044";

    /// At an address in which `{namespace}` stands for the namespace.
    pub fn new(address: Option<String>, tls: Option<Client>) -> Self {
        let usual = if tls.is_some() { Self::SERVICE_TLS } else { Self::SERVICE };
        Self { address: address.unwrap_or_else(|| usual.to_owned()), tls }
    }
}

impl Reach for Network {
    /// One address for all is one scheduler for all.
    fn serves_all(&self) -> bool {
        !self.address.contains("{namespace}")
    }

    fn connect<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Channel, String>> {
        Box::pin(async move {
            let address = self.address.replace("{namespace}", namespace);
            let endpoint = endpoint(&address, self.tls.as_ref())
                .map_err(|e| format!("{address} is not an address of a scheduler: {e}"))?
                .connect_timeout(CONNECT_TIME)
                .http2_keep_alive_interval(KEEPALIVE)
                .keep_alive_timeout(KEEPALIVE_TIMEOUT)
                .keep_alive_while_idle(true);
            let connector = Connector::new(self.tls.clone()).within(CONNECT_TIME);
            let channel = endpoint.connect_with_connector(connector).await;
            channel.map_err(|e| format!("the scheduler at {address} cannot be reached: {}", explain(&e)))
        })
    }
}
