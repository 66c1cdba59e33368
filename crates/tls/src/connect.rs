//! Connector for tonic channels.

use crate::{Client, Connection, diagnose};
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

/// Includes the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The endpoint of `HOST:PORT`, with or without TLS.
pub fn endpoint(address: &str, tls: Option<&Client>) -> Result<Endpoint, tonic::transport::Error> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    // The connector applies the timeout: it covers the handshake too.
    Endpoint::from_shared(format!("{scheme}://{address}"))
}

/// Opens plaintext or TLS connections for [`Endpoint::connect_with_connector`]. Each connection uses the current
/// certificates.
#[derive(Clone, Debug)]
pub struct Connector {
    tls: Option<Client>,
    timeout: Duration,
}

impl Connector {
    /// Connects with TLS if `tls` is set.
    pub const fn new(tls: Option<Client>) -> Self {
        Self { tls, timeout: CONNECT_TIMEOUT }
    }

    /// Sets the connect timeout, handshake included.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Shortens the connect timeout.
    pub(crate) fn within_at_most(self, timeout: Duration) -> Self {
        Self { timeout: self.timeout.min(timeout), ..self }
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
                format!("{host}:{port} did not answer within {:?}", self.timeout),
            )
        };
        tokio::time::timeout(self.timeout, self.open(host, port)).await.unwrap_or_else(|_| Err(late()))
    }

    async fn open(&self, host: &str, port: u16) -> io::Result<Connection> {
        // IPv6 addresses are bracketed in URIs only.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Connection::Plain(stream)) };
        let name = match tls.server_name() {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(|_| {
                let reason = format!("{host:?} is neither a host name nor an IP address");
                io::Error::new(io::ErrorKind::InvalidInput, reason)
            })?,
        };
        match TlsConnector::from(tls.config()).connect(name, stream).await {
            Ok(stream) => Ok(Connection::Tls(Box::new(stream.into()))),
            Err(error) => Err(io::Error::new(error.kind(), diagnose(&error))),
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
