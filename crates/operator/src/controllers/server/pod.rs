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
/// Default seconds for draining models and requests.
const DEFAULT_GRACE_PERIOD: i64 = 120;

/// The pod of the configuration with the Server's overrides.
pub(super) fn merged_pod(spec: &ServerSpec, config: &ServerConfigSpec, image: &str) -> Result<Value, String> {
    let over = spec.pod_spec.clone().unwrap_or_default();
    let mut pod = with_default_image(merge(&config.pod_spec, &over), image);
    if !(spec.capabilities.is_empty() && spec.extra_capabilities.is_empty()) {
        let agent = container(&mut pod, AGENT).ok_or_else(|| {
            "spec.capabilities needs a container named agent, which the pods do not have: add it to the \
             ServerConfig, or remove capabilities"
                .to_owned()
        })?;
        capabilities(agent, spec);
    }
    Ok(pod)
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

fn container<'a>(pod: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    let containers = pod.get_mut("containers").and_then(Value::as_array_mut)?;
    containers.iter_mut().find(|c| c.get("name").and_then(Value::as_str) == Some(name))
}

fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let env = container.get("env").and_then(Value::as_array)?;
    let found = env.iter().find(|e| e.get("name").and_then(Value::as_str) == Some(name))?;
    found.get("value").and_then(Value::as_str)
}

/// `capabilities` replace those of the configuration, `extraCapabilities` add to them; duplicates are dropped.
fn capabilities(agent: &mut Value, spec: &ServerSpec) {
    let configured = variable(agent, CAPABILITIES).unwrap_or_default().to_owned();
    let base: Vec<&str> = if spec.capabilities.is_empty() {
        configured.split(',').collect()
    } else {
        spec.capabilities.iter().map(String::as_str).collect()
    };
    let mut all: Vec<&str> = Vec::new();
    for capability in base.into_iter().chain(spec.extra_capabilities.iter().map(String::as_str)) {
        let capability = capability.trim();
        if !capability.is_empty() && !all.contains(&capability) {
            all.push(capability);
        }
    }
    let over = json!({ "env": [{ "name": CAPABILITIES, "value": all.join(",") }] });
    *agent = merge(agent, &over);
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

    fn built(config: Value, spec: &Value) -> Result<Value, String> {
        let mut whole = json!({ "serverConfig": "a" });
        whole = merge(&whole, spec);
        let config = ServerConfigSpec { pod_spec: config, ..ServerConfigSpec::default() };
        merged_pod(&serde_json::from_value(whole).unwrap(), &config, "gantry:1").map(with_drain)
    }

    #[test]
    fn capabilities_replace_and_extra_capabilities_add() {
        let agent = |value: &str| json!({ "containers": [{ "name": "agent", "env": [{ "name": CAPABILITIES, "value": value }] }] });
        for (configured, spec, expected) in [
            ("mlserver,sklearn", json!({}), "mlserver,sklearn"),
            ("mlserver,sklearn", json!({"capabilities": ["onnx"]}), "onnx"),
            ("mlserver, sklearn", json!({"extraCapabilities": ["onnx", "sklearn"]}), "mlserver,sklearn,onnx"),
            ("mlserver", json!({"capabilities": ["a"], "extraCapabilities": ["b"]}), "a,b"),
            ("", json!({"extraCapabilities": ["b"]}), "b"),
        ] {
            let pod = built(agent(configured), &spec).unwrap();
            let env = pod.pointer("/containers/0/env").unwrap();
            assert_eq!(env, &json!([{ "name": CAPABILITIES, "value": expected }]), "{spec}");
        }
        let problem =
            built(json!({"containers": [{"name": "a"}]}), &json!({"capabilities": ["onnx"]})).unwrap_err();
        assert!(problem.contains("named agent"), "{problem}");
    }

    #[test]
    fn capabilities_replace_value_from() {
        let from = json!({ "containers": [{ "name": "agent", "env": [{ "name": CAPABILITIES, "valueFrom": {} }] }] });
        let pod = built(from, &json!({"capabilities": ["onnx"]})).unwrap();
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
        let pod = built(config, &json!({})).unwrap();
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
    fn configured_pod_fields_are_kept() {
        let over = json!({ "podSpec": { "terminationGracePeriodSeconds": 5, "securityContext": { "runAsUser": 7 } } });
        let pod = built(json!({ "containers": [{ "name": "server" }] }), &over).unwrap();
        assert_eq!(pod.pointer("/terminationGracePeriodSeconds"), Some(&json!(5)));
        assert_eq!(pod.pointer("/securityContext"), Some(&json!({ "runAsUser": 7 })));
        assert_eq!(pod.pointer("/containers/0/lifecycle"), None, "without an agent there is no drain hook");
    }
}
