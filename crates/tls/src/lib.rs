//! TLS for the control plane: rustls with ring, from PEM files that may change while the program runs.
//!
//! ```text
//! settings (flags, environment) ─▶ files ─▶ Server ─▶ incoming: accepted connections, for tonic's servers
//!                                       └─▶ Client ─▶ Connector: opened connections, for tonic's channels
//! ```
//!
//! A certificate is renewed by writing the new files over the old ones: within seconds new connections use it. Files
//! that cannot be used are named in the log, and the last good ones stay in use. Who makes certificates by itself hands
//! them over instead ([`Shown`]).

mod accept;
mod connect;
mod connection;
mod error;
mod explain;
mod live;
mod pem;
mod settings;
mod shown;
mod sides;

pub use accept::incoming;
pub use connect::{Connector, endpoint};
pub use connection::Connection;
pub use error::Error;
pub use explain::explain;
pub use settings::{ClientFiles, ServerFiles, SettingsError};
pub use shown::Shown;
pub use sides::{Client, Server};
