//! Settings of the operator.

use std::{collections::BTreeSet, time::Duration};

#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Clone, Debug)]
pub struct Settings {
    /// The operator's namespace, which contains `SeldonConfig`s and `ServerConfig`s.
    pub namespace: String,
    pub scope: Scope,
    /// Deployments instead of `StatefulSet`s for Servers.
    pub use_deployments: bool,
    /// The image of containers without one.
    pub image: String,
    /// Whether that image has a Kafka client.
    pub has_kafka_client: bool,
    /// Secrets that agents may read, by name; `*` is all of their namespace.
    pub agent_secrets: Vec<String>,
    /// Whether the operator issues the certificates of the control plane.
    pub issues_certificates: bool,
    /// Whether InferenceServices of KServe are reconciled. Off by default: KServe's own controller may be installed.
    pub inference_services: bool,
    /// Whether Algorithms are reconciled. Off by default: their CRD may be missing.
    pub algorithms: bool,
    /// Concurrent reconciliations of one controller.
    pub workers: usize,
    /// Timeout of one watch request.
    pub watch_timeout: Duration,
    /// Seed of the retry jitter.
    pub seed: u64,
}

/// Watched namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    Cluster,
    /// These, and always the operator's own.
    Namespaces(BTreeSet<String>),
}

impl Scope {
    /// Whether a namespace is listed explicitly.
    pub fn contains(&self, namespace: &str) -> bool {
        matches!(self, Self::Namespaces(names) if names.contains(namespace))
    }

    /// The scope that contains a namespace.
    pub const fn of<'a>(&self, namespace: &'a str) -> &'a str {
        match self {
            Self::Cluster => "",
            Self::Namespaces(_) => namespace,
        }
    }

    /// Scopes of the watches: namespaces, or `""` for the whole cluster.
    pub fn watched(&self, own: &str) -> BTreeSet<String> {
        match self {
            Self::Cluster => BTreeSet::from([String::new()]),
            Self::Namespaces(names) => {
                names.iter().cloned().chain((!own.is_empty()).then(|| own.to_owned())).collect()
            }
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            namespace: "seldon-mesh".into(),
            scope: Scope::Cluster,
            use_deployments: false,
            image: concat!("gantry:", env!("CARGO_PKG_VERSION")).into(),
            has_kafka_client: false,
            agent_secrets: Vec::new(),
            issues_certificates: false,
            inference_services: false,
            algorithms: false,
            workers: 16,
            watch_timeout: Duration::from_secs(290),
            seed: 1,
        }
    }
}
