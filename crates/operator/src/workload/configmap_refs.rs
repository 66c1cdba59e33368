//! Restarts pods when a `ConfigMap` that they reference changes, by an annotation with its digest.

use crate::cluster::{Desired, OwnedObject};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

const DIGESTS: &str = "gantry.dev/config-maps";

/// Names of the `ConfigMaps` that a pod references in volumes or environment variables.
fn configmap_refs(pod: &Value) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let list = |at: &'static str| pod.get(at).and_then(Value::as_array).into_iter().flatten();
    for volume in list("volumes") {
        names.extend(text(volume, "/configMap/name"));
        let sources = volume.pointer("/projected/sources").and_then(Value::as_array);
        names.extend(sources.into_iter().flatten().filter_map(|source| text(source, "/configMap/name")));
    }
    for container in list("containers").chain(list("initContainers")) {
        let each = |at: &str| container.get(at).and_then(Value::as_array).into_iter().flatten();
        names.extend(each("envFrom").filter_map(|from| text(from, "/configMapRef/name")));
        names.extend(each("env").filter_map(|env| text(env, "/valueFrom/configMapKeyRef/name")));
    }
    names
}

fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}

/// The pod annotation, from the digests of known `ConfigMaps`; empty without references to them.
pub fn configmap_annotation(pod: &Value, digests: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let refs: Vec<String> = configmap_refs(pod)
        .into_iter()
        .filter_map(|name| digests.get(name).map(|digest| format!("{name}={digest}")))
        .collect();
    if refs.is_empty() { BTreeMap::new() } else { BTreeMap::from([(DIGESTS.to_owned(), refs.join(","))]) }
}

pub fn live_configmap_digest(map: &OwnedObject) -> String {
    crate::cluster::digest(map.data.get("data").unwrap_or(&Value::Null))
}

pub fn desired_configmap_digest(map: &Desired) -> String {
    crate::cluster::digest(map.body.get("data").unwrap_or(&Value::Null))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_reference_types_are_found() {
        let pod = json!({
            "volumes": [
                {"name": "a", "configMap": {"name": "one"}},
                {"name": "b", "projected": {"sources": [{"configMap": {"name": "two"}}, {"secret": {"name": "no"}}]}},
                {"name": "c", "secret": {"secretName": "no"}},
            ],
            "initContainers": [{"envFrom": [{"configMapRef": {"name": "three"}}, {"secretRef": {"name": "no"}}]}],
            "containers": [{"env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "four", "key": "k"}}},
                {"name": "B", "value": "no"},
            ]}],
        });
        assert_eq!(configmap_refs(&pod), BTreeSet::from(["one", "two", "three", "four"]));
        let known =
            BTreeMap::from([("two".to_owned(), "22".to_owned()), ("five".to_owned(), "55".to_owned())]);
        assert_eq!(
            configmap_annotation(&pod, &known),
            BTreeMap::from([(DIGESTS.to_owned(), "two=22".to_owned())])
        );
        assert_eq!(configmap_annotation(&json!({}), &known), BTreeMap::new());
        assert_eq!(configmap_refs(&json!({"volumes": 3, "containers": [{"env": {}}]})), BTreeSet::new());
    }

    #[test]
    fn desired_and_live_digests_match() {
        let key = crate::cluster::Key::new("ns", "m");
        let desired =
            Desired::new(crate::cluster::ResourceKind::CONFIG_MAP, key, json!({"data": {"a": "1"}}));
        let live: OwnedObject = serde_json::from_value(desired.manifest()).unwrap();
        assert_eq!(desired_configmap_digest(&desired), live_configmap_digest(&live));
    }
}
