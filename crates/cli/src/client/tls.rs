//! TLS to the scheduler: which certificates, and whether at all.

use super::Address;
use crate::{args::Global, failure::Failure};
use gantry_tls::{Client, ClientFiles};
use std::path::PathBuf;

/// With which certificates the scheduler is reached.
#[derive(Debug, Clone, Default, clap::Args)]
#[allow(clippy::struct_field_names, reason = "the names are those of the flags")]
pub(crate) struct TlsArgs {
    /// Speak TLS with the scheduler; its certificate must be signed by a CA in this file
    #[arg(long, global = true, value_name = "FILE", env = "GANTRY_TLS_CA", hide_env_values = true)]
    tls_ca: Option<PathBuf>,
    /// The certificate to show to the scheduler
    #[arg(long, global = true, value_name = "FILE", env = "GANTRY_TLS_CLIENT_CERT", hide_env_values = true)]
    tls_client_cert: Option<PathBuf>,
    /// The private key of that certificate
    #[arg(long, global = true, value_name = "FILE", env = "GANTRY_TLS_CLIENT_KEY", hide_env_values = true)]
    tls_client_key: Option<PathBuf>,
    /// The name in the scheduler's certificate, if it is not the host that is connected to
    #[arg(long, global = true, value_name = "NAME", env = "GANTRY_TLS_SERVER_NAME", hide_env_values = true)]
    tls_server_name: Option<String>,
}

impl TlsArgs {
    /// The files to use; none for plaintext.
    fn files(&self) -> Result<Option<ClientFiles>, Failure> {
        ClientFiles::resolve(
            self.tls_ca.clone(),
            self.tls_client_cert.clone(),
            self.tls_client_key.clone(),
            self.tls_server_name.as_deref(),
            &|name| std::env::var(name).ok(),
        )
        .map_err(|e| Failure::usage(e.to_string()))
    }

    /// What to connect with; none for plaintext. Certificates are read once.
    pub(crate) fn client(&self) -> Result<Option<Client>, Failure> {
        let usage = |e: gantry_tls::Error| Failure::usage(e.to_string());
        self.files()?.map(|files| Client::read(files).map_err(usage)).transpose()
    }

    /// The same for a process that lives long: certificates are read again when they change.
    pub(crate) fn lasting_client(&self) -> Result<Option<Client>, Failure> {
        let usage = |e: gantry_tls::Error| Failure::usage(e.to_string());
        self.files()?.map(|files| Client::open(files).map_err(usage)).transpose()
    }
}

/// Where the scheduler is, and what to connect with. A scheme in the address must fit what the flags say.
pub(crate) fn scheduler(global: &Global) -> Result<(Address, Option<Client>), Failure> {
    agree(&global.scheduler(), global.tls.client()?)
}

/// The same for a process that lives long.
pub(crate) fn lasting_scheduler(global: &Global) -> Result<(Address, Option<Client>), Failure> {
    agree(&global.scheduler(), global.tls.lasting_client()?)
}

/// What to connect with to schedulers whose addresses are found later.
pub(crate) fn control_plane_tls(global: &Global) -> Result<Option<Client>, Failure> {
    global.tls.lasting_client()
}

/// An address and what to connect to it with, if both mean the same.
pub(crate) fn agree(text: &str, client: Option<Client>) -> Result<(Address, Option<Client>), Failure> {
    // With TLS a scheduler listens at another port.
    let default_port = if client.is_some() || text.starts_with("https://") { 9044 } else { 9004 };
    let address = Address::parse_any(text, default_port, "--scheduler")?;
    match (address.tls(), client) {
        (Some(true), None) => Err(Failure::usage(format!(
            "--scheduler https://{address} asks for TLS: name the CA of its certificate with --tls-ca"
        ))),
        (Some(false), Some(_)) => Err(Failure::usage(format!(
            "--scheduler http://{address} asks for no TLS, and --tls-ca for TLS: write {address}, or leave out the CA"
        ))),
        (_, client) => Ok((address, client)),
    }
}
