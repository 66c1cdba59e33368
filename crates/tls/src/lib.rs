//! TLS for the control plane: rustls with ring, from PEM files that may change while the program runs.
//!
//! ```text
//! settings (flags, environment) ─▶ files ─▶ Server ─▶ incoming: accepted connections, for tonic's servers
//!                                       └─▶ Client ─▶ Connector: opened connections, for tonic's channels
//! ```
//!
//! A certificate is renewed by writing the new files over the old ones: within seconds new connections use it. Files
//! that cannot be used are logged, and the last valid ones stay in use. Certificates generated in the process are set
//! with [`InMemoryCertificate`] instead.

mod accept;
mod certificate_info;
mod config;
mod connect;
mod connection;
mod diagnose;
mod error;
mod failover;
mod in_memory_cert;
mod in_memory_clients;
mod peer;
mod pem;
mod reload;
mod settings;

pub use accept::incoming;
pub use certificate_info::{CertificateInfo, is_key_of};
pub use config::{Client, Server};
pub use connect::{Connector, endpoint};
pub use connection::Connection;
pub use diagnose::diagnose;
pub use error::Error;
pub use failover::Failover;
pub use in_memory_cert::InMemoryCertificate;
pub use in_memory_clients::InMemoryClientCa;
pub use peer::{ConnectInfo, Peer, PeerCertificate};
pub use settings::{ClientFiles, ServerFiles, SettingsError};
