//! The kinds that the server knows, with what the API server knows about each.

use super::{
    shape::Shape,
    shapes::{self, METADATA},
    structural::Schema,
};
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc};

/// How a kind's objects are counted by `metadata.generation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// The kind has none.
    None,
    /// A change of `spec` counts.
    Spec,
    /// A change of anything but metadata and status counts (custom resources).
    Content,
}

/// Where a scale subresource finds its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale {
    /// JSON pointer to the wanted replicas.
    pub spec: String,
    /// JSON pointer to the observed replicas.
    pub status: String,
    /// JSON pointer to the selector: a text, or a label selector.
    pub selector: Option<String>,
}

/// A kind.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "facts about a kind: none follows from another")]
pub struct Kind {
    /// Empty for the core group.
    pub group: String,
    /// Such as `v1`.
    pub version: String,
    /// As in URLs.
    pub plural: String,
    /// As in objects.
    pub kind: String,
    /// Whether its objects live in a namespace.
    pub namespaced: bool,
    /// Whether `/status` is an endpoint of its own.
    pub status: bool,
    /// Whether `/scale` is there, and what it reads and writes.
    pub scale: Option<Scale>,
    /// What counts as a new generation.
    pub generation: Generation,
    /// Whether an update may leave the resource version out.
    pub unconditional_update: bool,
    /// Whether a delete answers with the object instead of a `Status`.
    pub returns_deleted: bool,
    /// How its objects merge.
    pub shape: Shape,
    /// The schema of a custom resource; built-in kinds have their own rules.
    pub schema: Option<Schema>,
    /// Whether it was defined by a `CustomResourceDefinition`.
    pub custom: bool,
}

impl Kind {
    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Name that is its own in the registry: `deployments.apps`, `pods`.
    pub fn id(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }
}

/// All kinds.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    kinds: BTreeMap<String, Arc<Kind>>,
}

/// Capabilities in the table below.
mod has {
    pub(super) const STATUS: u8 = 1;
    pub(super) const SCALE: u8 = 2;
    pub(super) const GENERATION: u8 = 4;
    /// The delete answers with the object.
    pub(super) const RETURNS: u8 = 8;
    /// An update must name a resource version.
    pub(super) const CONDITIONAL: u8 = 16;
    pub(super) const CLUSTER: u8 = 32;
}

/// group, version, plural, kind, capabilities
const BUILT_IN: &[(&str, &str, &str, &str, u8)] = &[
    ("", "v1", "namespaces", "Namespace", has::STATUS | has::CLUSTER),
    ("", "v1", "nodes", "Node", has::STATUS | has::CLUSTER),
    ("", "v1", "configmaps", "ConfigMap", 0),
    ("", "v1", "secrets", "Secret", 0),
    ("", "v1", "services", "Service", has::STATUS | has::RETURNS),
    ("", "v1", "serviceaccounts", "ServiceAccount", has::RETURNS),
    ("", "v1", "pods", "Pod", has::STATUS | has::GENERATION | has::RETURNS),
    ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", has::STATUS | has::RETURNS),
    ("", "v1", "events", "Event", 0),
    ("apps", "v1", "statefulsets", "StatefulSet", has::STATUS | has::SCALE | has::GENERATION),
    ("apps", "v1", "deployments", "Deployment", has::STATUS | has::SCALE | has::GENERATION),
    ("apps", "v1", "replicasets", "ReplicaSet", has::STATUS | has::SCALE | has::GENERATION),
    ("apps", "v1", "controllerrevisions", "ControllerRevision", 0),
    (
        "policy",
        "v1",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        has::STATUS | has::GENERATION | has::CONDITIONAL,
    ),
    ("rbac.authorization.k8s.io", "v1", "roles", "Role", 0),
    ("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", 0),
    ("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", has::CLUSTER),
    ("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", has::CLUSTER),
    ("coordination.k8s.io", "v1", "leases", "Lease", has::CONDITIONAL),
    ("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", has::STATUS),
    ("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", has::GENERATION),
    ("events.k8s.io", "v1", "events", "Event", 0),
    (
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        has::STATUS | has::GENERATION | has::CLUSTER | has::CONDITIONAL,
    ),
];

