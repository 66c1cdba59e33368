//! Typed custom resources of any group, namespaced or cluster-scoped.

use gantry_api::{
    AlgorithmSpec, AlgorithmStatus, ExperimentSpec, FieldError, KEEP_PAYLOADS, ModelSpec, ModelStatus,
    PipelineSpec, PlainStatus, RolloutPolicySpec, RolloutPolicyStatus, SeldonConfigSpec, SeldonRuntimeSpec,
    ServerConfigSpec, ServerSpec, ServerStatus,
    kserve::{
        ClusterStorageContainerSpec, InferenceGraphSpec, InferenceGraphStatus, InferenceServiceSpec,
        InferenceServiceStatus, ServingRuntimeSpec, TrainedModelSpec, TrainedModelStatus,
    },
    switch_errors,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client, core::DynamicResourceScope};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use std::{borrow::Cow, fmt};

/// A custom resource kind: its names, its scope, and the types of its spec and status.
pub trait CustomKind: Clone + fmt::Debug + Send + Sync + Sized + 'static {
    const GROUP: &'static str;
    const VERSION: &'static str;
    const KIND: &'static str;
    const PLURAL: &'static str;
    const SCOPE: ResourceScope = ResourceScope::Namespaced;
    type Spec: DeserializeOwned + Serialize + Clone + fmt::Debug + PartialEq + Send + Sync + 'static;
    type Status: DeserializeOwned
        + Serialize
        + Clone
        + fmt::Debug
        + Default
        + PartialEq
        + Send
        + Sync
        + 'static;

    /// Annotations that belong to the desired state, and are `true` or `false`.
    const SWITCHES: &'static [&'static str] = &[];

    /// Every rule that the spec of an object of this name violates.
    fn violations(_name: &str, _spec: &Self::Spec) -> Vec<FieldError> {
        Vec::new()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceScope {
    Namespaced,
    Cluster,
}

/// The identity of a custom kind as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindId {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub scope: ResourceScope,
}

impl KindId {
    pub const fn of<K: CustomKind>() -> Self {
        Self { group: K::GROUP, version: K::VERSION, kind: K::KIND, plural: K::PLURAL, scope: K::SCOPE }
    }

    /// `apiVersion` of a manifest.
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }
}

macro_rules! kinds {
    ($group:literal, $version:literal, $scope:ident:
        $($name:ident, $plural:literal, $spec:ty, $status:ty $(, $switch:expr)*;)*) => {$(
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl CustomKind for $name {
            const GROUP: &'static str = $group;
            const VERSION: &'static str = $version;
            const KIND: &'static str = stringify!($name);
            const PLURAL: &'static str = $plural;
            const SCOPE: ResourceScope = ResourceScope::$scope;
            type Spec = $spec;
            type Status = $status;
            const SWITCHES: &'static [&'static str] = &[$($switch),*];

            fn violations(name: &str, spec: &Self::Spec) -> Vec<FieldError> {
                spec.validate_named(name)
            }
        }
    )*};
}

kinds! { "mlops.seldon.io", "v1alpha1", Namespaced:
    Model, "models", ModelSpec, ModelStatus;
    Server, "servers", ServerSpec, ServerStatus;
    ServerConfig, "serverconfigs", ServerConfigSpec, PlainStatus;
    SeldonRuntime, "seldonruntimes", SeldonRuntimeSpec, PlainStatus;
    SeldonConfig, "seldonconfigs", SeldonConfigSpec, PlainStatus;
    Pipeline, "pipelines", PipelineSpec, PlainStatus, KEEP_PAYLOADS;
    Experiment, "experiments", ExperimentSpec, PlainStatus;
}

kinds! { "gantry.dev", "v1alpha1", Namespaced:
    RolloutPolicy, "rolloutpolicies", RolloutPolicySpec, RolloutPolicyStatus;
}

kinds! { "serving.kserve.io", "v1beta1", Namespaced:
    InferenceService, "inferenceservices", InferenceServiceSpec, InferenceServiceStatus;
}

kinds! { "serving.kserve.io", "v1alpha1", Namespaced:
    ServingRuntime, "servingruntimes", ServingRuntimeSpec, PlainStatus;
    InferenceGraph, "inferencegraphs", InferenceGraphSpec, InferenceGraphStatus;
    TrainedModel, "trainedmodels", TrainedModelSpec, TrainedModelStatus;
}

kinds! { "serving.kserve.io", "v1alpha1", Cluster:
    ClusterServingRuntime, "clusterservingruntimes", ServingRuntimeSpec, PlainStatus;
    ClusterStorageContainer, "clusterstoragecontainers", ClusterStorageContainerSpec, PlainStatus;
}

kinds! { "ai.alien6.io", "v1", Namespaced:
    Algorithm, "algorithms", AlgorithmSpec, AlgorithmStatus;
}

/// A custom resource. An undecodable spec is an error in its place, so that one object cannot break the watch.
#[derive(Clone, Debug)]
pub struct Custom<K: CustomKind> {
    pub metadata: ObjectMeta,
    pub spec: Result<K::Spec, String>,
    pub status: Option<K::Status>,
    /// The field `disabled` beside the spec, which a `ClusterStorageContainer` has.
    pub is_disabled: bool,
}

impl<K: CustomKind> Custom<K> {
    pub fn key(&self) -> Key {
        Key::of(&self.metadata)
    }

    /// Empty only before the object is created.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    pub fn generation(&self) -> i64 {
        self.metadata.generation.unwrap_or_default()
    }

    /// Whether it is being deleted and waits for its finalizers.
    pub const fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    pub fn has_finalizer(&self, name: &str) -> bool {
        self.metadata.finalizers.iter().flatten().any(|f| f == name)
    }

    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(name).map(String::as_str)
    }

    /// Every rule that the object violates.
    pub fn violations(&self, spec: &K::Spec) -> Vec<FieldError> {
        let mut violations = match self.metadata.name.as_deref() {
            // The API server generates the name later.
            None | Some("") => Vec::new(),
            Some(name) => K::violations(name, spec),
        };
        let annotations = self.metadata.annotations.as_ref();
        violations.extend(annotations.map(|a| switch_errors(a, K::SWITCHES)).unwrap_or_default());
        violations
    }

    /// The API of one namespace; of the cluster for "", and for cluster-scoped kinds.
    pub(crate) fn api(client: Client, namespace: &str) -> Api<Self> {
        if namespace.is_empty() || K::SCOPE == ResourceScope::Cluster {
            Api::all(client)
        } else {
            Api::namespaced_with(client, namespace, &())
        }
    }
}

impl<K: CustomKind> kube::Resource for Custom<K> {
    type DynamicType = ();
    type Scope = DynamicResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        K::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        K::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        K::VERSION.into()
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
    #[serde(default)]
    disabled: Option<bool>,
}

impl<'de, K: CustomKind> Deserialize<'de> for Custom<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Raw::deserialize(deserializer)?;
        Ok(Self {
            metadata: raw.metadata,
            spec: serde_json::from_value(raw.spec).map_err(|e| e.to_string()),
            // An undecodable status is replaced by the next write.
            status: serde_json::from_value(raw.status).ok(),
            is_disabled: raw.disabled == Some(true),
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
            api_version: KindId::of::<K>().api_version(),
            kind: K::KIND,
            metadata: &self.metadata,
            spec: self.spec.as_ref().ok(),
            status: self.status.as_ref(),
        }
        .serialize(serializer)
    }
}

/// Namespace and name; the namespace of cluster-scoped objects is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    pub fn of(metadata: &ObjectMeta) -> Self {
        Self::new(metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}
