//! Where the scheduler and the data plane are, and how long they may take.

use super::{config::Settings, failure};
use crate::{
    args::Global,
    client::{Address, Scheduler, TlsArgs, agree},
    failure::Failure,
};
use std::time::Duration;

/// How long one call may take.
const CALL: Duration = Duration::from_secs(10);
/// How long a state is waited for: a large model takes minutes to be fetched.
const WAIT: Duration = Duration::from_mins(10);

/// Who speaks the dialect, and what was said about places and times outside of it.
#[derive(Debug)]
pub(crate) struct Speaker {
    pub(super) as_seldon: bool,
    pub(super) call: Duration,
    pub(super) wait: Duration,
    scheduler: Option<String>,
    inference: Option<String>,
    tls: TlsArgs,
}

impl Speaker {
    /// Somebody who called the program `seldon`.
    pub(super) fn seldon(timeout: Option<Duration>) -> Self {
        Self {
            as_seldon: true,
            call: timeout.filter(|t| !t.is_zero()).unwrap_or(CALL),
            wait: timeout.unwrap_or(WAIT),
            scheduler: None,
            inference: None,
            tls: TlsArgs::default(),
        }
    }

    /// Somebody who called it `gantry`.
    pub(crate) fn gantry(global: &Global) -> Self {
        let (scheduler, inference) = global.named();
        Self {
            as_seldon: false,
            scheduler,
            inference,
            tls: global.tls.clone(),
            ..Self::seldon(global.timeout())
        }
    }

    /// A connection to the scheduler.
    pub(super) async fn scheduler(
        &self,
        flag: Option<&str>,
        authority: Option<&str>,
    ) -> Result<Scheduler, Failure> {
        // Whoever names a scheduler says with our flags whether TLS is spoken; else the configuration does.
        let named = flag.or(self.scheduler.as_deref()).filter(|h| !h.is_empty());
        let settings = if named.is_some() { Settings::default() } else { Settings::in_use()? };
        let host = choose(named, settings.scheduler(), "SELDON_SCHEDULE_HOST", "127.0.0.1:9004");
        let tls = match settings.scheduler_tls()? {
            Some(tls) => Some(tls),
            None => self.tls.client().map_err(failure::other)?,
        };
        let (address, tls) = agree(&host, tls).map_err(failure::other)?;
        Scheduler::connect_to(address, tls, self.call, authority).await.map_err(|f| {
            let words = format!("Error: rpc error: code = Unavailable desc = {f}");
            Failure::new(f.exit, words)
        })
    }

    /// The data plane's address.
    pub(super) fn inference(&self, flag: Option<&str>) -> Result<Address, Failure> {
        let named = flag.or(self.inference.as_deref()).filter(|h| !h.is_empty());
        let configured = if named.is_some() { None } else { Settings::in_use()?.inference()? };
        let host = choose(named, configured, "SELDON_INFER_HOST", "127.0.0.1:9000");
        Address::parse(&host, 9000, "--inference-host").map_err(failure::other)
    }
}

/// What was said on the command line, else what the configuration says, else the variable, else the default.
fn choose(said: Option<&str>, configured: Option<String>, variable: &str, default: &str) -> String {
    let other = || std::env::var(variable).ok().filter(|v| !v.is_empty());
    said.map(str::to_owned).or(configured).or_else(other).unwrap_or_else(|| default.to_owned())
}
