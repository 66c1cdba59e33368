//! TLS configuration of servers and clients.

use crate::{
    ClientFiles, Error, InMemoryCertificate, InMemoryClientCa, ServerFiles, pem,
    reload::{Contents, ReloadOutcome, Reloading},
};
use rustls::{
    ClientConfig, InconsistentKeys, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
    server::WebPkiClientVerifier,
};
use std::{path::Path, sync::Arc};

/// gRPC requires HTTP/2.
const ALPN: &[u8] = b"h2";

/// TLS for a listener. Clones share the configuration.
#[derive(Clone, Debug)]
pub struct Server {
    source: Source,
    mutual: bool,
}

#[derive(Clone, Debug)]
enum Source {
    Files(Arc<Reloading<ServerConfig>>),
    InMemory(Arc<ServerConfig>),
}

impl Server {
    /// Reads the files and reloads them when they change. Requires a tokio runtime.
    pub fn open(files: ServerFiles) -> Result<Self, Error> {
        let server = Self::read(files)?;
        if let Source::Files(config) = &server.source {
            config.watch();
        }
        Ok(server)
    }

    /// Uses an in-memory certificate and offers these ALPN protocols (`h2`, `http/1.1`). With a client CA, clients must
    /// present a certificate.
    pub fn with_certificate(
        certificate: InMemoryCertificate,
        client_ca: Option<InMemoryClientCa>,
        protocols: &[&str],
    ) -> Result<Self, Error> {
        let builder =
            ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let mutual = client_ca.is_some();
        let builder = match client_ca {
            Some(client_ca) => builder.with_client_cert_verifier(Arc::new(client_ca)),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(certificate));
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Ok(Self { source: Source::InMemory(Arc::new(config)), mutual })
    }

    /// Reads the files once; [`reload`](Self::reload) reads them again.
    pub fn read(files: ServerFiles) -> Result<Self, Error> {
        let mut paths = vec![files.certificate.clone(), files.key.clone()];
        paths.extend(files.client_ca.clone());
        let mutual = files.client_ca.is_some();
        let config = Reloading::open(paths, move |contents| server_config(&files, contents))?;
        Ok(Self { source: Source::Files(config), mutual })
    }

    /// Reloads changed files; the error is the reason for keeping the previous ones.
    pub fn reload(&self) -> Result<(), String> {
        match &self.source {
            Source::Files(config) => result(config.reload()),
            Source::InMemory(_) => Ok(()),
        }
    }

    /// Whether clients must present a certificate.
    pub const fn is_mutual(&self) -> bool {
        self.mutual
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        match &self.source {
            Source::Files(config) => config.current(),
            Source::InMemory(config) => Arc::clone(config),
        }
    }
}

/// TLS for outgoing connections. Clones share the configuration.
#[derive(Clone, Debug)]
pub struct Client {
    config: ClientSource,
    has_identity: bool,
    server_name: Option<ServerName<'static>>,
}

#[derive(Clone, Debug)]
enum ClientSource {
    Files(Arc<Reloading<ClientConfig>>),
    InMemory(Arc<ClientConfig>),
}

impl Client {
    /// Reads the files and reloads them when they change. Requires a tokio runtime.
    pub fn open(files: ClientFiles) -> Result<Self, Error> {
        let client = Self::read(files)?;
        if let ClientSource::Files(config) = &client.config {
            config.watch();
        }
        Ok(client)
    }

    /// Reads the files once; [`reload`](Self::reload) reads them again.
    pub fn read(files: ClientFiles) -> Result<Self, Error> {
        let mut paths = vec![files.ca.clone()];
        if let Some((certificate, key)) = &files.identity {
            paths.extend([certificate.clone(), key.clone()]);
        }
        let server_name = files.server_name.clone();
        let has_identity = files.identity.is_some();
        let config = Reloading::open(paths, move |contents| client_config(&files, contents))?;
        Ok(Self { config: ClientSource::Files(config), has_identity, server_name })
    }

