//! What the operator is told.

use std::{collections::BTreeSet, time::Duration};

/// Where and how the operator works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its own namespace: `SeldonConfig`s and `ServerConfig`s are looked up there.
    pub namespace: String,
    /// Where it looks for objects.
    pub scope: Scope,
    /// Whether Servers become Deployments instead of `StatefulSet`s.
    pub use_deployments: bool,
    /// The image of Gantry's own components, where a configuration names none.
    pub image: String,
    /// Objects that one controller looks at at a time.
    pub workers: usize,
    /// How long a connection to the API server may be silent before it counts as lost.
    pub watch_time: Duration,
    /// Spreads retries; any number.
    pub seed: u64,
}

/// Namespaces in which objects are looked after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of them.
    Cluster,
    /// These; its own is always among them.
    Namespaces(BTreeSet<String>),
}

impl Scope {
    /// Whether a namespace was named, and not only meant by "all".
    pub fn names(&self, namespace: &str) -> bool {
        matches!(self, Self::Namespaces(names) if names.contains(namespace))
    }

    /// The scopes of watches: a namespace each, or `""` for one over all.
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
            workers: 16,
            watch_time: Duration::from_secs(290),
            seed: 1,
        }
    }
}
