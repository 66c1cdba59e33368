//! Discovery: version, health, groups and resources.

use super::registry::{Kind, Registry};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The version with which the conformance cases were recorded.
const MINOR: &str = "36";

/// `None` for paths outside discovery.
pub(super) fn answer(path: &str, registry: &Registry) -> Option<Value> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    Some(match parts.as_slice() {
        ["version"] => version(),
        ["api"] => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        ["apis"] => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups(registry)}),
        ["api", version] => resources("", version, registry)?,
        ["apis", group] => {
            groups(registry).into_iter().find(|one| one.get("name") == Some(&Value::from(*group)))?
        }
        ["apis", group, version] => resources(group, version, registry)?,
        _ => return None,
    })
}

fn version() -> Value {
    json!({
        "major": "1", "minor": MINOR, "gitVersion": format!("v1.{MINOR}.0-simulated"), "gitCommit": "",
        "gitTreeState": "", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "",
    })
}

fn groups(registry: &Registry) -> Vec<Value> {
    let mut versions: BTreeMap<&str, &str> = BTreeMap::new();
    for kind in registry.iter().filter(|kind| !kind.group.is_empty()) {
        versions.insert(&kind.group, &kind.version);
    }
    let one = |(group, version): (&str, &str)| {
        let version = json!({"groupVersion": format!("{group}/{version}"), "version": version});
        json!({"kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": [version], "preferredVersion": version})
    };
    versions.into_iter().map(one).collect()
}

fn resources(group: &str, version: &str, registry: &Registry) -> Option<Value> {
    let of: Vec<&Kind> = registry
        .iter()
        .map(AsRef::as_ref)
        .filter(|kind: &&Kind| kind.group == group && kind.version == version)
        .collect();
    let first = of.first()?;
    let resources: Vec<Value> = of.iter().flat_map(|kind| resource(kind)).collect();
    let version = first.api_version();
    Some(
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}),
    )
}

fn resource(kind: &Kind) -> Vec<Value> {
    let one = |suffix: &str, kind_name: &str, verbs: &[&str]| {
        let name = format!("{}{suffix}", kind.plural);
        json!({"name": name, "singularName": "", "namespaced": kind.namespaced, "kind": kind_name, "verbs": verbs})
    };
    let verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    let mut all = vec![one("", &kind.kind, &verbs)];
    if kind.status {
        all.push(one("/status", &kind.kind, &["get", "patch", "update"]));
    }
    if kind.scale.is_some() {
        all.push(one("/scale", "Scale", &["get", "patch", "update"]));
    }
    all
}
