//! One connection: resolve, check every address, connect to the address that was checked.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::error::FetchError;
use crate::network_policy::NetPolicy;

/// Turns a host name into addresses.
#[async_trait::async_trait]
pub trait Resolve: Send + Sync {
    /// All addresses of a host.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// The resolver of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

#[async_trait::async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect())
    }
}

/// A plain or encrypted stream.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Opens connections, and only to addresses that the policy allows.
pub(super) struct Connector {
    policy: NetPolicy,
    resolver: Arc<dyn Resolve>,
    tls: TlsConnector,
}

impl Connector {
    pub(super) fn new(
        policy: NetPolicy,
        resolver: Arc<dyn Resolve>,
        extra_roots_pem: Option<&[u8]>,
    ) -> Result<Self, FetchError> {
        let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        if let Some(pem) = extra_roots_pem {
            let unreadable = |why: String| {
                FetchError::permanent(format!("the additional root certificates cannot be read: {why}"))
                    .remedy("give a file of PEM certificates")
            };
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
                roots.add(certificate).map_err(|error| unreadable(error.to_string()))?;
            }
        }
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| FetchError::permanent(format!("TLS cannot be set up: {error}")))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { policy, resolver, tls: TlsConnector::from(Arc::new(config)) })
    }

    /// Connects to `host`. The address is resolved once, checked, and used as checked, so a second
    /// answer of the name server cannot lead elsewhere. `exempt` skips the policy (instance credentials).
    pub(super) async fn connect(
        &self,
        host: &str,
        port: u16,
        tls: bool,
        exempt: bool,
    ) -> Result<Stream, FetchError> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let addresses = match bare.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => self.resolver.resolve(bare).await.map_err(|error| {
                FetchError::transient(format!("the host name {bare} cannot be resolved: {error}"))
                    .remedy("check the spelling of the host and the name server")
            })?,
        };
        let mut denied = None;
        let mut failed = None;
        for address in addresses {
            if !exempt && let Err(refusal) = self.policy.check_for_host(bare, address) {
                denied = Some(refusal);
                continue;
            }
            match TcpStream::connect(SocketAddr::new(address, port)).await {
                Ok(stream) => return self.secure(stream, bare, tls).await,
                Err(error) => failed = Some((address, error)),
            }
        }
        Err(match (failed, denied) {
            (Some((address, error)), _) => {
                FetchError::transient(format!("cannot connect to {bare} at {address}: {error}"))
            }
            (None, Some(denied)) => FetchError::denied(denied.to_string()).remedy(format!(
                "if this is intended, allow the host `{bare}` or its network for artifact downloads"
            )),
            (None, None) => FetchError::transient(format!("the host name {bare} has no address")),
        })
    }

    async fn secure(&self, stream: TcpStream, host: &str, tls: bool) -> Result<Stream, FetchError> {
        let _ = stream.set_nodelay(true);
        if !tls {
            return Ok(Stream::Plain(stream));
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            FetchError::permanent(format!("`{host}` is not a name that a certificate can have"))
        })?;
        match self.tls.connect(name, stream).await {
            Ok(stream) => Ok(Stream::Tls(Box::new(stream))),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(FetchError::permanent(format!(
                "TLS with {host} failed: {error}"
            ))
            .remedy("check the certificate of the server; a private authority is added with SSL_CERT_FILE")),
            Err(error) => Err(FetchError::transient(format!("TLS with {host} failed: {error}"))),
        }
    }
}
