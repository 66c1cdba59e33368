//! The way from a role to the scheduler, with TLS or without; every connection is made with the certificates of then.

use crate::{client::Address, failure::Failure};
use futures::future::BoxFuture;
use gantry_tls::{Client, Connector, explain};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tonic::transport::{Channel, Endpoint};

/// Pings that tell a dead scheduler from a quiet one.
const PING: Duration = Duration::from_secs(10);

/// How the scheduler is reached.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    endpoint: Endpoint,
    connector: Connector,
    trouble: Arc<Mutex<Option<String>>>,
}

impl Reach {
    /// To an address, with TLS if there is a client for it.
    pub(crate) fn new(address: &Address, tls: Option<Client>) -> Result<Self, Failure> {
        let endpoint = gantry_tls::endpoint(&address.to_string(), tls.as_ref())
            .map_err(|e| Failure::usage(format!("--scheduler {address}: {e}")))?
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .keep_alive_while_idle(true);
        Ok(Self { endpoint, connector: Connector::new(tls), trouble: Arc::default() })
    }

    /// Whether connections are encrypted.
    pub(crate) const fn is_tls(&self) -> bool {
        self.connector.is_tls()
    }

    /// A channel that connects when it is used, and again after a break.
    pub(crate) fn lazily(&self) -> Channel {
        self.endpoint.connect_with_connector_lazy(self.connector.clone())
    }

    /// Why the last attempt to connect failed, if it did.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One connection; an error is a sentence for the log.
    pub(crate) fn connect(&self) -> BoxFuture<'static, Result<Channel, String>> {
        let Self { endpoint, connector, trouble } = self.clone();
        Box::pin(async move {
            let connected = endpoint.connect_with_connector(connector).await.map_err(|e| explain(&e));
            *trouble.lock().unwrap_or_else(PoisonError::into_inner) = connected.as_ref().err().cloned();
            connected
        })
    }
}

impl gantry_agent::Connect for Reach {
    fn connect(&self) -> BoxFuture<'_, Result<Channel, String>> {
        self.connect()
    }
}
