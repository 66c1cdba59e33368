//! Errors in certificate and key files.

use std::path::PathBuf;

/// Invalid certificate or key files.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum Error {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} has no certificate: expected a PEM block BEGIN CERTIFICATE", .0.display())]
    NoCertificate(PathBuf),
    #[error("{} has no usable private key: expected an unencrypted PEM block BEGIN PRIVATE KEY", .0.display())]
    NoKey(PathBuf),
    #[error("invalid certificate in {}: {reason}", path.display())]
    Certificate { path: PathBuf, reason: String },
    #[error("the private key in {} does not match the certificate in {}", key.display(), certificate.display())]
    Mismatch { certificate: PathBuf, key: PathBuf },
    #[error("TLS setup failed: {0}")]
    Setup(#[from] rustls::Error),
}
