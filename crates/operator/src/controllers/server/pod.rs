//! Pod template of a Server.

use crate::workload::{merge, with_default_image};
use gantry_api::{ServerConfigSpec, ServerSpec};
use serde_json::{Value, json};

const AGENT: &str = "agent";
/// The agent's variable with the capabilities of the server.
const CAPABILITIES: &str = "SELDON_SERVER_CAPABILITIES";
/// The agent's variable with the server's name, for pods whose name does not contain it.
const SERVER: &str = "GANTRY_SERVER";
/// The agent's variable with the drain port.
const DRAINER_PORT: &str = "SELDON_DRAINER_PORT";
const DEFAULT_DRAINER_PORT: i64 = 9007;
/// The agent's variable that makes it read Secrets of its namespace.
const KUBERNETES_SECRETS: &str = "GANTRY_KUBERNETES_SECRETS";
/// Where Kubernetes clients look for the token of their service account.
const TOKEN_DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Default seconds for draining models and requests.
const DEFAULT_GRACE_PERIOD: i64 = 120;

/// The pod of the configuration with the Server's overrides.
pub(super) fn merged_pod(spec: &ServerSpec, config: &ServerConfigSpec, image: &str) -> Value {
    let over = spec.pod_spec.clone().unwrap_or_default();
    let mut pod = with_default_image(merge(&config.pod_spec, &over), image);
    if !(spec.capabilities.is_empty() && spec.extra_capabilities.is_empty()) {
        let containers = pod.get_mut("containers").and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            set_capabilities(container, spec);
        }
    }
    pod
}

/// Adds our defaults: containers drain before they stop.
pub(super) fn with_drain(mut pod: Value) -> Value {
    drain(&mut pod);
    if let Value::Object(fields) = &mut pod {
        fields.entry("terminationGracePeriodSeconds").or_insert_with(|| json!(DEFAULT_GRACE_PERIOD));
    }
    pod
}

/// Sets the server's name for the agent, because pod names of a Deployment do not contain it.
pub(super) fn set_server_name(pod: &mut Value, server: &str) {
    let Some(agent) = container(pod, AGENT) else { return };
    if variable(agent, SERVER).is_none() {
        *agent = merge(agent, &json!({ "env": [{ "name": SERVER, "value": server }] }));
    }
}

/// Lets the agent read Secrets. Where the pod mounts no token, the agent alone gets one: the inference server runs code of
/// models.
pub(super) fn add_secret_access(pod: &mut Value) {
    let mounts_token = pod.get("automountServiceAccountToken") != Some(&Value::Bool(false));
    let Some(agent) = container(pod, AGENT) else { return };
    let mut over = json!({ "env": [{ "name": KUBERNETES_SECRETS, "value": "true" }] });
    if mounts_token {
        *agent = merge(agent, &over);
        return;
    }
    let volume = "api-access";
    let mount = json!({ "name": volume, "mountPath": TOKEN_DIRECTORY, "readOnly": true });
    if let Value::Object(fields) = &mut over {
        fields.insert("volumeMounts".into(), json!([mount]));
    }
    *agent = merge(agent, &over);
    let sources = json!([
        { "serviceAccountToken": { "path": "token", "expirationSeconds": 3607 } },
        { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
        { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } }] } },
    ]);
    *pod = merge(pod, &json!({ "volumes": [{ "name": volume, "projected": { "sources": sources } }] }));
}

fn container<'a>(pod: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    let containers = pod.get_mut("containers").and_then(Value::as_array_mut)?;
    containers.iter_mut().find(|c| text(c, "name") == Some(name))
}

fn text<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value.get(field).and_then(Value::as_str)
}

fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let env = container.get("env").and_then(Value::as_array)?;
    text(env.iter().find(|e| text(e, "name") == Some(name))?, "value")
}