    /// Uses certificates of the program, as PEM; `origin` names their source in errors.
    pub fn from_pem(origin: &str, ca: &str, certificate: &str, key: &str) -> Result<Self, Error> {
        let path = Path::new(origin).to_path_buf();
        let files = ClientFiles { ca: path.clone(), identity: Some((path.clone(), path)), server_name: None };
        let contents = [ca, certificate, key].map(|text| text.as_bytes().to_vec());
        let config = client_config(&files, &contents.to_vec())?;
        Ok(Self { config: ClientSource::InMemory(Arc::new(config)), has_identity: true, server_name: None })
    }

    /// Reloads changed files; the error is the reason for keeping the previous ones.
    pub fn reload(&self) -> Result<(), String> {
        match &self.config {
            ClientSource::Files(config) => result(config.reload()),
            ClientSource::InMemory(_) => Ok(()),
        }
    }

    /// Whether a client certificate is configured.
    pub const fn has_identity(&self) -> bool {
        self.has_identity
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        match &self.config {
            ClientSource::Files(config) => config.current(),
            ClientSource::InMemory(config) => Arc::clone(config),
        }
    }

    /// Overrides the host name in certificate verification.
    pub(crate) const fn server_name(&self) -> Option<&ServerName<'static>> {
        self.server_name.as_ref()
    }
}

fn result(outcome: ReloadOutcome) -> Result<(), String> {
    match outcome {
        ReloadOutcome::Rejected(reason) => Err(reason),
        ReloadOutcome::Unchanged | ReloadOutcome::Reloaded => Ok(()),
    }
}

fn provider() -> Arc<CryptoProvider> {
    // Explicit instead of the process default, which belongs to the binary.
    Arc::new(ring::default_provider())
}

fn server_config(files: &ServerFiles, contents: &Contents) -> Result<ServerConfig, Error> {
    let [certificate, key, rest @ ..] = contents.as_slice() else { return Err(incomplete()) };
    let (chain, key) = identity(&files.certificate, certificate, &files.key, key)?;
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match (&files.client_ca, rest) {
        (Some(path), [ca]) => {
            let roots = Arc::new(pem::roots(path, ca)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                .build()
                .map_err(|e| Error::Certificate { path: path.clone(), reason: e.to_string() })?;
            builder.with_client_cert_verifier(verifier)
        }
        _ => builder.with_no_client_auth(),
    };
    let invalid = |e| identity_error(e, &files.certificate, &files.key);
    let mut config = builder.with_single_cert(chain, key).map_err(invalid)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

fn client_config(files: &ClientFiles, contents: &Contents) -> Result<ClientConfig, Error> {
    let [ca, rest @ ..] = contents.as_slice() else { return Err(incomplete()) };
    let roots: RootCertStore = pem::roots(&files.ca, ca)?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match (&files.identity, rest) {
        (Some((certificate_path, key_path)), [certificate, key]) => {
            let (chain, key) = identity(certificate_path, certificate, key_path, key)?;
            let invalid = |e| identity_error(e, certificate_path, key_path);
            builder.with_client_auth_cert(chain, key).map_err(invalid)?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(
    certificate_path: &Path,
    certificate: &[u8],
    key_path: &Path,
    key: &[u8],
) -> Result<Identity, Error> {
    Ok((pem::certificates(certificate_path, certificate)?, pem::key(key_path, key)?))
}

fn identity_error(error: rustls::Error, certificate: &Path, key: &Path) -> Error {
    match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            Error::Mismatch { certificate: certificate.to_owned(), key: key.to_owned() }
        }
        rustls::Error::InvalidCertificate(reason) => {
            Error::Certificate { path: certificate.to_owned(), reason: reason.to_string() }
        }
        rustls::Error::General(_) => Error::NoKey(key.to_owned()),
        other => Error::Setup(other),
    }
}

fn incomplete() -> Error {
    Error::Setup(rustls::Error::General("a file is missing".into()))
}
