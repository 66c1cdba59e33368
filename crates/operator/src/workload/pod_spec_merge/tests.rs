use super::*;
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeSet;

#[test]
fn override_wins_and_items_are_merged_by_key() {
    let cases = [
        ("fields", json!({"a": 1, "b": 2}), json!({"b": 3, "c": 4}), json!({"a": 1, "b": 3, "c": 4})),
        ("null is ignored", json!({"a": 1}), json!({"a": null, "b": null}), json!({"a": 1})),
        (
            "maps",
            json!({"nodeSelector": {"disk": "ssd", "zone": "a"}}),
            json!({"nodeSelector": {"zone": "b"}}),
            json!({"nodeSelector": {"disk": "ssd", "zone": "b"}}),
        ),
        (
            "containers keep their order",
            json!({"containers": [{"name": "agent", "image": "x"}, {"name": "server"}]}),
            json!({"containers": [{"name": "more"}, {"name": "server", "image": "y"}]}),
            json!({"containers": [{"name": "agent", "image": "x"}, {"name": "server", "image": "y"}, {"name": "more"}]}),
        ),
        (
            "variables",
            json!({"containers": [{"name": "c", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]}]}),
            json!({"containers": [{"name": "c", "env": [{"name": "A", "value": "2"}]}]}),
            json!({"containers": [{"name": "c", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "1"}]}]}),
        ),
        (
            "variable with another source",
            json!({"env": [{"name": "A", "value": "1"}]}),
            json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}),
            json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}),
        ),
        (
            "volume with another source",
            json!({"volumes": [{"name": "models", "emptyDir": {}}, {"name": "tmp", "emptyDir": {"medium": "Memory"}}]}),
            json!({"volumes": [{"name": "models", "hostPath": {"path": "/models"}}, {"name": "tmp"}]}),
            json!({"volumes": [{"name": "models", "hostPath": {"path": "/models"}}, {"name": "tmp", "emptyDir": {"medium": "Memory"}}]}),
        ),
        (
            "volume with the same source",
            json!({"volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory"}}]}),
            json!({"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}]}),
            json!({"volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]}),
        ),
        (
            "mounts by path",
            json!({"volumeMounts": [{"name": "a", "mountPath": "/a"}]}),
            json!({"volumeMounts": [{"name": "a", "mountPath": "/b"}, {"name": "b", "mountPath": "/a"}]}),
            json!({"volumeMounts": [{"name": "b", "mountPath": "/a"}, {"name": "a", "mountPath": "/b"}]}),
        ),
        (
            "ports by number and protocol",
            json!({"ports": [{"containerPort": 9000, "name": "http"}]}),
            json!({"ports": [{"containerPort": 9000, "protocol": "TCP", "hostPort": 80}, {"containerPort": 9000, "protocol": "UDP"}]}),
            json!({"ports": [
                {"containerPort": 9000, "name": "http", "protocol": "TCP", "hostPort": 80},
                {"containerPort": 9000, "protocol": "UDP"},
            ]}),
        ),
        (
            "tolerations once",
            json!({"tolerations": [{"key": "gpu", "operator": "Exists"}]}),
            json!({"tolerations": [{"key": "gpu", "operator": "Exists"}, {"key": "spot", "operator": "Exists"}]}),
            json!({"tolerations": [{"key": "gpu", "operator": "Exists"}, {"key": "spot", "operator": "Exists"}]}),
        ),
        (
            "arguments are one value",
            json!({"args": ["a", "b"]}),
            json!({"args": ["c"]}),
            json!({"args": ["c"]}),
        ),
        (
            "another probe",
            json!({"readinessProbe": {"httpGet": {"path": "/", "port": 1}, "periodSeconds": 5}}),
            json!({"readinessProbe": {"tcpSocket": {"port": 2}}}),
            json!({"readinessProbe": {"tcpSocket": {"port": 2}, "periodSeconds": 5}}),
        ),
        (
            "the same probe, elsewhere",
            json!({"readinessProbe": {"httpGet": {"path": "/", "port": 1}}}),
            json!({"readinessProbe": {"httpGet": {"port": 2}}}),
            json!({"readinessProbe": {"httpGet": {"path": "/", "port": 2}}}),
        ),
        (
            "twice in one of them",
            json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}),
            json!({}),
            json!({"env": [{"name": "A", "value": "2"}]}),
        ),
        (
            "items without a name",
            json!({"containers": [{}]}),
            json!({"containers": [{}]}),
            json!({"containers": [{}]}),
        ),
        (
            "nonsense",
            json!({"containers": 7}),
            json!({"containers": [{"name": "a"}]}),
            json!({"containers": [{"name": "a"}]}),
        ),
        ("nothing at all", Value::Null, Value::Null, json!({})),
    ];
    for (name, base, over, merged) in cases {
        assert_eq!(merge(&base, &over), merged, "{name}");
    }
}

