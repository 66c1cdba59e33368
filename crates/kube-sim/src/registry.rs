//! The registered kinds and their properties.

use super::{
    builtin_merge_schemas::{self, METADATA},
    merge_schema::MergeSchema,
    structural::Schema,
};
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc};

/// What increments `metadata.generation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    None,
    Spec,
    /// Any change outside metadata and status (custom resources).
    Content,
}

/// JSON pointers of a scale subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale {
    pub spec: String,
    pub status: String,
    /// A string or a label selector.
    pub selector: Option<String>,
}

#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent properties")]
pub struct Kind {
    /// Empty for the core group.
    pub group: String,
    /// Such as `v1`.
    pub version: String,
    pub plural: String,
    pub kind: String,
    pub namespaced: bool,
    pub status: bool,
    pub scale: Option<Scale>,
    pub generation: Generation,
    /// Whether an update may omit the resource version.
    pub unconditional_update: bool,
    /// Whether a delete returns the object instead of a `Status`.
    pub returns_deleted: bool,
    pub merge_schema: MergeSchema,
    /// Of a custom resource.
    pub schema: Option<Schema>,
    pub custom: bool,
}

impl Kind {
    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Unique name: `deployments.apps`, `pods`.
    pub fn id(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Registry {
    kinds: BTreeMap<String, Arc<Kind>>,
}

mod has {
    pub(super) const STATUS: u8 = 1;
    pub(super) const SCALE: u8 = 2;
    pub(super) const GENERATION: u8 = 4;
    /// A delete returns the object.
    pub(super) const RETURNS: u8 = 8;
    /// An update needs a resource version.
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
    ("networking.k8s.io", "v1", "ingresses", "Ingress", has::STATUS | has::GENERATION),
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
                merge_schema: builtin_merge_schemas::built_in(group, kind),
                schema: None,
                custom: false,
            });
        }
        registry
    }

    /// The built-in kinds and Gantry's CRDs.
    pub fn with_gantry() -> Result<Self, String> {
        let mut registry = Self::built_in();
        for resource in gantry_api::resources() {
            registry.add_crd(&gantry_api::crd(&resource))?;
        }
        Ok(registry)
    }

    pub fn add(&mut self, kind: Kind) {
        self.kinds.insert(kind.id(), Arc::new(kind));
    }

    /// Adds the kind of a CRD, in its storage version.
    ///
    /// Fails when a required field is missing.
    pub fn add_crd(&mut self, crd: &Value) -> Result<(), String> {
        let text = |pointer: &str| {
            let value = crd.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
            value.ok_or_else(|| format!("{pointer} of the CustomResourceDefinition must be a string"))
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
        let merge_schema =
            MergeSchema::from_schema(&schema).graft("metadata", &MergeSchema::default().with_all(METADATA));
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
            merge_schema,
            schema: Some(Schema::new(schema)),
            custom: true,
        });
        Ok(())
    }

    /// A custom resource without a schema: no pruning.
    pub fn add_custom(&mut self, group: &str, version: &str, plural: &str, kind: &str, namespaced: bool) {
        let free = MergeSchema::free();
        let merge_schema = MergeSchema::default()
            .graft("spec", &free)
            .graft("status", &free)
            .graft("metadata", &MergeSchema::default().with_all(METADATA));
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
            merge_schema,
            schema: None,
            custom: true,
        });
    }

    pub fn by_plural(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        let id = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        self.kinds.get(&id).filter(|kind| kind.version == version).cloned()
    }

    pub fn by_id(&self, id: &str) -> Option<Arc<Kind>> {
        self.kinds.get(id).cloned()
    }

    pub fn by_object(&self, api_version: &str, kind: &str) -> Option<Arc<Kind>> {
        self.iter().find(|known| known.kind == kind && known.api_version() == api_version).cloned()
    }

    /// Sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.kinds.values()
    }
}
