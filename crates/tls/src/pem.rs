//! Certificates and keys from PEM text.

use crate::Error;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use std::path::Path;

pub(crate) fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let invalid = |e: rustls::pki_types::pem::Error| Error::Certificate {
        path: path.to_owned(),
        reason: format!("malformed PEM ({e})"),
    };
    let found: Vec<_> = CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>().map_err(invalid)?;
    if found.is_empty() { Err(Error::NoCertificate(path.to_owned())) } else { Ok(found) }
}

pub(crate) fn key(path: &Path, text: &[u8]) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_slice(text).map_err(|_| Error::NoKey(path.to_owned()))
}

/// The certificates of a file as trust anchors.
pub(crate) fn roots(path: &Path, text: &[u8]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, text)? {
        roots
            .add(certificate)
            .map_err(|e| Error::Certificate { path: path.to_owned(), reason: e.to_string() })?;
    }
    Ok(roots)
}
