//! From a model's definition to its files.

use futures::future::BoxFuture;
use gantry_artifacts::{Fetched, Fetcher, ProgressSink, Request, Secret, Uri};
use gantry_proto::scheduler::{ModelSpec, storage_config::Config};
use std::{any::Any, path::PathBuf, sync::Arc};

/// The parameter by which whoever asks for a model tells one content of its source from the next.
pub const CONTENT: &str = "gantry.content";

/// A model's files on this machine.
#[derive(Clone)]
pub struct Files {
    /// The directory with everything that belongs to the model.
    pub root: PathBuf,
    /// The directory with the model itself: the version folder below `root` if there is one, else `root`.
    pub model_dir: PathBuf,
    /// The files stay for as long as this is held.
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

/// Where models' files come from. An error is a sentence for the person who asked for the model.
pub trait Source: Send + Sync + 'static {
    /// Brings a model's files to this machine.
    fn fetch<'a>(
        &'a self,
        spec: &'a ModelSpec,
        progress: &'a dyn ProgressSink,
    ) -> BoxFuture<'a, Result<Files, String>>;
}

/// What `storageUri` can name, and the credentials for it.
#[derive(Debug)]
pub struct Artifacts {
    /// Fetches and caches.
    pub fetcher: Fetcher,
    /// Credentials by name.
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
            // A version stays what it was, also when its source is edited and this process starts again.
            let pin = spec.parameters.iter().find(|p| p.name == CONTENT).map(|p| p.value.clone());
            let request = Request { uri, artifact_version: spec.artifact_version, secret, pin };
            self.fetcher.fetch(&request, progress).await.map(Files::from).map_err(|e| e.to_string())
        })
    }
}

/// Where the credentials are that `secretName` stands for.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// A directory with a file for each secret, named as the secret is; `None` when there are none.
    pub directory: Option<PathBuf>,
}

impl Secrets {
    async fn read(&self, name: &str) -> Result<Secret, String> {
        let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
        if !plain {
            return Err(format!("secretName \"{}\" is not a secret's name", name.escape_debug()));
        }
        let Some(directory) = &self.directory else {
            return Err(format!(
                "secret {name} is wanted, but there is no directory of secrets: set --secrets-dir"
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
