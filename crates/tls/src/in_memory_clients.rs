//! The CA of client certificates, set by the program instead of read from files.

use crate::{Error, pem};
use arc_swap::ArcSwapOption;
use rustls::{
    DigitallySignedStruct, DistinguishedName, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::ring,
    pki_types::{CertificateDer, UnixTime},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use std::{path::Path, sync::Arc};

/// The CA of client certificates, which may be replaced at any time. Clones share it. While it is unset, handshakes fail.
#[derive(Clone, Default)]
pub struct InMemoryClientCa(Arc<ArcSwapOption<Verifier>>);

/// `ArcSwapOption` needs a sized type.
struct Verifier(Arc<dyn ClientCertVerifier>);

impl std::fmt::Debug for InMemoryClientCa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InMemoryClientCa").field("is_set", &self.0.load().is_some()).finish()
    }
}

impl InMemoryClientCa {
    /// Sets the CA for new connections. `origin` names its source in errors. An invalid one changes nothing.
    pub fn set(&self, origin: &str, ca: &str) -> Result<(), Error> {
        let path = Path::new(origin);
        let roots = Arc::new(pem::roots(path, ca.as_bytes())?);
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
        let verifier =
            verifier.map_err(|e| Error::Certificate { path: path.to_owned(), reason: e.to_string() })?;
        self.0.store(Some(Arc::new(Verifier(verifier))));
        Ok(())
    }

    fn current(&self) -> Result<Arc<Verifier>, rustls::Error> {
        self.0.load_full().ok_or_else(|| rustls::Error::General("the CA of clients is not known yet".into()))
    }
}

impl ClientCertVerifier for InMemoryClientCa {
    /// No hints: clients of this kind have one certificate.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.current()?.0.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current()?.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current()?.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
