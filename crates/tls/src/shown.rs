//! A certificate that is handed over while the program runs, instead of being read from files.

use crate::{Error, pem};
use arc_swap::ArcSwapOption;
use rustls::{
    InconsistentKeys,
    crypto::ring,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use std::{path::Path, sync::Arc};

/// The certificate that a listening side shows, which may change at any time, and may not be there yet. Cheap to clone:
/// every clone shows the same.
#[derive(Clone, Default)]
pub struct Shown(Arc<ArcSwapOption<CertifiedKey>>);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shown").field("is_there", &self.is_there()).finish()
    }
}

impl Shown {
    /// New connections see this certificate from now on; those that stand are not touched. `place` is where it comes
    /// from, for whoever reads the error. What cannot be used changes nothing.
    pub fn show(&self, place: &str, certificate: &str, key: &str) -> Result<(), Error> {
        let path = Path::new(place);
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

    /// Whether there is one. Until then every handshake is refused at once: whoever connects need not wait.
    pub fn is_there(&self) -> bool {
        self.0.load().is_some()
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}
