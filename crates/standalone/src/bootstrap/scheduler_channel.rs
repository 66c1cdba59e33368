//! Channel of a role to the scheduler, with or without TLS; each dial uses the current certificates.

use crate::{address::Address, error::CommandError};
use futures::future::BoxFuture;
use gantry_tls::{Client, Connector, diagnose};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tonic::transport::{Channel, Endpoint};

const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct SchedulerChannel {
    endpoint: Endpoint,
    connector: Connector,
    last_error: Arc<Mutex<Option<String>>>,
}

impl SchedulerChannel {
    pub fn new(address: &Address, tls: Option<Client>) -> Result<Self, CommandError> {
        let endpoint = gantry_tls::endpoint(&address.to_string(), tls.as_ref())
            .map_err(|e| CommandError::usage(format!("--scheduler {address}: {e}")))?
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_INTERVAL)
            .keep_alive_while_idle(true);
        Ok(Self { endpoint, connector: Connector::new(tls), last_error: Arc::default() })
    }

    /// `gRPC` or `gRPC with TLS`, for the console.
    pub const fn protocol(&self) -> &'static str {
        if self.connector.is_tls() { "gRPC with TLS" } else { "gRPC" }
    }

    /// A channel that connects on use, and reconnects.
    pub fn connect_lazy(&self) -> Channel {
        self.endpoint.connect_with_connector_lazy(self.connector.clone())
    }

    /// Why the last dial failed, if it did.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn connect(&self) -> BoxFuture<'static, Result<Channel, String>> {
        let Self { endpoint, connector, last_error } = self.clone();
        Box::pin(async move {
            let connected = endpoint.connect_with_connector(connector).await.map_err(|e| diagnose(&e));
            *last_error.lock().unwrap_or_else(PoisonError::into_inner) = connected.as_ref().err().cloned();
            connected
        })
    }
}

impl gantry_agent::Connect for SchedulerChannel {
    fn connect(&self) -> BoxFuture<'_, Result<Channel, String>> {
        self.connect()
    }
}