/// Pods with few distinct names, so that keys collide.
fn pods() -> impl Strategy<Value = Value> {
    let word = || prop::sample::select(vec!["a", "b", "c"]);
    let env = (word(), word(), any::<bool>()).prop_map(|(name, value, from)| {
        if from {
            json!({"name": name, "valueFrom": {"fieldRef": value}})
        } else {
            json!({"name": name, "value": value})
        }
    });
    let port = (0..3, prop::option::of(prop::sample::select(vec!["TCP", "UDP"])), word()).prop_map(
        |(port, protocol, name)| json!({"containerPort": port, "protocol": protocol, "name": name}),
    );
    let mount = (word(), word()).prop_map(|(name, path)| json!({"name": name, "mountPath": path}));
    let probe = prop::sample::select(vec![
        json!(null),
        json!({"httpGet": {"port": 1}}),
        json!({"exec": {"command": ["a"]}, "periodSeconds": 1}),
        json!({"periodSeconds": 2}),
    ]);
    let volume = (prop::option::of(word()), 0..3).prop_map(|(name, form)| match form {
        0 => json!({"name": name, "emptyDir": {}}),
        1 => json!({"name": name, "hostPath": {"path": "/"}}),
        _ => json!({"name": name}),
    });
    let toleration = word().prop_map(|key| json!({"key": key}));
    let container = (
        word(),
        prop::collection::vec(env, 0..4),
        prop::collection::vec(port, 0..3),
        prop::collection::vec(mount, 0..3),
        prop::collection::vec(word(), 0..3),
        probe,
    )
        .prop_map(|(name, env, ports, mounts, args, probe)| {
            json!({
                "name": name, "env": env, "ports": ports, "volumeMounts": mounts, "args": args, "livenessProbe": probe,
            })
        });
    (
        prop::collection::vec(container, 0..4),
        prop::collection::vec(volume, 0..4),
        prop::collection::vec(toleration, 0..4),
        prop::option::of(0..100),
    )
        .prop_map(|(containers, volumes, tolerations, grace)| {
            json!({
                "containers": containers, "volumes": volumes, "tolerations": tolerations,
                "terminationGracePeriodSeconds": grace,
            })
        })
}

/// All keyed lists of a value, with the keys of their items.
fn keys_of(field: &str, value: &Value, found: &mut Vec<(String, Vec<String>)>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| keys_of(name, value, found)),
        Value::Array(list) => {
            let name = |item: &Value, key: &str| item.get(key).map(ToString::to_string);
            let key = |item: &Value| match field {
                "containers" | "volumes" | "env" => name(item, "name"),
                "volumeMounts" => name(item, "mountPath"),
                "ports" => {
                    let protocol = item.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
                    name(item, "containerPort").map(|port| format!("{port}/{protocol}"))
                }
                "tolerations" => Some(item.to_string()),
                _ => None,
            };
            found.push((field.to_owned(), list.iter().filter_map(key).collect()));
            for item in list {
                keys_of("", item, found);
            }
        }
        _ => {}
    }
}

proptest! {
    #[test]
    fn merge_is_idempotent(base in pods(), over in pods()) {
        let once = merge(&base, &over);
        prop_assert_eq!(merge(&once, &over), once.clone());
        prop_assert_eq!(merge(&once, &json!({})), once);
    }

    #[test]
    fn merge_produces_no_duplicate_items(base in pods(), over in pods()) {
        let mut found = Vec::new();
        keys_of("", &merge(&base, &over), &mut found);
        for (field, keys) in found {
            let different: BTreeSet<&String> = keys.iter().collect();
            prop_assert_eq!(different.len(), keys.len(), "{}: {:?}", field, keys);
        }
    }

    #[test]
    fn merge_keeps_the_order_of_the_base(base in pods(), over in pods()) {
        let names = |pod: &Value| -> Vec<String> {
            pod["containers"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect()
        };
        let (alone, merged) = (names(&merge(&base, &json!({}))), names(&merge(&base, &over)));
        prop_assert_eq!(&merged[..alone.len()], &alone[..]);
    }
}
