//! Who may reach the control plane: without TLS nobody from another machine, unless a flag says so.

use crate::failure::Failure;
use gantry_tls::{Server, ServerFiles};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};
use tokio::net::TcpListener;

/// With which certificates the control plane listens, and whether also without.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "TLS of the control plane")]
pub(crate) struct ListenArgs {
    /// Also listen with TLS, and show this certificate (PEM, with what leads to the CA). Renewed files are used within
    /// seconds.
    #[arg(long, env = "GANTRY_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// The private key of that certificate.
    #[arg(long, env = "GANTRY_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// Mutual TLS: let in only whoever shows a certificate that is signed by a CA in this file.
    #[arg(long, env = "GANTRY_TLS_CLIENT_CA", value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,

    /// Port of the scheduler's gRPC with TLS; 0 for any free one.
    #[arg(long, default_value_t = 9044, value_name = "PORT")]
    pub(crate) scheduler_mtls_port: u16,

    /// Port where agents reach the scheduler with TLS; 0 for any free one.
    #[arg(long, default_value_t = 9055, value_name = "PORT")]
    pub(crate) agent_mtls_port: u16,

    /// Let other machines reach the control plane without TLS, at --host: whoever can connect can then load and unload
    /// models. Without this flag plaintext ports are open on loopback only; with `=false` they are not open at all.
    #[arg(
        long,
        alias = "allow-plaintxt",
        env = "GANTRY_ALLOW_PLAINTEXT",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub(crate) allow_plaintext: Option<bool>,
}

impl ListenArgs {
    /// The certificates, if there are some; they are followed while the program runs.
    pub(crate) fn tls(&self) -> Result<Option<Server>, Failure> {
        let (certificate, key) = (self.tls_cert.clone(), self.tls_key.clone());
        let environment = |name: &str| std::env::var(name).ok();
        let files = ServerFiles::resolve(certificate, key, self.tls_client_ca.clone(), &environment)
            .map_err(|e| Failure::usage(e.to_string()))?;
        let usage = |e: gantry_tls::Error| Failure::usage(e.to_string());
        let server = files.map(|files| Server::open(files).map_err(usage)).transpose()?;
        if server.as_ref().is_some_and(|s| !s.is_mutual()) {
            tracing::warn!(
                "TLS without --tls-client-ca: connections are encrypted, and whoever can connect can command"
            );
        }
        Ok(server)
    }

    /// Where the control plane listens without TLS, if at all.
    pub(crate) fn plaintext(&self, host: IpAddr, has_tls: bool) -> Result<Option<IpAddr>, Failure> {
        plaintext(host, self.allow_plaintext, has_tls).map_err(Failure::usage)
    }

    /// The same for `gantry up`, where --host is about inference in the first place: the control plane then stays on
    /// loopback, and nothing is wrong.
    pub(crate) fn plaintext_of_up(&self, host: IpAddr) -> IpAddr {
        if self.allow_plaintext == Some(true) { host } else { loopback(host) }
    }
}

fn plaintext(host: IpAddr, allowed: Option<bool>, has_tls: bool) -> Result<Option<IpAddr>, String> {
    match (allowed, has_tls) {
        (Some(true), _) => Ok(Some(host)),
        (Some(false), true) => Ok(None),
        (Some(false), false) => {
            Err("--allow-plaintext=false, and there is no certificate: nothing would listen. Name \
                                     a certificate with --tls-cert and --tls-key"
                .into())
        }
        (None, _) if host.is_loopback() => Ok(Some(host)),
        (None, true) => Ok(Some(loopback(host))),
        (None, false) => Err(format!(
            "--host {host} would let other machines command the scheduler without proving who they are. Name \
             certificates with --tls-cert, --tls-key and --tls-client-ca, or allow it with --allow-plaintext"
        )),
    }
}

/// The address of this machine for itself, of the same family.
pub(crate) const fn loopback(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(address) if address.is_loopback() => like,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

/// Opens a port; an error names the flag that chooses another.
pub(crate) async fn bind(
    what: &str,
    host: IpAddr,
    port: u16,
    flag: &str,
) -> Result<(TcpListener, SocketAddr), Failure> {
    let address = SocketAddr::new(host, port);
    let failed = |e: std::io::Error| {
        Failure::failed(format!(
            "{what} cannot listen on {address}: {e}; choose another with {flag}, 0 for any free one"
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
    fn without_tls_nothing_listens_beyond_loopback_unless_it_is_allowed() {
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
            let got = plaintext(host, allowed, has_tls);
            assert_eq!(got.clone().ok(), expected, "{host} {allowed:?} {has_tls}: {got:?}");
        }
        let refused = plaintext(any, None, false).unwrap_err();
        assert!(refused.contains("--tls-cert") && refused.contains("--allow-plaintext"), "{refused}");
    }
}