impl Registry {
    /// The built-in kinds.
    pub fn built_in() -> Self {
        let mut registry = Self::default();
        for (group, version, plural, kind, capabilities) in BUILT_IN {
            let can = |capability: u8| capabilities & capability != 0;
            let scale = || Scale {
                spec: "/spec/replicas".into(),
                status: "/status/replicas".into(),
                selector: Some("/spec/selector".into()),
            };
            registry.add(Kind {
                group: (*group).into(),
                version: (*version).into(),
                plural: (*plural).into(),
                kind: (*kind).into(),
                namespaced: !can(has::CLUSTER),
                status: can(has::STATUS),
                scale: can(has::SCALE).then(scale),
                generation: if can(has::GENERATION) { Generation::Spec } else { Generation::None },
                unconditional_update: !can(has::CONDITIONAL),
                returns_deleted: can(has::RETURNS),
                shape: shapes::built_in(group, kind),
                schema: None,
                custom: false,
            });
        }
        registry
    }

    /// The built-in kinds and the seven of Gantry, from the definitions that are installed on real clusters.
    pub fn with_gantry() -> Result<Self, String> {
        let mut registry = Self::built_in();
        for resource in gantry_api::resources() {
            registry.add_crd(&gantry_api::crd(&resource))?;
        }
        Ok(registry)
    }

    /// Adds or replaces a kind.
    pub fn add(&mut self, kind: Kind) {
        self.kinds.insert(kind.id(), Arc::new(kind));
    }

    /// Adds the kind that a `CustomResourceDefinition` defines, in its storage version.
    ///
    /// Fails with a sentence that names the field when the definition lacks one.
    pub fn add_crd(&mut self, crd: &Value) -> Result<(), String> {
        let text = |pointer: &str| {
            let value = crd.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
            value.ok_or_else(|| format!("{pointer} of the CustomResourceDefinition must be a text"))
        };
        let versions = crd.pointer("/spec/versions").and_then(Value::as_array);
        let stored = |version: &&Value| version.get("storage").and_then(Value::as_bool).unwrap_or(false);
        let version = versions.into_iter().flatten().find(stored);
        let version = version.ok_or("/spec/versions has no version with storage: true; mark one")?;
        let name = version.get("name").and_then(Value::as_str).ok_or("/spec/versions needs names")?;
        let schema =
            version.pointer("/schema/openAPIV3Schema").cloned().unwrap_or_else(|| serde_json::json!({}));
        let pointer = |path: &str| {
            let path = version.pointer(&format!("/subresources/scale/{path}")).and_then(Value::as_str)?;
            Some(path.replace('.', "/"))
        };
        let scale = pointer("specReplicasPath").zip(pointer("statusReplicasPath"));
        let shape = Shape::from_schema(&schema).graft("metadata", &Shape::default().with_all(METADATA));
        self.add(Kind {
            group: text("/spec/group")?,
            version: name.into(),
            plural: text("/spec/names/plural")?,
            kind: text("/spec/names/kind")?,
            namespaced: text("/spec/scope")? == "Namespaced",
            status: version.pointer("/subresources/status").is_some(),
            scale: scale.map(|(spec, status)| Scale { spec, status, selector: pointer("labelSelectorPath") }),
            generation: Generation::Content,
            unconditional_update: false,
            returns_deleted: false,
            shape,
            schema: Some(Schema::new(schema)),
            custom: true,
        });
        Ok(())
    }

    /// A custom kind without a schema: everything is kept as it is written.
    pub fn add_custom(&mut self, group: &str, version: &str, plural: &str, kind: &str, namespaced: bool) {
        let free = Shape::free();
        let shape = Shape::default()
            .graft("spec", &free)
            .graft("status", &free)
            .graft("metadata", &Shape::default().with_all(METADATA));
        self.add(Kind {
            group: group.into(),
            version: version.into(),
            plural: plural.into(),
            kind: kind.into(),
            namespaced,
            status: true,
            scale: None,
            generation: Generation::Content,
            unconditional_update: false,
            returns_deleted: false,
            shape,
            schema: None,
            custom: true,
        });
    }

    /// By what a URL says.
    pub fn by_plural(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        let id = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        self.kinds.get(&id).filter(|kind| kind.version == version).cloned()
    }

    /// By its [`Kind::id`].
    pub fn by_id(&self, id: &str) -> Option<Arc<Kind>> {
        self.kinds.get(id).cloned()
    }

    /// By what an object says of itself.
    pub fn by_object(&self, api_version: &str, kind: &str) -> Option<Arc<Kind>> {
        self.iter().find(|known| known.kind == kind && known.api_version() == api_version).cloned()
    }

    /// Every kind, in the order of its name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.kinds.values()
    }
}
