//! Resolves a model definition to local files.

use crate::model_server::LoadError;
use futures::future::BoxFuture;
use gantry_artifacts::{ErrorKind, FetchError, Fetched, Fetcher, ProgressSink, Request, Secret, Uri};
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

pub trait Source: Send + Sync + 'static {
    fn fetch<'a>(
        &'a self,
        spec: &'a ModelSpec,
        progress: &'a dyn ProgressSink,
    ) -> BoxFuture<'a, Result<Files, LoadError>>;
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
    ) -> BoxFuture<'a, Result<Files, LoadError>> {
        Box::pin(async {
            let uri = Uri::parse(&spec.uri).map_err(|e| LoadError::permanent(format!("storageUri: {e}")))?;
            let secret = match spec.storage_config.as_ref().and_then(|c| c.config.as_ref()) {
                None => None,
                Some(Config::StorageSecretName(name)) => Some(self.secrets.read(name).await?),
                Some(Config::StorageRcloneConfig(text)) => {
                    let invalid = |e| LoadError::permanent(format!("storageRcloneConfig: {e}"));
                    Some(Secret::parse(text).map_err(invalid)?)
                }
            };
            // Pinned: a version keeps its content when its source is edited, also across restarts.
            let pin = spec.parameters.iter().rfind(|p| p.name == CONTENT_PARAMETER).map(|p| p.value.clone());
            let request =
                Request { artifact_version: spec.artifact_version, secret, pin, ..Request::new(uri) };
            self.fetcher.fetch(&request, progress).await.map(Files::from).map_err(LoadError::from)
        })
    }
}

impl From<FetchError> for LoadError {
    fn from(error: FetchError) -> Self {
        Self { message: error.to_string(), permanent: error.kind() != ErrorKind::Transient }
    }
}

/// Secrets of a Kubernetes namespace.
pub trait SecretStore: std::fmt::Debug + Send + Sync + 'static {
    /// The manifest of a Secret, or why it cannot be read.
    fn read<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<String, String>>;
}

/// Credentials referenced by `secretName`.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// One file per secret, named after it.
    pub directory: Option<PathBuf>,
    /// Read for names without a file.
    pub namespace: Option<Arc<dyn SecretStore>>,
}

impl Secrets {
    async fn read(&self, name: &str) -> Result<Secret, LoadError> {
        let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
        if !plain {
            return Err(LoadError::permanent(format!(
                "secretName \"{}\" is not a valid secret name",
                name.escape_debug()
            )));
        }
        // A secret may be added or changed at any time: none of these failures lasts.
        let parse =
            |text: &str| Secret::parse(text).map_err(|e| LoadError::transient(format!("secret {name}: {e}")));
        for suffix in ["", ".yaml", ".json"] {
            let Some(directory) = &self.directory else { break };
            match tokio::fs::read_to_string(directory.join(format!("{name}{suffix}"))).await {
                Ok(text) => return parse(&text),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(LoadError::transient(format!("secret {name} cannot be read: {e}"))),
            }
        }
        match (&self.namespace, &self.directory) {
            (Some(namespace), _) => parse(&namespace.read(name).await.map_err(LoadError::transient)?),
            (None, Some(directory)) => Err(LoadError::transient(format!(
                "secret {name} is not in {}: add a file of that name (on Kubernetes, a key of the Secret \
                 gantry-storage), or let agents read Secrets of their namespace with gantry install --agent-secrets \
                 (rbac.agentSecrets of the chart)",
                directory.display()
            ))),
            (None, None) => Err(LoadError::permanent(format!(
                "secret {name} is required, but no secrets directory is configured: set --secrets-dir"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A namespace with the Secret `minio`, as Seldon stores it.
    #[derive(Debug)]
    struct Namespace;

    impl SecretStore for Namespace {
        fn read<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<String, String>> {
            let remote = "type: s3\\nname: minio\\nparameters: {access_key_id: a, secret_access_key: b}";
            let manifest = format!("{{\"kind\": \"Secret\", \"stringData\": {{\"s3\": \"{remote}\"}}}}");
            let found = if name == "minio" { Ok(manifest) } else { Err(format!("no {name}")) };
            Box::pin(async { found })
        }
    }

    #[tokio::test]
    async fn secret_without_a_file_is_read_from_the_namespace() {
        let directory = tempfile::tempdir().unwrap();
        let file = "type: s3\nname: from-file\nparameters: {access_key_id: a}\n";
        std::fs::write(directory.path().join("shared"), file).unwrap();
        for directory in [Some(directory.path().to_owned()), None] {
            let has_file = directory.is_some();
            let secrets = Secrets { directory, namespace: Some(Arc::new(Namespace)) };
            assert_eq!(secrets.read("minio").await.unwrap().name(), Some("minio"));
            assert_eq!(secrets.read("absent").await.unwrap_err().message, "no absent");
            let shared = secrets.read("shared").await;
            assert_eq!(shared.is_ok_and(|s| s.name() == Some("from-file")), has_file);
        }
    }
}
