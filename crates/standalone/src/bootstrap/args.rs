//! Flags that several roles share.

use crate::error::CommandError;
use gantry_agent::{Artifacts, Secrets, Source};
use gantry_artifacts::{Config, Fetcher, NetRule};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

#[derive(Clone, Debug, clap::Args)]
pub struct ArtifactArgs {
    /// Directory with a file for each secret that a Model may name in secretName.
    #[arg(long, env = "GANTRY_SECRETS_DIR", value_name = "DIR")]
    pub secrets_dir: Option<PathBuf>,

    /// Private network (CIDR) or host that artifacts may be fetched from; repeatable.
    #[arg(long, value_name = "NETWORK")]
    pub allow_net: Vec<NetRule>,

    /// Size limit of the artifact cache, in bytes.
    #[arg(long, default_value_t = 20 << 30, value_name = "BYTES")]
    pub cache_limit: u64,
}

impl ArtifactArgs {
    /// An artifact source with its cache in the state directory.
    pub fn source(&self, state_dir: &Path) -> Result<Arc<dyn Source>, CommandError> {
        let mut config = Config::new(state_dir.join("artifacts"));
        config.cache_limit = self.cache_limit;
        config.allow.clone_from(&self.allow_net);
        config.allow_loopback = true;
        let fetcher = Fetcher::new(config).map_err(|e| CommandError::failed(e.to_string()))?;
        Ok(Arc::new(Artifacts { fetcher, secrets: Secrets { directory: self.secrets_dir.clone() } }))
    }
}

#[derive(Clone, Debug, clap::Args)]
pub struct RequestArgs {
    /// Size limit of a request body, in bytes.
    #[arg(long, default_value_t = 64 << 20, value_name = "BYTES")]
    pub max_body: usize,

    /// Request timeout in seconds; on an agent it includes loading the model into memory.
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub request_timeout: u64,

    /// Limit of in-flight requests; a gateway rejects more with 503, an agent with 429.
    #[arg(long, default_value_t = 4096, value_name = "N")]
    pub max_in_flight: usize,
}
