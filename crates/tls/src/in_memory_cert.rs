//! A server certificate that is set by the program instead of read from files.

use crate::{Error, pem};
use arc_swap::ArcSwapOption;
use rustls::{
    InconsistentKeys,
    crypto::ring,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use std::{path::Path, sync::Arc};

/// A server certificate that may be replaced at any time. Clones share it. While it is unset, handshakes fail at once.
#[derive(Clone, Default)]
pub struct InMemoryCertificate(Arc<ArcSwapOption<CertifiedKey>>);

impl std::fmt::Debug for InMemoryCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InMemoryCertificate").field("is_set", &self.is_set()).finish()
    }
}

impl InMemoryCertificate {
    /// Sets the certificate of new connections; established ones keep theirs. `origin` names its source in errors. An
    /// invalid certificate changes nothing.
    pub fn set(&self, origin: &str, certificate: &str, key: &str) -> Result<(), Error> {
        let path = Path::new(origin);
        let chain = pem::certificates(path, certificate.as_bytes())?;
        let key = pem::key(path, key.as_bytes())?;
        let certified =
            CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|e| match e {
                rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    Error::Mismatch { certificate: path.to_owned(), key: path.to_owned() }
                }
                other => Error::Certificate { path: path.to_owned(), reason: other.to_string() },
            })?;
        self.0.store(Some(Arc::new(certified)));
        Ok(())
    }

    /// Whether a certificate is set.
    pub fn is_set(&self) -> bool {
        self.0.load().is_some()
    }
}

impl ResolvesServerCert for InMemoryCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}
