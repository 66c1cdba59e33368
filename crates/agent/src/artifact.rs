//! Resolves a model definition to local files.

use futures::future::BoxFuture;
use gantry_artifacts::{Fetched, Fetcher, ProgressSink, Request, Secret, Uri};
use gantry_proto::scheduler::{ModelSpec, storage_config::Config};
use std::{any::Any, path::PathBuf, sync::Arc};

/// Parameter that identifies the content of a mutable source, such as a local directory.
pub const CONTENT_PARAMETER: &str = "gantry.content";

#[derive(Clone)]
pub struct Files {
    pub root: PathBuf,
    /// The version folder below `root` if there is one, else `root`.
    pub model_dir: PathBuf,
    /// The cache keeps the files while this is loaded.
    pub lease: Option<Arc<dyn Any + Send + Sync>>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files")
            .field("root", &self.root)
            .field("model_dir", &self.model_dir)
            .finish_non_exhaustive()
    }
}

impl From<Fetched> for Files {
    fn from(fetched: Fetched) -> Self {
        let model_dir = fetched.model_dir();
        Self { model_dir, root: fetched.path, lease: Some(fetched.lease) }
    }
}

/// Errors become the model's status reason.
pub trait Source: Send + Sync + 'static {
    fn fetch<'a>(
        &'a self,
        spec: &'a ModelSpec,
        progress: &'a dyn ProgressSink,
    ) -> BoxFuture<'a, Result<Files, String>>;
}

/// Fetches `storageUri` with the configured credentials.
#[derive(Debug)]
pub struct Artifacts {
    pub fetcher: Fetcher,
    pub secrets: Secrets,
}

impl Source for Artifacts {
    fn fetch<'a>(
        &'a self,
        spec: &'a ModelSpec,
        progress: &'a dyn ProgressSink,
    ) -> BoxFuture<'a, Result<Files, String>> {
        Box::pin(async {
            let uri = Uri::parse(&spec.uri).map_err(|e| format!("storageUri: {e}"))?;
            let secret = match spec.storage_config.as_ref().and_then(|c| c.config.as_ref()) {
                None => None,
                Some(Config::StorageSecretName(name)) => Some(self.secrets.read(name).await?),
                Some(Config::StorageRcloneConfig(text)) => {
                    Some(Secret::parse(text).map_err(|e| format!("storageRcloneConfig: {e}"))?)
                }
            };
            // Pinned: a version keeps its content when its source is edited, also across restarts.
            let pin = spec.parameters.iter().find(|p| p.name == CONTENT_PARAMETER).map(|p| p.value.clone());
            let request = Request { uri, artifact_version: spec.artifact_version, secret, pin };
            self.fetcher.fetch(&request, progress).await.map(Files::from).map_err(|e| e.to_string())
        })
    }
}

/// Credentials referenced by `secretName`.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// One file per secret, named after it.
    pub directory: Option<PathBuf>,
}

impl Secrets {
    async fn read(&self, name: &str) -> Result<Secret, String> {
        let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
        if !plain {
            return Err(format!("secretName \"{}\" is not a valid secret name", name.escape_debug()));
        }
        let Some(directory) = &self.directory else {
            return Err(format!(
                "secret {name} is required, but no secrets directory is configured: set --secrets-dir"
            ));
        };
        for file in [
            directory.join(name),
            directory.join(format!("{name}.yaml")),
            directory.join(format!("{name}.json")),
        ] {
            match tokio::fs::read_to_string(&file).await {
                Ok(text) => return Secret::parse(&text).map_err(|e| format!("secret {name}: {e}")),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(format!("secret {name} cannot be read: {e}")),
            }
        }
        Err(format!("secret {name} is not in {}", directory.display()))
    }
}
