//! Opening connections for tonic's channels.

use crate::{Client, Connection, explain};
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::Endpoint;
use tower_service::Service;

/// How long it may take to open a connection, with its handshake.
const CONNECT: Duration = Duration::from_secs(5);

/// Where to connect: `HOST:PORT`, with TLS or without.
pub fn endpoint(address: &str, tls: Option<&Client>) -> Result<Endpoint, tonic::transport::Error> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    // The time limit is the connector's: it covers the handshake too.
    Endpoint::from_shared(format!("{scheme}://{address}"))
}

/// Opens connections, with TLS if it has it; for [`Endpoint::connect_with_connector`]. Every connection is made with
/// the certificates as they are then.
#[derive(Clone, Debug)]
pub struct Connector {
    tls: Option<Client>,
    limit: Duration,
}

impl Connector {
    /// Connects with TLS, or without.
    pub const fn new(tls: Option<Client>) -> Self {
        Self { tls, limit: CONNECT }
    }

    /// Connects within this time, the handshake included.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Whether connections are encrypted.
    pub const fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Opens a connection.
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<Connection> {
        let late = || {
            io::Error::new(
                io::ErrorKind::TimedOut,
                format!("{host}:{port} did not answer within {:?}", self.limit),
            )
        };
        tokio::time::timeout(self.limit, self.open(host, port)).await.unwrap_or_else(|_| Err(late()))
    }

    async fn open(&self, host: &str, port: u16) -> io::Result<Connection> {
        // An IPv6 address stands in brackets in an address, and without them everywhere else.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Connection::Plain(stream)) };
        let name = match tls.server_name() {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(|_| {
                let reason = format!("{host:?} is neither a host's name nor an address");
                io::Error::new(io::ErrorKind::InvalidInput, reason)
            })?,
        };
        match TlsConnector::from(tls.config()).connect(name, stream).await {
            Ok(stream) => Ok(Connection::Tls(Box::new(stream.into()))),
            Err(error) => Err(io::Error::new(error.kind(), explain(&error))),
        }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Connection>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let port = uri.port_u16().unwrap_or(if connector.is_tls() { 443 } else { 80 });
            let host = uri.host().unwrap_or_default();
            connector.connect(host, port).await.map(TokioIo::new)
        })
    }
}
