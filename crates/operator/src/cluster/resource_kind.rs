//! Descriptors of resource kinds that are not ours: those that controllers create, and those that they only read.

use kube::core::ApiResource;
use std::fmt;

/// A namespaced kind, known by what its URL and its manifests need. Any controller may bring its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceKind {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    /// Whether its CRD may be missing. Start-up waits for no optional kind; it is discovered later.
    pub optional: bool,
    /// The label that objects have to have to be read; empty for all objects.
    pub with_label: &'static str,
}

impl ResourceKind {
    pub const CONFIG_MAP: Self = Self::new("", "v1", "ConfigMap", "configmaps");
    pub const SECRET: Self = Self::new("", "v1", "Secret", "secrets");
    pub const SERVICE_ACCOUNT: Self = Self::new("", "v1", "ServiceAccount", "serviceaccounts");
    pub const ROLE: Self = Self::new("rbac.authorization.k8s.io", "v1", "Role", "roles");
    pub const ROLE_BINDING: Self =
        Self::new("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings");
    pub const SERVICE: Self = Self::new("", "v1", "Service", "services");
    pub const STATEFUL_SET: Self = Self::new("apps", "v1", "StatefulSet", "statefulsets");
    pub const DEPLOYMENT: Self = Self::new("apps", "v1", "Deployment", "deployments");
    pub const POD_DISRUPTION_BUDGET: Self =
        Self::new("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets");
    pub const HORIZONTAL_POD_AUTOSCALER: Self =
        Self::new("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers");

    /// A group of APIs that another server answers.
    pub const API_SERVICE: Self = Self::new("apiregistration.k8s.io", "v1", "APIService", "apiservices");
    pub const INGRESS: Self = Self::new("networking.k8s.io", "v1", "Ingress", "ingresses");
    /// A route of the Gateway API.
    pub const HTTP_ROUTE: Self =
        Self::new("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes").optional();

    /// A route of Istio.
    pub const VIRTUAL_SERVICE: Self =
        Self::new("networking.istio.io", "v1beta1", "VirtualService", "virtualservices").optional();
    /// An autoscaler of KEDA.
    pub const SCALED_OBJECT: Self =
        Self::new("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects").optional();
    pub const KNATIVE_SERVICE: Self =
        Self::new("serving.knative.dev", "v1", "Service", "services").optional();

    pub const fn new(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
    ) -> Self {
        Self { group, version, kind, plural, optional: false, with_label: "" }
    }

    /// The same kind, whose CRD may be missing.
    #[must_use]
    pub const fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// The same kind, of which only objects with this label are read.
    #[must_use]
    pub const fn with_label(self, label: &'static str) -> Self {
        Self { with_label: label, ..self }
    }

    /// `apiVersion` of a manifest.
    pub fn api_version(self) -> String {
        if self.group.is_empty() { self.version.into() } else { format!("{}/{}", self.group, self.version) }
    }

    pub fn api_resource(self) -> ApiResource {
        ApiResource {
            group: self.group.into(),
            version: self.version.into(),
            api_version: self.api_version(),
            kind: self.kind.into(),
            plural: self.plural.into(),
        }
    }
}

impl fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind)
    }
}
