//! Installed CustomResourceDefinitions and their version.

use super::api::{Api, ApiError};
use gantry_api::Resource;
use serde_json::Value;

#[derive(Debug)]
pub(super) struct InstalledCrd {
    pub(super) resource: Resource,
    live: Option<Value>,
}

/// API group of Seldon's kinds.
pub(super) const SELDON: &str = "mlops.seldon.io";
/// API group of Gantry's own kinds.
pub(super) const GANTRY: &str = "gantry.dev";
/// API group of KServe's kinds.
pub(super) const KSERVE: &str = "serving.kserve.io";

/// The kinds of a group.
pub(super) fn resources_of(group: &str) -> impl Iterator<Item = Resource> {
    gantry_api::resources().into_iter().filter(move |resource| group_of(resource) == group)
}

/// The CRDs of a group.
pub(super) async fn fetch(api: &Api, group: &str) -> Result<Vec<InstalledCrd>, ApiError> {
    let mut found = Vec::new();
    for resource in resources_of(group) {
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}", crd_name(&resource));
        found.push(InstalledCrd { resource, live: api.find(&path).await? });
    }
    Ok(found)
}

fn crd_name(resource: &Resource) -> String {
    format!("{}.{}", resource.plural, group_of(resource))
}

fn group_of(resource: &Resource) -> &'static str {
    resource.api_version.split_once('/').map_or("", |(group, _)| group)
}

/// List path of one of Seldon's kinds, in one namespace or in all.
pub(super) fn list_path(plural: &str, namespace: Option<&str>) -> String {
    let base = format!("/apis/{}", gantry_api::API_VERSION);
    match namespace {
        Some(namespace) => format!("{base}/namespaces/{namespace}/{plural}"),
        None => format!("{base}/{plural}"),
    }
}

impl InstalledCrd {
    /// Such as `models.mlops.seldon.io`.
    pub(super) fn name(&self) -> String {
        crd_name(&self.resource)
    }

    pub(super) const fn is_installed(&self) -> bool {
        self.live.is_some()
    }

    /// Whether it matches the CRD of this version, ignoring API server defaults.
    pub(super) fn is_current(&self) -> bool {
        let desired = gantry_api::crd(&self.resource);
        match (desired.get("spec"), self.live.as_ref().and_then(|live| live.get("spec"))) {
            (Some(desired), Some(live)) => gantry_operator::cluster::is_subset(desired, live),
            _ => false,
        }
    }

    pub(super) fn is_established(&self) -> bool {
        let conditions = self.live.as_ref().and_then(|live| live.pointer("/status/conditions")?.as_array());
        conditions.into_iter().flatten().any(|c| {
            c.get("type").and_then(Value::as_str) == Some("Established")
                && c.get("status").and_then(Value::as_str) == Some("True")
        })
    }

    pub(super) fn stored_versions(&self) -> Vec<&str> {
        let stored = self.live.as_ref().and_then(|live| live.pointer("/status/storedVersions")?.as_array());
        stored.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// JSON size of the installed spec.
    pub(super) fn bytes(&self) -> usize {
        self.live.as_ref().and_then(|live| live.get("spec")).map_or(0, |spec| spec.to_string().len())
    }

    /// JSON size of this version's spec.
    pub(super) fn bundled_bytes(&self) -> usize {
        gantry_api::crd(&self.resource).get("spec").map_or(0, |spec| spec.to_string().len())
    }
}
