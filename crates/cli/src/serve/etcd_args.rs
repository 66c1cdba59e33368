//! Flags of a scheduler whose state is in etcd.

use crate::error::CommandError;
use gantry_store::etcd::{Credentials, Location, Settings};
use gantry_tls::{Client, ClientFiles};
use std::{path::PathBuf, time::Duration};

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "State in etcd")]
pub(crate) struct EtcdArgs {
    /// Keep the state in etcd instead of a directory: etcd://HOST:PORT,HOST:PORT/PREFIX. Of several schedulers with the
    /// same prefix one leads, and the others stand by; --state-dir is not used. GANTRY_ETCD_USER and GANTRY_ETCD_PASSWORD authenticate.
    #[arg(long, env = "GANTRY_STORE", value_name = "URL")]
    store: Option<String>,

    /// Use TLS with etcd and verify its certificates with the CAs in this file.
    #[arg(long, env = "GANTRY_ETCD_CA", value_name = "FILE", requires = "store")]
    etcd_ca: Option<PathBuf>,

    /// Client certificate for etcd.
    #[arg(long, env = "GANTRY_ETCD_CERT", value_name = "FILE", requires = "etcd_ca")]
    etcd_cert: Option<PathBuf>,

    /// Private key of --etcd-cert.
    #[arg(long, env = "GANTRY_ETCD_KEY", value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,

    /// Seconds without a renewal after which a standby takes over.
    #[arg(long, default_value_t = 5, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(2..=60))]
    etcd_lease: u64,
}

impl EtcdArgs {
    /// `None` for a state directory.
    pub(crate) fn settings(&self) -> Result<Option<Settings>, CommandError> {
        let Some(store) = self.store.as_deref().filter(|store| !store.is_empty()) else { return Ok(None) };
        let location = Location::parse(store).map_err(|why| CommandError::usage(format!("--store {why}")))?;
        Ok(Some(Settings {
            location,
            tls: self.tls()?,
            credentials: credentials(&|name| std::env::var(name).ok())?,
            name: process_name(),
            lease: Duration::from_secs(self.etcd_lease),
        }))
    }

    fn tls(&self) -> Result<Option<Client>, CommandError> {
        let Some(ca) = self.etcd_ca.clone() else { return Ok(None) };
        let identity = match (self.etcd_cert.clone(), self.etcd_key.clone()) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(CommandError::usage("--etcd-cert needs its private key: set --etcd-key")),
        };
        let files = ClientFiles { ca, identity, server_name: None };
        Client::open(files).map(Some).map_err(|e| CommandError::usage(e.to_string()))
    }
}

fn credentials(environment: &dyn Fn(&str) -> Option<String>) -> Result<Option<Credentials>, CommandError> {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty());
    match (set("GANTRY_ETCD_USER"), set("GANTRY_ETCD_PASSWORD")) {
        (Some(user), Some(password)) => Ok(Some(Credentials { user, password })),
        (None, None) => Ok(None),
        (Some(_), None) => {
            Err(CommandError::usage("GANTRY_ETCD_USER is set, and GANTRY_ETCD_PASSWORD is not"))
        }
        (None, Some(_)) => {
            Err(CommandError::usage("GANTRY_ETCD_PASSWORD is set, and GANTRY_ETCD_USER is not"))
        }
    }
}

/// By which the other schedulers and etcd's users recognise this process.
fn process_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "scheduler" } else { host.trim() };
    format!("{host} (pid {})", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_come_from_the_environment_and_must_be_complete() {
        for (user, password, expected) in [
            (Some("u"), Some("secret"), Ok(true)),
            (None, None, Ok(false)),
            (Some("u"), None, Err("GANTRY_ETCD_PASSWORD is not")),
            (None, Some("secret"), Err("GANTRY_ETCD_USER is not")),
            (Some(""), Some(""), Ok(false)),
        ] {
            let found = credentials(&|name| match name {
                "GANTRY_ETCD_USER" => user.map(str::to_owned),
                _ => password.map(str::to_owned),
            });
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found.is_some(), expected),
                (Err(error), Err(expected)) => assert!(error.message.contains(expected), "{error}"),
                (found, expected) => panic!("{found:?}, not {expected:?}"),
            }
        }
    }
}
