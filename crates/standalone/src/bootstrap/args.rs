//! Flags that several roles share.

use crate::error::CommandError;
use gantry_agent::{Artifacts, SecretStore, Secrets, Source};
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
    /// An artifact source with its cache in the state directory. With `local_roots`, local sources must be below one of
    /// them and downloads from loopback are denied; without, this machine is trusted.
    /// `namespace` has the Secrets of a Kubernetes namespace.
    pub fn source(
        &self,
        state_dir: &Path,
        local_roots: Option<Vec<PathBuf>>,
        namespace: Option<Arc<dyn SecretStore>>,
    ) -> Result<Arc<dyn Source>, CommandError> {
        let mut config = Config::new(state_dir.join("artifacts"));
        config.cache_limit = self.cache_limit;
        config.allow.clone_from(&self.allow_net);
        config.allow_loopback = local_roots.is_none();
        config.local_roots = local_roots;
        config.secret_paths.extend(self.secrets_dir.clone());
        let fetcher = Fetcher::new(config).map_err(|e| CommandError::failed(e.to_string()))?;
        Ok(Arc::new(Artifacts {
            fetcher,
            secrets: Secrets { directory: self.secrets_dir.clone(), namespace },
        }))
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

/// Parses an amount of memory as in manifests: `512Mi`, or a number of bytes.
pub(crate) fn memory(text: &str) -> Result<u64, String> {
    gantry_api::Quantity::parse(text).map(|amount| amount.bytes())
}

#[derive(Clone, Debug, clap::Args)]
pub struct MemoryArgs {
    /// Memory budget of request bodies and responses, in bytes; a connection may use a quarter of it. Requests beyond it
    /// get 503. [default: a quarter of the machine's or container's memory, at least 256 MiB]
    #[arg(long, value_name = "BYTES", value_parser = memory)]
    pub max_memory: Option<u64>,
}

impl MemoryArgs {
    pub fn bytes(&self) -> usize {
        let bytes = self.max_memory.unwrap_or_else(super::paths::default_request_memory);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::scheduler::ModelSpec;

    #[tokio::test]
    async fn agent_source_denies_loopback_unlisted_paths_and_secrets() {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [("roots/m/model", "m"), ("other/model", "m"), ("roots/secrets/s3", "key")] {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let own = format!("http://{}/terminate", listener.local_addr().unwrap());
        let at = |path: &str| dir.path().join(path).display().to_string();
        let args = ArtifactArgs {
            secrets_dir: Some(dir.path().join("roots/secrets")),
            allow_net: Vec::new(),
            cache_limit: 1 << 20,
        };
        let source =
            args.source(&dir.path().join("state"), Some(vec![dir.path().join("roots")]), None).unwrap();
        let fetch = async |uri: String| {
            let spec = ModelSpec { uri, ..ModelSpec::default() };
            source.fetch(&spec, &gantry_artifacts::Silent).await.map(drop)
        };
        fetch(at("roots/m")).await.unwrap();
        for (uri, expected) in [
            (own, "loopback"),
            (at("other"), "--local-root"),
            (at("roots/m/../../other"), "--local-root"),
            (at("roots/secrets"), "credentials"),
            (at("roots"), "credentials"),
        ] {
            let error = fetch(uri.clone()).await.expect_err(&uri).to_string();
            assert!(error.contains(expected), "{uri}: {error}");
        }
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "the port was not connected to");
    }

    #[test]
    fn memory_is_an_amount_as_in_manifests() {
        assert_eq!((memory("512Mi"), memory("1000")), (Ok(512 << 20), Ok(1000)));
        assert!(memory("lots").unwrap_err().contains("512Mi"));
    }
}
