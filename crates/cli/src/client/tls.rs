//! TLS settings for connections to the scheduler.

use super::Addresses;
use crate::{args::Global, error::CommandError};
use gantry_tls::{Client, ClientFiles};
use std::path::PathBuf;

#[derive(Debug, Clone, Default, clap::Args)]
#[allow(clippy::struct_field_names, reason = "the names are those of the flags")]
pub(crate) struct TlsArgs {
    /// Use TLS with the scheduler and verify its certificate with the CAs in this file
    #[arg(long, global = true, value_name = "FILE", env = "GANTRY_TLS_CA", hide_env_values = true)]
    tls_ca: Option<PathBuf>,
    /// Client certificate for mutual TLS with the scheduler
    #[arg(long, global = true, value_name = "FILE", env = "GANTRY_TLS_CLIENT_CERT", hide_env_values = true)]
    tls_client_cert: Option<PathBuf>,
    /// Private key of the client certificate
    #[arg(long, global = true, value_name = "FILE", env = "GANTRY_TLS_CLIENT_KEY", hide_env_values = true)]
    tls_client_key: Option<PathBuf>,
    /// Name expected in the scheduler's certificate, if it differs from the host
    #[arg(long, global = true, value_name = "NAME", env = "GANTRY_TLS_SERVER_NAME", hide_env_values = true)]
    tls_server_name: Option<String>,
}

impl TlsArgs {
    /// `None` for plaintext.
    fn files(&self) -> Result<Option<ClientFiles>, CommandError> {
        ClientFiles::resolve(
            self.tls_ca.clone(),
            self.tls_client_cert.clone(),
            self.tls_client_key.clone(),
            self.tls_server_name.as_deref(),
            &|name| std::env::var(name).ok(),
        )
        .map_err(|e| CommandError::usage(e.to_string()))
    }

    /// `None` for plaintext. Certificates are read once.
    pub(crate) fn client(&self) -> Result<Option<Client>, CommandError> {
        let usage = |e: gantry_tls::Error| CommandError::usage(e.to_string());
        self.files()?.map(|files| Client::read(files).map_err(usage)).transpose()
    }

    /// For long-running processes: certificates are reloaded when their files change.
    pub(crate) fn reloading_client(&self) -> Result<Option<Client>, CommandError> {
        let usage = |e: gantry_tls::Error| CommandError::usage(e.to_string());
        self.files()?.map(|files| Client::open(files).map_err(usage)).transpose()
    }
}

pub(crate) fn scheduler(global: &Global) -> Result<(Addresses, Option<Client>), CommandError> {
    resolve_scheduler(&global.scheduler(), global.tls.client()?)
}

/// Like `scheduler`, with certificate reload.
pub(crate) fn reloading_scheduler(global: &Global) -> Result<(Addresses, Option<Client>), CommandError> {
    resolve_scheduler(&global.scheduler(), global.tls.reloading_client()?)
}

/// TLS for schedulers whose addresses are discovered later.
pub(crate) fn control_plane_tls(global: &Global) -> Result<Option<Client>, CommandError> {
    global.tls.reloading_client()
}

/// Parses the addresses and checks that their scheme agrees with the TLS settings.
pub(crate) fn resolve_scheduler(
    text: &str,
    client: Option<Client>,
) -> Result<(Addresses, Option<Client>), CommandError> {
    // TLS has its own default port.
    let default_port = if client.is_some() || text.starts_with("https://") { 9044 } else { 9004 };
    let address = Addresses::parse_any(text, default_port, "--scheduler")?;
    match (address.tls(), client) {
        (Some(true), None) => {
            Err(CommandError::usage(format!("--scheduler https://{address} requires TLS: set --tls-ca")))
        }
        (Some(false), Some(_)) => Err(CommandError::usage(format!(
            "--scheduler http://{address} is plaintext, but --tls-ca is set: write {address}, or remove --tls-ca"
        ))),
        (_, client) => Ok((address, client)),
    }
}
