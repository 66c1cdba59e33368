//! Connections to the schedulers of namespaces.

use crate::certificates::{IssuedClients, SchedulerTls};
use futures::future::BoxFuture;
use gantry_tls::{Client, Connector, Failover, diagnose, endpoint};
use std::{fmt::Debug, time::Duration};
use tonic::transport::Channel;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// HTTP/2 pings detect a dead scheduler on an idle connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens connections to schedulers. Errors are shown in status conditions.
pub trait SchedulerConnector: Debug + Send + Sync + 'static {
    fn connect<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Channel, String>>;

    /// Whether one scheduler serves all namespaces, also those without a runtime.
    fn serves_all(&self) -> bool {
        false
    }
}

/// Connects to the scheduler Service of a namespace.
#[derive(Clone, Debug)]
pub struct ServiceConnector {
    /// `None` for the Service of the namespace.
    address: Option<String>,
    tls: Option<Client>,
    /// Certificates that the operator issues to itself.
    issued: Option<IssuedClients>,
}

impl ServiceConnector {
    pub const SERVICE: &'static str = "seldon-scheduler.{namespace}:9004";
    pub const SERVICE_TLS: &'static str = "seldon-scheduler.{namespace}:9044";

    /// `{namespace}` in the address is replaced by the namespace. The address may be a comma-separated list: the scheduler
    /// and its standbys.
    pub fn new(address: Option<String>, tls: Option<Client>) -> Self {
        Self { address, tls, issued: None }
    }

    /// Connects with the certificates that the operator issues, where the scheduler has some, too.
    #[must_use]
    pub fn with_issued(self, issued: IssuedClients) -> Self {
        Self { issued: Some(issued), ..self }
    }

    fn tls(&self, namespace: &str) -> Result<Option<Client>, String> {
        let Some(issued) = &self.issued else { return Ok(self.tls.clone()) };
        match issued.get(namespace) {
            Some(SchedulerTls::Mutual(client)) => Ok(Some(client)),
            Some(SchedulerTls::Plaintext) => Ok(None),
            None => Err(format!("the certificates of namespace {namespace} are not issued yet")),
        }
    }
}

impl SchedulerConnector for ServiceConnector {
    fn serves_all(&self) -> bool {
        self.address.as_ref().is_some_and(|address| !address.contains("{namespace}"))
    }

    fn connect<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Channel, String>> {
        Box::pin(async move {
            let tls = self.tls(namespace)?;
            let default = if tls.is_some() { Self::SERVICE_TLS } else { Self::SERVICE };
            let address = self.address.as_deref().unwrap_or(default).replace("{namespace}", namespace);
            let all: Vec<String> = address.split(',').map(|one| one.trim().to_owned()).collect();
            let invalid = |e: &dyn std::fmt::Display| format!("invalid scheduler address {address}: {e}");
            let endpoint = endpoint(all.first().unwrap_or(&address), tls.as_ref())
                .map_err(|e| invalid(&e))?
                .connect_timeout(CONNECT_TIMEOUT)
                .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
                .keep_alive_timeout(KEEPALIVE_TIMEOUT)
                .keep_alive_while_idle(true);
            let connector = Connector::new(tls).within(CONNECT_TIMEOUT);
            let connector = Failover::new(connector, &all).map_err(|e| invalid(&e))?;
            let channel = endpoint.connect_with_connector(connector).await;
            channel.map_err(|e| format!("cannot connect to the scheduler at {address}: {}", diagnose(&e)))
        })
    }
}
