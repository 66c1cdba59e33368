//! Objects of our own kinds, as the API server has them.

use gantry_api::{
    ExperimentSpec, ModelSpec, ModelStatus, PipelineSpec, PlainStatus, SeldonConfigSpec, SeldonRuntimeSpec,
    ServerConfigSpec, ServerSpec, ServerStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::NamespaceResourceScope;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use std::{borrow::Cow, fmt};

/// The group of the kinds.
pub const GROUP: &str = "mlops.seldon.io";
/// Their version.
pub const VERSION: &str = "v1alpha1";

/// A kind of the group: its words, and what its objects say.
pub trait CustomKind: Clone + fmt::Debug + Send + Sync + Sized + 'static {
    /// As it stands in a manifest.
    const KIND: &'static str;
    /// As it stands in a path.
    const PLURAL: &'static str;
    /// What is asked.
    type Spec: DeserializeOwned + Serialize + Clone + fmt::Debug + PartialEq + Send + Sync + 'static;
    /// What is reported.
    type Status: DeserializeOwned
        + Serialize
        + Clone
        + fmt::Debug
        + Default
        + PartialEq
        + Send
        + Sync
        + 'static;
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident, $plural:literal, $spec:ty, $status:ty;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl CustomKind for $name {
            const KIND: &'static str = stringify!($name);
            const PLURAL: &'static str = $plural;
            type Spec = $spec;
            type Status = $status;
        }
    )*};
}

kinds! {
    /// An artifact to be served.
    Model, "models", ModelSpec, ModelStatus;
    /// Replicas that models are loaded onto.
    Server, "servers", ServerSpec, ServerStatus;
    /// What a kind of server is made of.
    ServerConfig, "serverconfigs", ServerConfigSpec, PlainStatus;
    /// The components of one namespace.
    SeldonRuntime, "seldonruntimes", SeldonRuntimeSpec, PlainStatus;
    /// What components are made of.
    SeldonConfig, "seldonconfigs", SeldonConfigSpec, PlainStatus;
    /// Models in a row.
    Pipeline, "pipelines", PipelineSpec, PlainStatus;
    /// Traffic shared between models.
    Experiment, "experiments", ExperimentSpec, PlainStatus;
}

/// An object of a kind. What cannot be read is an error in the place of the spec, not a watch that ends.
#[derive(Clone, Debug)]
pub struct Custom<K: CustomKind> {
    /// Name, generation, finalizers, owners.
    pub metadata: ObjectMeta,
    /// What is asked, or why it cannot be read.
    pub spec: Result<K::Spec, String>,
    /// What was reported last.
    pub status: Option<K::Status>,
}

impl<K: CustomKind> Custom<K> {
    /// Its namespace and name.
    pub fn key(&self) -> Key {
        Key::of(&self.metadata)
    }

    /// Its identity; empty only on an object that no API server has seen.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Grows with each change of the spec.
    pub fn generation(&self) -> i64 {
        self.metadata.generation.unwrap_or_default()
    }

    /// Whether somebody deleted it and it only waits for its finalizers.
    pub const fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether a finalizer holds it.
    pub fn has_finalizer(&self, name: &str) -> bool {
        self.metadata.finalizers.iter().flatten().any(|f| f == name)
    }
}

impl<K: CustomKind> kube::Resource for Custom<K> {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        K::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: serde_json::Value,
    #[serde(default)]
    status: serde_json::Value,
}

impl<'de, K: CustomKind> Deserialize<'de> for Custom<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Raw::deserialize(deserializer)?;
        Ok(Self {
            metadata: raw.metadata,
            spec: serde_json::from_value(raw.spec).map_err(|e| e.to_string()),
            // A status that cannot be read is written anew.
            status: serde_json::from_value(raw.status).ok(),
        })
    }
}

impl<K: CustomKind> Serialize for Custom<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Whole<'a, A, B> {
            api_version: String,
            kind: &'static str,
            metadata: &'a ObjectMeta,
            spec: Option<&'a A>,
            #[serde(skip_serializing_if = "Option::is_none")]
            status: Option<&'a B>,
        }
        Whole {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: K::KIND,
            metadata: &self.metadata,
            spec: self.spec.as_ref().ok(),
            status: self.status.as_ref(),
        }
        .serialize(serializer)
    }
}

/// Where an object is: namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The namespace.
    pub namespace: String,
    /// The name in it.
    pub name: String,
}

impl Key {
    /// From its two words.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Of an object.
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self::new(metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
