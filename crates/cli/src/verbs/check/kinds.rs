//! The definitions of the kinds: whether they are there, and whose they are.

use super::api::{Api, Trouble};
use gantry_api::Resource;
use serde_json::Value;

/// A kind's definition on the cluster.
#[derive(Debug)]
pub(super) struct Definition {
    /// The kind as this program knows it.
    pub(super) resource: Resource,
    live: Option<Value>,
}

/// The definitions of all kinds.
pub(super) async fn look(api: &Api) -> Result<Vec<Definition>, Trouble> {
    let mut found = Vec::new();
    for resource in gantry_api::resources() {
        let path =
            format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}", full_name(&resource));
        found.push(Definition { resource, live: api.find(&path).await? });
    }
    Ok(found)
}

/// The name of a kind's definition.
fn full_name(resource: &Resource) -> String {
    format!("{}.{}", resource.plural, group())
}

/// The group of the kinds.
pub(super) fn group() -> &'static str {
    gantry_api::API_VERSION.split_once('/').map_or(gantry_api::API_VERSION, |(group, _)| group)
}

/// The list of a kind's objects: in a namespace, or everywhere.
pub(super) fn list_path(plural: &str, namespace: Option<&str>) -> String {
    let base = format!("/apis/{}", gantry_api::API_VERSION);
    match namespace {
        Some(namespace) => format!("{base}/namespaces/{namespace}/{plural}"),
        None => format!("{base}/{plural}"),
    }
}

impl Definition {
    /// Such as `models.mlops.seldon.io`.
    pub(super) fn name(&self) -> String {
        full_name(&self.resource)
    }

    /// Whether it is there.
    pub(super) const fn is_there(&self) -> bool {
        self.live.is_some()
    }

    /// Whether it says what this program's says. What the API server fills in does not count.
    pub(super) fn is_ours(&self) -> bool {
        let wanted = gantry_api::crd(&self.resource);
        match (wanted.get("spec"), self.live.as_ref().and_then(|live| live.get("spec"))) {
            (Some(wanted), Some(live)) => gantry_operator::cluster::holds(wanted, live),
            _ => false,
        }
    }

    /// Whether the API server serves it.
    pub(super) fn is_established(&self) -> bool {
        let conditions = self.live.as_ref().and_then(|live| live.pointer("/status/conditions")?.as_array());
        conditions.into_iter().flatten().any(|c| {
            c.get("type").and_then(Value::as_str) == Some("Established")
                && c.get("status").and_then(Value::as_str) == Some("True")
        })
    }

    /// Versions that objects may be stored in.
    pub(super) fn stored(&self) -> Vec<&str> {
        let stored = self.live.as_ref().and_then(|live| live.pointer("/status/storedVersions")?.as_array());
        stored.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// How long it is as JSON, without what servers and clients keep for themselves.
    pub(super) fn bytes(&self) -> usize {
        self.live.as_ref().and_then(|live| live.get("spec")).map_or(0, |spec| spec.to_string().len())
    }

    /// How long ours is.
    pub(super) fn our_bytes(&self) -> usize {
        gantry_api::crd(&self.resource).get("spec").map_or(0, |spec| spec.to_string().len())
    }
}
