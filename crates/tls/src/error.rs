//! What can be wrong with the files.

use std::path::PathBuf;

/// Why files cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file is not there, or may not be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file has no certificate.
    #[error("{} holds no certificate: it must be PEM, with a block that begins with BEGIN CERTIFICATE", .0.display())]
    NoCertificate(PathBuf),
    /// A file has no private key that can be read.
    #[error(
        "{} holds no private key that can be used: it must be PEM, not encrypted, with a block that begins with \
         BEGIN PRIVATE KEY", .0.display()
    )]
    NoKey(PathBuf),
    /// A certificate is damaged, or of a kind that is not supported.
    #[error("the certificate in {} cannot be used: {reason}", path.display())]
    Certificate {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The key belongs to another certificate.
    #[error(
        "the private key in {} is not the key of the certificate in {}: they must be written together",
        key.display(), certificate.display()
    )]
    Mismatch {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// The library refuses.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}
