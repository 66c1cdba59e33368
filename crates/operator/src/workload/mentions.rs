//! `ConfigMaps` that a pod reads, so that it is replaced when one of them changes.

use crate::cluster::{OwnedObject, Desired};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The annotation of pods with what the `ConfigMaps` that they read hold.
const READS: &str = "gantry.dev/config-maps";

/// Names of the `ConfigMaps` that a pod reads, as files or as variables.
pub fn mentioned(pod: &Value) -> BTreeSet<&str> {
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

/// The annotation for a pod, from the digests of the `ConfigMaps` that are known; none when it reads none of them.
pub fn config_maps(pod: &Value, digests: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let read: Vec<String> = mentioned(pod)
        .into_iter()
        .filter_map(|name| digests.get(name).map(|digest| format!("{name}={digest}")))
        .collect();
    if read.is_empty() {
        BTreeMap::new()
    } else {
        BTreeMap::from([(READS.to_owned(), read.join(","))])
    }
}

/// What a `ConfigMap` holds, whoever it belongs to.
pub fn digest_of_live(map: &OwnedObject) -> String {
    crate::cluster::digest(map.data.get("data").unwrap_or(&Value::Null))
}

/// What a `ConfigMap` is to hold.
pub fn digest_of_wanted(map: &Desired) -> String {
    crate::cluster::digest(map.body.get("data").unwrap_or(&Value::Null))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_way_to_read_one_is_seen() {
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
        assert_eq!(mentioned(&pod), BTreeSet::from(["one", "two", "three", "four"]));
        let known =
            BTreeMap::from([("two".to_owned(), "22".to_owned()), ("five".to_owned(), "55".to_owned())]);
        assert_eq!(config_maps(&pod, &known), BTreeMap::from([(READS.to_owned(), "two=22".to_owned())]));
        assert_eq!(config_maps(&json!({}), &known), BTreeMap::new());
        assert_eq!(mentioned(&json!({"volumes": 3, "containers": [{"env": {}}]})), BTreeSet::new());
    }

    #[test]
    fn what_is_wanted_and_what_is_there_have_the_same_digest() {
        let key = crate::cluster::Key::new("ns", "m");
        let wanted = Desired::new(crate::cluster::ResourceKind::CONFIG_MAP, key, json!({"data": {"a": "1"}}));
        let live: OwnedObject = serde_json::from_value(wanted.manifest()).unwrap();
        assert_eq!(digest_of_wanted(&wanted), digest_of_live(&live));
    }
}
