//! Authentication of the inference port.

use crate::error::CommandError;
use gantry_auth::{Auth, Clock};
use std::{io::Write as _, net::IpAddr, path::PathBuf, sync::Arc};

#[derive(Clone, Debug, clap::Args)]
pub struct AuthArgs {
    /// API keys and token issuers of the inference port; changes are applied while it serves. Without it, clients need no
    /// credential. `gantry auth create-key` makes a key.
    #[arg(long, env = "GANTRY_AUTH_CONFIG", value_name = "FILE")]
    pub auth_config: Option<PathBuf>,
}

impl AuthArgs {
    /// Reads the configuration. Without one, an address that other machines can reach is reported.
    pub fn open(&self, host: IpAddr) -> Result<Option<Arc<Auth>>, CommandError> {
        let Some(path) = &self.auth_config else {
            if !host.is_loopback() {
                // `gantry up` logs to a file; this has to be seen.
                let _ = writeln!(
                    std::io::stderr(),
                    "warning: --host {host}: clients on other machines need no credential for inference. Set --auth-config \
                     FILE (`gantry auth create-key NAME` makes a key), or let only a proxy that authenticates them connect"
                );
            }
            return Ok(None);
        };
        let auth = Auth::open(path, Clock::system())
            .map_err(|error| CommandError::usage(format!("--auth-config: {error}")))?;
        tracing::info!("inference needs a credential: {}", auth.summary());
        Ok(Some(auth))
    }
}

/// The curl command of an example with the credential that the gateway requires.
pub fn with_credential(curl: &str, is_required: bool) -> String {
    if is_required { curl.replacen("curl ", "curl -H \"x-api-key: $KEY\" ", 1) } else { curl.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_configuration_is_an_error_of_the_command_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("auth.yaml");
        std::fs::write(&path, "keys: []").unwrap();
        let args = AuthArgs { auth_config: Some(path) };
        let error = args.open(IpAddr::from([127, 0, 0, 1])).unwrap_err().to_string();
        assert!(error.starts_with("--auth-config: ") && error.contains("create-key"), "{error}");
    }

    #[test]
    fn example_has_the_credential_if_it_is_required() {
        assert_eq!(with_credential("curl a -d 'curl '", true), "curl -H \"x-api-key: $KEY\" a -d 'curl '");
        assert_eq!(with_credential("curl a", false), "curl a");
    }
}
