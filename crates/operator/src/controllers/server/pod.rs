//! One pod of a Server.

use crate::workload::{merge, with_images};
use gantry_api::{ServerConfigSpec, ServerSpec};
use serde_json::{Value, json};

/// The container that looks after the inference server.
const AGENT: &str = "agent";
/// The agent's variable with what the server can run.
const CAPABILITIES: &str = "SELDON_SERVER_CAPABILITIES";
/// The agent's variable with the server's name, where the pod's name does not say it.
const SERVER: &str = "GANTRY_SERVER";
/// The agent's variable with the port that moves models away.
const DRAINER_PORT: &str = "SELDON_DRAINER_PORT";
/// That port where nothing is said of it.
const DRAINER: i64 = 9007;
/// Seconds that a pod has to move its models away and finish requests, where nothing is said of it.
const GRACE: i64 = 120;

/// The pod of a configuration with what the Server lays over it; `Err` says what does not fit together.
pub(super) fn asked(spec: &ServerSpec, config: &ServerConfigSpec, image: &str) -> Result<Value, String> {
    let over = spec.pod_spec.clone().unwrap_or_default();
    let mut pod = with_images(merge(&config.pod_spec, &over), image);
    if !(spec.capabilities.is_empty() && spec.extra_capabilities.is_empty()) {
        let agent = container(&mut pod, AGENT).ok_or_else(|| {
            "spec.capabilities is for the container named agent, which the pods do not have: name one so in the \
             ServerConfig, or leave capabilities out"
                .to_owned()
        })?;
        capabilities(agent, spec);
    }
    Ok(pod)
}

/// The pod with what it is given where nothing is said of it: an end that waits for its models.
pub(super) fn finished(mut pod: Value) -> Value {
    drain(&mut pod);
    if let Value::Object(fields) = &mut pod {
        fields.entry("terminationGracePeriodSeconds").or_insert_with(|| json!(GRACE));
    }
    pod
}

/// Pods of a Deployment have names that end in anything: their agent is told whose it is, unless it is told already.
pub(super) fn name_server(pod: &mut Value, server: &str) {
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

/// `capabilities` instead of what the configuration says, `extraCapabilities` besides; none of them twice.
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

/// Before a pod goes, its models do: every container that says nothing of its end waits until the agent has moved them
/// away, so that the inference server is there for as long as requests are.
fn drain(pod: &mut Value) {
    let Some(agent) = container(pod, AGENT) else { return };
    let port = variable(agent, DRAINER_PORT).and_then(|port| port.parse().ok()).unwrap_or(DRAINER);
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

    fn made(config: Value, spec: &Value) -> Result<Value, String> {
        let mut whole = json!({ "serverConfig": "a" });
        whole = merge(&whole, spec);
        let config = ServerConfigSpec { pod_spec: config, ..ServerConfigSpec::default() };
        asked(&serde_json::from_value(whole).unwrap(), &config, "gantry:1").map(finished)
    }

    #[test]
    fn capabilities_replace_and_extra_ones_are_added() {
        let agent = |value: &str| json!({ "containers": [{ "name": "agent", "env": [{ "name": CAPABILITIES, "value": value }] }] });
        for (configured, spec, expected) in [
            ("mlserver,sklearn", json!({}), "mlserver,sklearn"),
            ("mlserver,sklearn", json!({"capabilities": ["onnx"]}), "onnx"),
            ("mlserver, sklearn", json!({"extraCapabilities": ["onnx", "sklearn"]}), "mlserver,sklearn,onnx"),
            ("mlserver", json!({"capabilities": ["a"], "extraCapabilities": ["b"]}), "a,b"),
            ("", json!({"extraCapabilities": ["b"]}), "b"),
        ] {
            let pod = made(agent(configured), &spec).unwrap();
            let env = pod.pointer("/containers/0/env").unwrap();
            assert_eq!(env, &json!([{ "name": CAPABILITIES, "value": expected }]), "{spec}");
        }
        let problem =
            made(json!({"containers": [{"name": "a"}]}), &json!({"capabilities": ["onnx"]})).unwrap_err();
        assert!(problem.contains("named agent"), "{problem}");
    }

    #[test]
    fn capabilities_replace_those_from_elsewhere_too() {
        let from = json!({ "containers": [{ "name": "agent", "env": [{ "name": CAPABILITIES, "valueFrom": {} }] }] });
        let pod = made(from, &json!({"capabilities": ["onnx"]})).unwrap();
        assert_eq!(
            pod.pointer("/containers/0/env").unwrap(),
            &json!([{ "name": CAPABILITIES, "value": "onnx" }])
        );
    }

    #[test]
    fn containers_wait_for_the_agent_unless_they_say_otherwise() {
        let config = json!({ "containers": [
            { "name": "agent", "image": "agent", "env": [{ "name": DRAINER_PORT, "value": "7" }] },
            { "name": "server" },
            { "name": "own", "lifecycle": { "preStop": { "sleep": { "seconds": 5 } } } },
        ]});
        let pod = made(config, &json!({})).unwrap();
        let end = |n: usize| pod.pointer(&format!("/containers/{n}/lifecycle/preStop")).cloned();
        let drain = Some(json!({ "httpGet": { "path": "/terminate", "port": 7 } }));
        assert_eq!((end(0), end(1)), (drain.clone(), drain));
        assert_eq!(end(2), Some(json!({ "sleep": { "seconds": 5 } })));
        assert_eq!(pod.pointer("/terminationGracePeriodSeconds"), Some(&json!(120)));
        assert_eq!(pod.pointer("/containers/0/image"), Some(&json!("agent")));
        assert_eq!(pod.pointer("/containers/1/image"), Some(&json!("gantry:1")));
    }

    #[test]
    fn the_agent_is_told_whose_it_is() {
        let told = |env: Value| {
            let mut pod = json!({ "containers": [{ "name": "server" }, { "name": "agent", "env": env }] });
            name_server(&mut pod, "shop");
            pod.pointer("/containers/1/env").cloned().unwrap()
        };
        let shop = json!({ "name": SERVER, "value": "shop" });
        assert_eq!(
            told(json!([{ "name": "A", "value": "1" }])),
            json!([{ "name": "A", "value": "1" }, shop])
        );
        let other = json!([{ "name": SERVER, "value": "other" }]);
        assert_eq!(told(other.clone()), other, "what a configuration says stays");
    }

    #[test]
    fn what_the_pod_says_stays() {
        let over = json!({ "podSpec": { "terminationGracePeriodSeconds": 5, "securityContext": { "runAsUser": 7 } } });
        let pod = made(json!({ "containers": [{ "name": "server" }] }), &over).unwrap();
        assert_eq!(pod.pointer("/terminationGracePeriodSeconds"), Some(&json!(5)));
        assert_eq!(pod.pointer("/securityContext"), Some(&json!({ "runAsUser": 7 })));
        assert_eq!(pod.pointer("/containers/0/lifecycle"), None, "without an agent nothing is drained");
    }
}