/// In the agent, and in containers that have the variable. As in Seldon, `capabilities` replace those of the
/// configuration; without them, `extraCapabilities` are appended.
fn set_capabilities(container: &mut Value, spec: &ServerSpec) {
    let env = container.get("env").and_then(Value::as_array);
    let has_variable = env.is_some_and(|env| env.iter().any(|e| text(e, "name") == Some(CAPABILITIES)));
    if !has_variable && text(container, "name") != Some(AGENT) {
        return;
    }
    let value = if spec.capabilities.is_empty() {
        let configured = variable(container, CAPABILITIES).filter(|value| !value.is_empty());
        let extra = spec.extra_capabilities.iter().map(String::as_str);
        configured.into_iter().chain(extra).collect::<Vec<_>>().join(",")
    } else {
        spec.capabilities.join(",")
    };
    *container = merge(container, &json!({ "env": [{ "name": CAPABILITIES, "value": value }] }));
}

/// Containers without a preStop hook wait until the agent has drained the pod, so that the inference server outlives its
/// requests.
fn drain(pod: &mut Value) {
    let Some(agent) = container(pod, AGENT) else { return };
    let port =
        variable(agent, DRAINER_PORT).and_then(|port| port.parse().ok()).unwrap_or(DEFAULT_DRAINER_PORT);
    let containers = pod.get_mut("containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten() {
        if container.pointer("/lifecycle/preStop").is_none() {
            let wait =
                json!({ "lifecycle": { "preStop": { "httpGet": { "path": "/terminate", "port": port } } } });
            *container = merge(container, &wait);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(config: Value, spec: &Value) -> Value {
        let mut whole = json!({ "serverConfig": "a" });
        whole = merge(&whole, spec);
        let config = ServerConfigSpec { pod_spec: config, ..ServerConfigSpec::default() };
        with_drain(merged_pod(&serde_json::from_value(whole).unwrap(), &config, "gantry:1"))
    }

    #[test]
    fn capabilities_replace_and_extra_capabilities_add() {
        let agent = |value: &str| json!({ "containers": [{ "name": "agent", "env": [{ "name": CAPABILITIES, "value": value }] }] });
        for (configured, spec, expected) in [
            ("mlserver,sklearn", json!({}), "mlserver,sklearn"),
            ("mlserver,sklearn", json!({"capabilities": ["onnx"]}), "onnx"),
            ("mlserver,sklearn", json!({"extraCapabilities": ["onnx", "b"]}), "mlserver,sklearn,onnx,b"),
            ("mlserver", json!({"capabilities": ["a"], "extraCapabilities": ["b"]}), "a"),
            ("", json!({"extraCapabilities": ["b"]}), "b"),
        ] {
            let pod = built(agent(configured), &spec);
            let env = pod.pointer("/containers/0/env").unwrap();
            assert_eq!(env, &json!([{ "name": CAPABILITIES, "value": expected }]), "{spec}");
        }
    }

    #[test]
    fn capabilities_are_set_in_the_agent_and_where_the_variable_is() {
        let other = json!([{ "name": CAPABILITIES, "value": "x" }]);
        let config = json!({ "containers": [{ "name": "server" }, { "name": "agent" }, { "name": "other", "env": other }] });
        let pod = built(config, &json!({"capabilities": ["onnx"]}));
        let env = |n: usize| pod.pointer(&format!("/containers/{n}/env")).cloned();
        let set = Some(json!([{ "name": CAPABILITIES, "value": "onnx" }]));
        assert_eq!((env(0), env(1), env(2)), (None, set.clone(), set));
        let without = json!({ "containers": [{ "name": "server" }] });
        assert_eq!(built(without.clone(), &json!({"capabilities": ["onnx"]})), built(without, &json!({})));
    }

    #[test]
    fn capabilities_replace_value_from() {
        let from = json!({ "containers": [{ "name": "agent", "env": [{ "name": CAPABILITIES, "valueFrom": {} }] }] });
        let pod = built(from, &json!({"capabilities": ["onnx"]}));
        assert_eq!(
            pod.pointer("/containers/0/env").unwrap(),
            &json!([{ "name": CAPABILITIES, "value": "onnx" }])
        );
    }

    #[test]
    fn containers_without_prestop_hook_drain() {
        let config = json!({ "containers": [
            { "name": "agent", "image": "agent", "env": [{ "name": DRAINER_PORT, "value": "7" }] },
            { "name": "server" },
            { "name": "own", "lifecycle": { "preStop": { "sleep": { "seconds": 5 } } } },
        ]});
        let pod = built(config, &json!({}));
        let end = |n: usize| pod.pointer(&format!("/containers/{n}/lifecycle/preStop")).cloned();
        let drain = Some(json!({ "httpGet": { "path": "/terminate", "port": 7 } }));
        assert_eq!((end(0), end(1)), (drain.clone(), drain));
        assert_eq!(end(2), Some(json!({ "sleep": { "seconds": 5 } })));
        assert_eq!(pod.pointer("/terminationGracePeriodSeconds"), Some(&json!(120)));
        assert_eq!(pod.pointer("/containers/0/image"), Some(&json!("agent")));
        assert_eq!(pod.pointer("/containers/1/image"), Some(&json!("gantry:1")));
    }

    #[test]
    fn server_name_is_set_unless_configured() {
        let env_of = |env: Value| {
            let mut pod = json!({ "containers": [{ "name": "server" }, { "name": "agent", "env": env }] });
            set_server_name(&mut pod, "shop");
            pod.pointer("/containers/1/env").cloned().unwrap()
        };
        let shop = json!({ "name": SERVER, "value": "shop" });
        assert_eq!(
            env_of(json!([{ "name": "A", "value": "1" }])),
            json!([{ "name": "A", "value": "1" }, shop])
        );
        let other = json!([{ "name": SERVER, "value": "other" }]);
        assert_eq!(env_of(other.clone()), other);
    }

    #[test]
    fn only_the_agent_gets_a_token() {
        let pod_with = |automount: Option<bool>| {
            let containers = json!([{ "name": "server" }, { "name": "agent" }]);
            let mut pod = json!({ "containers": containers });
            if let Some(automount) = automount {
                pod["automountServiceAccountToken"] = automount.into();
            }
            add_secret_access(&mut pod);
            pod
        };
        let variable = json!([{ "name": KUBERNETES_SECRETS, "value": "true" }]);
        let pod = pod_with(Some(false));
        assert_eq!(pod.pointer("/containers/0"), Some(&json!({ "name": "server" })));
        assert_eq!(pod.pointer("/containers/1/env"), Some(&variable));
        assert_eq!(pod.pointer("/containers/1/volumeMounts/0/mountPath"), Some(&json!(TOKEN_DIRECTORY)));
        assert_eq!(pod.pointer("/volumes/0/name"), pod.pointer("/containers/1/volumeMounts/0/name"));
        assert_eq!(pod["automountServiceAccountToken"], json!(false));
        for automount in [None, Some(true)] {
            let pod = pod_with(automount);
            assert_eq!(pod.pointer("/containers/1"), Some(&json!({ "name": "agent", "env": variable })));
            assert_eq!(pod.get("volumes"), None);
        }
    }

    #[test]
    fn configured_pod_fields_are_kept() {
        let over = json!({ "podSpec": { "terminationGracePeriodSeconds": 5, "securityContext": { "runAsUser": 7 } } });
        let pod = built(json!({ "containers": [{ "name": "server" }] }), &over);
        assert_eq!(pod.pointer("/terminationGracePeriodSeconds"), Some(&json!(5)));
        assert_eq!(pod.pointer("/securityContext"), Some(&json!({ "runAsUser": 7 })));
        assert_eq!(pod.pointer("/containers/0/lifecycle"), None, "without an agent there is no drain hook");
    }
}
