//! Kubernetes client configuration.

use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use std::path::Path;

/// Configuration from a file, else KUBECONFIG, else the pod's service account. Sends nothing.
pub(crate) async fn read(file: Option<&Path>) -> Result<Config, String> {
    let Some(file) = file else { return Config::infer().await.map_err(|e| e.to_string()) };
    let kubeconfig = Kubeconfig::read_from(file).map_err(|e| e.to_string())?;
    let options = KubeConfigOptions::default();
    Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|e| e.to_string())
}
