//! From a model's definition to its files.

use gantry_artifacts::{Fetched, Fetcher, ProgressSink, Request, Secret, Uri};
use gantry_proto::scheduler::{ModelSpec, storage_config::Config};
use std::path::PathBuf;

/// The parameter by which whoever asks for a model tells one content of its source from the next.
pub const CONTENT: &str = "gantry.content";

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

/// Brings a model's files to this machine.
pub(crate) async fn fetch(
    fetcher: &Fetcher,
    secrets: &Secrets,
    spec: &ModelSpec,
    progress: &dyn ProgressSink,
) -> Result<Fetched, String> {
    let uri = Uri::parse(&spec.uri).map_err(|e| format!("storageUri: {e}"))?;
    let secret = match spec.storage_config.as_ref().and_then(|c| c.config.as_ref()) {
        None => None,
        Some(Config::StorageSecretName(name)) => Some(secrets.read(name).await?),
        Some(Config::StorageRcloneConfig(text)) => {
            Some(Secret::parse(text).map_err(|e| format!("storageRcloneConfig: {e}"))?)
        }
    };
    // A version stays what it was, also when its source is edited and this process starts again.
    let pin = spec.parameters.iter().find(|p| p.name == CONTENT).map(|p| p.value.clone());
    let request = Request { uri, artifact_version: spec.artifact_version, secret, pin };
    fetcher.fetch(&request, progress).await.map_err(|e| e.to_string())
}
