//! The two sides of a connection: who listens, and who connects.

use crate::{
    ClientFiles, Error, ServerFiles, Shown,
    live::{Live, Texts},
    pem,
};
use rustls::{
    ClientConfig, InconsistentKeys, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
    server::WebPkiClientVerifier,
};
use std::{path::Path, sync::Arc};

/// gRPC is HTTP/2, and says so.
const ALPN: &[u8] = b"h2";

/// The side that listens. Cheap to clone; every clone follows the same files.
#[derive(Clone, Debug)]
pub struct Server {
    source: Source,
    mutual: bool,
}

/// Where the certificate comes from.
#[derive(Clone, Debug)]
enum Source {
    Files(Arc<Live<ServerConfig>>),
    Shown(Arc<ServerConfig>),
}

impl Server {
    /// Reads the files, and again whenever they change. Needs a tokio runtime.
    pub fn open(files: ServerFiles) -> Result<Self, Error> {
        let server = Self::read(files)?;
        if let Source::Files(live) = &server.source {
            live.follow();
        }
        Ok(server)
    }

    /// Shows a certificate that is handed over while it listens, to whoever speaks one of these protocols (HTTP's names
    /// for them: `h2`, `http/1.1`).
    pub fn showing(shown: Shown, protocols: &[&str]) -> Result<Self, Error> {
        let builder =
            ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(shown));
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Ok(Self { source: Source::Shown(Arc::new(config)), mutual: false })
    }

    /// Reads the files; [`look_again`](Self::look_again) reads them again.
    pub fn read(files: ServerFiles) -> Result<Self, Error> {
        let mut paths = vec![files.certificate.clone(), files.key.clone()];
        paths.extend(files.client_ca.clone());
        let mutual = files.client_ca.is_some();
        let live = Live::open(paths, move |texts| server_config(&files, texts))?;
        Ok(Self { source: Source::Files(live), mutual })
    }

    /// Looks whether the files have changed; the error says why what they say now is not used.
    pub fn look_again(&self) -> Result<(), String> {
        match &self.source {
            Source::Files(live) => outcome(live.look()),
            Source::Shown(_) => Ok(()),
        }
    }

    /// Whether clients must show a certificate.
    pub const fn is_mutual(&self) -> bool {
        self.mutual
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        match &self.source {
            Source::Files(live) => live.current(),
            Source::Shown(config) => Arc::clone(config),
        }
    }
}

/// The side that connects. Cheap to clone; every clone follows the same files.
#[derive(Clone, Debug)]
pub struct Client {
    live: Arc<Live<ClientConfig>>,
    has_identity: bool,
    server_name: Option<ServerName<'static>>,
}

impl Client {
    /// Reads the files, and again whenever they change. Needs a tokio runtime.
    pub fn open(files: ClientFiles) -> Result<Self, Error> {
        let client = Self::read(files)?;
        client.live.follow();
        Ok(client)
    }

    /// Reads the files; [`look_again`](Self::look_again) reads them again.
    pub fn read(files: ClientFiles) -> Result<Self, Error> {
        let mut paths = vec![files.ca.clone()];
        if let Some((certificate, key)) = &files.identity {
            paths.extend([certificate.clone(), key.clone()]);
        }
        let server_name = files.server_name.clone();
        let has_identity = files.identity.is_some();
        let live = Live::open(paths, move |texts| client_config(&files, texts))?;
        Ok(Self { live, has_identity, server_name })
    }

    /// Looks whether the files have changed; the error says why what they say now is not used.
    pub fn look_again(&self) -> Result<(), String> {
        outcome(self.live.look())
    }

    /// Whether there is a certificate to show to a server that asks.
    pub const fn has_identity(&self) -> bool {
        self.has_identity
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        self.live.current()
    }

    /// The name that the server's certificate must be for, if it is not the host's.
    pub(crate) const fn server_name(&self) -> Option<&ServerName<'static>> {
        self.server_name.as_ref()
    }
}

fn outcome(look: crate::live::Look) -> Result<(), String> {
    match look {
        crate::live::Look::Refused(reason) => Err(reason),
        crate::live::Look::Same | crate::live::Look::Renewed => Ok(()),
    }
}

fn provider() -> Arc<CryptoProvider> {
    // Named here, not installed for the process: a library does not decide for others.
    Arc::new(ring::default_provider())
}

fn server_config(files: &ServerFiles, texts: &Texts) -> Result<ServerConfig, Error> {
    let [certificate, key, rest @ ..] = texts.as_slice() else { return Err(incomplete()) };
    let (chain, key) = identity(&files.certificate, certificate, &files.key, key)?;
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match (&files.client_ca, rest) {
        (Some(path), [text]) => {
            let roots = Arc::new(pem::roots(path, text)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                .build()
                .map_err(|e| Error::Certificate { path: path.clone(), reason: e.to_string() })?;
            builder.with_client_cert_verifier(verifier)
        }
        _ => builder.with_no_client_auth(),
    };
    let own = |e| not_a_pair(e, &files.certificate, &files.key);
    let mut config = builder.with_single_cert(chain, key).map_err(own)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

fn client_config(files: &ClientFiles, texts: &Texts) -> Result<ClientConfig, Error> {
    let [ca, rest @ ..] = texts.as_slice() else { return Err(incomplete()) };
    let roots: RootCertStore = pem::roots(&files.ca, ca)?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match (&files.identity, rest) {
        (Some((certificate_path, key_path)), [certificate, key]) => {
            let (chain, key) = identity(certificate_path, certificate, key_path, key)?;
            let own = |e| not_a_pair(e, certificate_path, key_path);
            builder.with_client_auth_cert(chain, key).map_err(own)?
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

fn not_a_pair(error: rustls::Error, certificate: &Path, key: &Path) -> Error {
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
