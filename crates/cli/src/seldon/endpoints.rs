//! Addresses, TLS and timeouts of the Seldon CLI.

use super::{config::Settings, error};
use crate::{
    args::Global,
    client::{Address, Scheduler, TlsArgs, resolve_scheduler},
    error::CommandError,
};
use std::time::Duration;

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Large models take minutes to download.
const WAIT_TIMEOUT: Duration = Duration::from_mins(10);

#[derive(Debug)]
pub(crate) struct Endpoints {
    /// Started through the `seldon` symlink.
    pub(super) as_seldon: bool,
    pub(super) call_timeout: Duration,
    pub(super) wait_timeout: Duration,
    scheduler: Option<String>,
    inference: Option<String>,
    admin: String,
    tls: TlsArgs,
}

impl Endpoints {
    pub(super) fn seldon(timeout: Option<Duration>) -> Self {
        Self {
            as_seldon: true,
            call_timeout: timeout.filter(|t| !t.is_zero()).unwrap_or(CALL_TIMEOUT),
            wait_timeout: timeout.unwrap_or(WAIT_TIMEOUT),
            scheduler: None,
            inference: None,
            admin: std::env::var("GANTRY_ADMIN").unwrap_or_default(),
            tls: TlsArgs::default(),
        }
    }

    pub(crate) fn gantry(global: &Global) -> Self {
        let (scheduler, inference) = global.explicit_addresses();
        Self {
            as_seldon: false,
            scheduler,
            inference,
            admin: global.admin(),
            tls: global.tls.clone(),
            ..Self::seldon(global.timeout())
        }
    }

    pub(super) async fn scheduler(
        &self,
        flag: Option<&str>,
        authority: Option<&str>,
    ) -> Result<Scheduler, CommandError> {
        // With an explicit address, TLS comes from Gantry's flags; otherwise from the configuration.
        let explicit = flag.or(self.scheduler.as_deref()).filter(|h| !h.is_empty());
        let settings = if explicit.is_some() { Settings::default() } else { Settings::active()? };
        let host = choose(explicit, settings.scheduler(), "SELDON_SCHEDULE_HOST", "127.0.0.1:9004");
        let tls = match settings.scheduler_tls()? {
            Some(tls) => Some(tls),
            None => self.tls.client().map_err(error::other)?,
        };
        let (address, tls) = resolve_scheduler(&host, tls).map_err(error::other)?;
        Scheduler::connect_to(address, tls, self.call_timeout, authority).await.map_err(|e| {
            CommandError::new(e.exit, format!("Error: rpc error: code = Unavailable desc = {e}"))
        })
    }

    /// The admin endpoint, which Seldon does not have: without configuration of its own.
    pub(super) fn admin(&self) -> Result<Address, CommandError> {
        let host = if self.admin.is_empty() { "127.0.0.1:9003" } else { &self.admin };
        Address::parse(host, 9003, "--admin").map_err(error::other)
    }

    pub(super) fn inference(&self, flag: Option<&str>) -> Result<Address, CommandError> {
        let explicit = flag.or(self.inference.as_deref()).filter(|h| !h.is_empty());
        let configured = if explicit.is_some() { None } else { Settings::active()?.inference()? };
        let host = choose(explicit, configured, "SELDON_INFER_HOST", "127.0.0.1:9000");
        Address::parse(&host, 9000, "--inference-host").map_err(error::other)
    }
}

/// The first of flag, configuration, environment variable and default.
fn choose(flag: Option<&str>, configured: Option<String>, variable: &str, default: &str) -> String {
    let from_env = || std::env::var(variable).ok().filter(|v| !v.is_empty());
    flag.map(str::to_owned).or(configured).or_else(from_env).unwrap_or_else(|| default.to_owned())
}
