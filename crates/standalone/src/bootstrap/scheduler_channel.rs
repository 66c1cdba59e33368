//! Channel of a role to the scheduler, with or without TLS; each dial uses the current certificates.

use crate::{address::Addresses, error::CommandError};
use futures::future::BoxFuture;
use gantry_tls::{Client, Connector, Failover, diagnose};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tonic::transport::{Channel, Endpoint};

const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// With several addresses another scheduler may lead already.
const FAILOVER_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
pub struct SchedulerChannel {
    endpoint: Endpoint,
    connector: Failover,
    is_tls: bool,
    last_error: Arc<Mutex<Option<String>>>,
}

impl SchedulerChannel {
    /// Connects to the first of the addresses that answers.
    pub fn new(addresses: &Addresses, tls: Option<Client>) -> Result<Self, CommandError> {
        let wrong = |e: &dyn std::fmt::Display| CommandError::usage(format!("--scheduler {addresses}: {e}"));
        let keepalive = if addresses.is_single() { KEEPALIVE_INTERVAL } else { FAILOVER_KEEPALIVE_INTERVAL };
        let endpoint = gantry_tls::endpoint(&addresses.first().to_string(), tls.as_ref())
            .map_err(|e| wrong(&e))?
            .http2_keep_alive_interval(keepalive)
            .keep_alive_timeout(keepalive)
            .keep_alive_while_idle(true);
        let is_tls = tls.is_some();
        let connector = Failover::new(Connector::new(tls), &addresses.list()).map_err(|e| wrong(&e))?;
        Ok(Self { endpoint, connector, is_tls, last_error: Arc::default() })
    }

    /// `gRPC` or `gRPC with TLS`, for the console.
    pub const fn protocol(&self) -> &'static str {
        if self.is_tls { "gRPC with TLS" } else { "gRPC" }
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
        let Self { endpoint, connector, last_error, .. } = self.clone();
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
