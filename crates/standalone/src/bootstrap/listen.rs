//! Listeners of the control plane. Without TLS they bind to loopback only, unless a flag allows plaintext.

use crate::error::CommandError;
use gantry_tls::{Server, ServerFiles};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};
use tokio::net::TcpListener;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "TLS of the control plane")]
pub struct ListenArgs {
    /// Server certificate (PEM with intermediates): also listen with TLS. Renewed files are reloaded within seconds.
    #[arg(long, env = "GANTRY_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert.
    #[arg(long, env = "GANTRY_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// Mutual TLS: require client certificates signed by a CA in this file.
    #[arg(long, env = "GANTRY_TLS_CLIENT_CA", value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,

    /// Port of the scheduler's gRPC API with TLS; 0 picks a free one.
    #[arg(long, default_value_t = 9044, value_name = "PORT")]
    pub scheduler_mtls_port: u16,

    /// Port of the scheduler's agent API with TLS; 0 picks a free one.
    #[arg(long, default_value_t = 9055, value_name = "PORT")]
    pub agent_mtls_port: u16,

    /// Serve the control plane without TLS on --host: any client that can connect may then load and unload models.
    /// By default plaintext ports bind to loopback only; `=false` closes them.
    #[arg(
        long,
        alias = "allow-plaintxt",
        env = "GANTRY_ALLOW_PLAINTEXT",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub allow_plaintext: Option<bool>,
}

impl ListenArgs {
    /// The TLS configuration, if there is one; certificates are reloaded while the process runs.
    pub fn tls(&self) -> Result<Option<Server>, CommandError> {
        let (certificate, key) = (self.tls_cert.clone(), self.tls_key.clone());
        let environment = |name: &str| std::env::var(name).ok();
        let files = ServerFiles::resolve(certificate, key, self.tls_client_ca.clone(), &environment)
            .map_err(|e| CommandError::usage(e.to_string()))?;
        let usage = |e: gantry_tls::Error| CommandError::usage(e.to_string());
        let server = files.map(|files| Server::open(files).map_err(usage)).transpose()?;
        if server.as_ref().is_some_and(|s| !s.is_mutual()) {
            tracing::warn!("--tls-client-ca is not set: clients are not authenticated and have full control");
        }
        Ok(server)
    }

    /// The address for plaintext listeners, if any.
    pub fn plaintext_host(&self, host: IpAddr, has_tls: bool) -> Result<Option<IpAddr>, CommandError> {
        plaintext_host(host, self.allow_plaintext, has_tls).map_err(CommandError::usage)
    }

    /// The same for `gantry up`, where --host is the address for inference: the control plane stays on loopback.
    pub fn standalone_plaintext_host(&self, host: IpAddr) -> IpAddr {
        if self.allow_plaintext == Some(true) { host } else { loopback(host) }
    }
}

fn plaintext_host(host: IpAddr, allowed: Option<bool>, has_tls: bool) -> Result<Option<IpAddr>, String> {
    match (allowed, has_tls) {
        (Some(true), _) => Ok(Some(host)),
        (Some(false), true) => Ok(None),
        (Some(false), false) => Err(
            "--allow-plaintext=false without a certificate leaves no listener: set --tls-cert and --tls-key"
                .into(),
        ),
        (None, _) if host.is_loopback() => Ok(Some(host)),
        (None, true) => Ok(Some(loopback(host))),
        (None, false) => Err(format!(
            "--host {host} would expose the scheduler without authentication: set --tls-cert, --tls-key and \
             --tls-client-ca, or allow it with --allow-plaintext"
        )),
    }
}

/// The loopback address of the same family.
pub const fn loopback(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(address) if address.is_loopback() => like,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

/// Binds a port; the error names the flag that sets it.
pub async fn bind(
    what: &str,
    host: IpAddr,
    port: u16,
    flag: &str,
) -> Result<(TcpListener, SocketAddr), CommandError> {
    let address = SocketAddr::new(host, port);
    let failed = |e: std::io::Error| {
        CommandError::failed(format!(
            "{what} cannot listen on {address}: {e}; set another port with {flag}, 0 picks a free one"
        ))
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plaintext_binds_to_loopback_unless_allowed() {
        let (local, second, any, any6): (IpAddr, IpAddr, IpAddr, IpAddr) = (
            "127.0.0.1".parse().unwrap(),
            "127.0.0.2".parse().unwrap(),
            "0.0.0.0".parse().unwrap(),
            "::".parse().unwrap(),
        );
        for (host, allowed, has_tls, expected) in [
            (local, None, false, Some(Some(local))),
            (second, None, false, Some(Some(second))),
            (any, None, false, None),
            (any6, None, false, None),
            (any, Some(true), false, Some(Some(any))),
            (local, Some(false), false, None),
            (any, None, true, Some(Some(local))),
            (any6, None, true, Some(Some(Ipv6Addr::LOCALHOST.into()))),
            (any, Some(true), true, Some(Some(any))),
            (any, Some(false), true, Some(None)),
        ] {
            let got = plaintext_host(host, allowed, has_tls);
            assert_eq!(got.clone().ok(), expected, "{host} {allowed:?} {has_tls}: {got:?}");
        }
        let refused = plaintext_host(any, None, false).unwrap_err();
        assert!(refused.contains("--tls-cert") && refused.contains("--allow-plaintext"), "{refused}");
    }
}
