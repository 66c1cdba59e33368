//! The agent beside a model server: logs and batches requests on a port of its own.

use super::{
    component::ComponentKind,
    config::Config,
    pod::{TRANSFORMER, add_env, name_of, set},
};
use crate::{cluster::Key, workload::merge};
use gantry_api::kserve::{BatcherSpec, ComponentSpec, LoggerSpec};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const AGENT: &str = "agent";
/// The command of the image.
const COMMAND: &str = "kserve-agent";
/// Where requests arrive.
const PORT: u16 = 9081;
const CA_VOLUME: &str = "agent-ca-bundle";
/// Where the agent reads the certificates of sinks.
const CA_DIR: &str = "/etc/tls/logger";
/// Seconds for a request, where the spec has no timeout: a logger is not meant to end requests.
const REQUEST_TIMEOUT: i64 = 600;

/// A field of the spec that cannot be acted on, with the remedy, or an invalid value.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AgentError {
    NotSupported { field: String, remedy: &'static str },
    Invalid(String),
}

/// The surroundings of an agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgentSidecar<'a> {
    pub config: &'a Config,
    /// Our own image.
    pub image: &'a str,
    pub service: &'a Key,
    pub kind: ComponentKind,
    pub spec: &'a ComponentSpec,
    /// Of the pod.
    pub labels: &'a BTreeMap<String, String>,
    pub annotations: &'a BTreeMap<String, String>,
    pub is_knative: bool,
}

/// The port of the agent, if the component has one.
pub(super) fn port(spec: &ComponentSpec) -> Option<u16> {
    (spec.logger.is_some() || spec.batcher.is_some()).then_some(PORT)
}

/// The container that receives requests: the transformer beside the model server, else the first one.
pub(super) fn front_container(pod: &Value) -> Option<&Value> {
    let containers = pod.get("containers").and_then(Value::as_array)?;
    containers.iter().find(|container| name_of(container) == TRANSFORMER).or_else(|| containers.first())
}

impl AgentSidecar<'_> {
    /// Adds the agent to the pod of a component with a logger or a batcher.
    pub(super) fn add_to(&self, pod: &mut Value) -> Result<(), AgentError> {
        if port(self.spec).is_none() {
            return Ok(());
        }
        let mut args: Vec<String> = [COMMAND, "--host=0.0.0.0"].map(str::to_owned).to_vec();
        if let Some(batcher) = &self.spec.batcher {
            args.extend(self.batcher(batcher)?);
        }
        if let Some(logger) = &self.spec.logger {
            args.extend(self.logger(logger)?);
        }
        let containers =
            pod.get("containers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if containers.iter().any(|container| name_of(container) == AGENT) {
            return Ok(());
        }
        let front = front_container(pod).cloned().unwrap_or_default();
        let component_port = front.pointer("/ports/0/containerPort").and_then(Value::as_u64).unwrap_or(8080);
        args.extend(["--component-port".into(), component_port.to_string()]);
        let timeout = self.spec.timeout.filter(|seconds| *seconds > 0).unwrap_or(REQUEST_TIMEOUT);
        args.extend(["--request-timeout".into(), timeout.to_string()]);
        let probe = probe(&front, component_port);
        let path = probe.as_ref().and_then(|probe| probe.pointer("/httpGet/path")).cloned();
        let resources = &self.config.agent;
        let mut agent = json!({
            "name": AGENT,
            "image": self.image,
            "args": args,
            "ports": [{ "name": self.port_name(&front), "containerPort": PORT, "protocol": "TCP" }],
            "resources": {
                "requests": { "cpu": resources.cpu_request, "memory": resources.memory_request },
                "limits": { "cpu": resources.cpu_limit, "memory": resources.memory_limit },
            },
            "readinessProbe": { "httpGet": {
                "path": path.unwrap_or_else(|| "/".into()),
                "port": PORT,
                "scheme": "HTTP",
                "httpHeaders": [{ "name": "K-Network-Probe", "value": "queue" }],
            } },
            "terminationMessagePolicy": "FallbackToLogsOnError",
        });
        if let Some(probe) = probe {
            add_env(&mut agent, "SERVING_READINESS_PROBE", &probe.to_string());
        }
        if let Some(context) = pod.pointer("/containers/0/securityContext") {
            set(&mut agent, "securityContext", context.clone());
        }
        let bundle = &self.config.logger.ca_bundle;
        if self.spec.logger.is_some() && !bundle.is_empty() {
            let mount = json!({ "name": CA_VOLUME, "mountPath": CA_DIR, "readOnly": true });
            set(&mut agent, "volumeMounts", json!([mount]));
            let source = json!({ "name": bundle, "optional": true });
            *pod = merge(pod, &json!({ "volumes": [{ "name": CA_VOLUME, "configMap": source }] }));
        }
        if let Some(containers) = pod.get_mut("containers").and_then(Value::as_array_mut) {
            if self.is_knative {
                // Requests enter a pod of Knative by its one container with a port, which is the one that is probed.
                for container in containers.iter_mut() {
                    set(container, "ports", Value::Null);
                    set(container, "readinessProbe", Value::Null);
                }
            }
            containers.push(agent);
        }
        Ok(())
    }

    /// Knative takes the protocol from the name.
    fn port_name(&self, front: &Value) -> &'static str {
        let name = front.pointer("/ports/0/name").and_then(Value::as_str).unwrap_or_default();
        match self.is_knative {
            false => "agent-port",
            true if name.contains("h2c") || name.contains("grpc") => "h2c",
            true => "http1",
        }
    }

    fn batcher(&self, batcher: &BatcherSpec) -> Result<Vec<String>, AgentError> {
        let defaults = &self.config.batcher;
        let mut args = vec!["--enable-batcher".to_owned()];
        for (field, flag, own, default) in [
            ("maxBatchSize", "--max-batchsize", batcher.max_batch_size, defaults.max_batch_size),
            ("maxLatency", "--max-latency", batcher.max_latency, defaults.max_latency),
            ("timeout", "--batch-timeout", batcher.timeout, 0),
        ] {
            match own {
                Some(value) if value < 1 => {
                    let path = format!("spec.{}.batcher.{field}", self.kind.as_str());
                    return Err(AgentError::Invalid(format!("{path} is {value}: use at least 1")));
                }
                Some(value) => args.extend([flag.to_owned(), value.to_string()]),
                None if default > 0 => args.extend([flag.to_owned(), default.to_string()]),
                None => {}
            }
        }
        Ok(args)
    }

    fn logger(&self, logger: &LoggerSpec) -> Result<Vec<String>, AgentError> {
        let path = format!("spec.{}.logger", self.kind.as_str());
        for (field, is_set) in [
            ("storage", logger.storage.is_some()),
            ("marshallerUrl", logger.marshaller_url.is_some()),
            ("batchSize", logger.batch_size.is_some()),
            ("batchInterval", logger.batch_interval.is_some()),
        ] {
            if is_set {
                let remedy = "remove it; events are sent to logger.url";
                return Err(AgentError::NotSupported { field: format!("{path}.{field}"), remedy });
            }
        }
        let config = &self.config.logger;
        if config.tls_skip_verify {
            let field = "tlsSkipVerify in the key logger of inferenceservice-config".to_owned();
            return Err(AgentError::NotSupported {
                field,
                remedy: "trust the sink's certificate with caBundle",
            });
        }
        let url = logger.url.as_deref().filter(|url| !url.is_empty()).unwrap_or(&config.default_url);
        if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(AgentError::Invalid(format!("{path}.url is {url}: use http:// or https://")));
        }
        let mode = logger.mode.as_deref().unwrap_or("all");
        if !["all", "request", "response"].contains(&mode) {
            return Err(AgentError::Invalid(format!("{path}.mode is {mode}: use all, request or response")));
        }
        let endpoint = self.labels.get("endpoint").map(String::as_str).unwrap_or_default();
        let mut args = Vec::new();
        for (flag, value) in [
            ("--log-url", url),
            ("--log-mode", mode),
            ("--inference-service", &self.service.name),
            ("--namespace", &self.service.namespace),
            ("--endpoint", endpoint),
            ("--component", self.kind.as_str()),
        ] {
            args.extend([flag.to_owned(), value.to_owned()]);
        }
        if !logger.metadata_headers.is_empty() {
            args.extend(["--metadata-headers".to_owned(), logger.metadata_headers.join(",")]);
        }
        let pairs = logger.metadata_annotations.iter();
        for (name, value) in pairs.filter_map(|name| Some((name, self.annotations.get(name)?))) {
            args.extend(["--metadata-annotations".to_owned(), format!("{name}={value}")]);
        }
        if !config.ca_cert_file.is_empty() {
            args.extend(["--logger-ca-cert-file".to_owned(), config.ca_cert_file.clone()]);
        }
        Ok(args)
    }
}

/// The probe of the container for the agent, with the number of its port; without one, the port is open. A command runs in
/// its container only: the kubelet runs it there.
fn probe(front: &Value, component_port: u64) -> Option<Value> {
    let Some(own) = front.get("readinessProbe") else {
        return Some(json!({ "tcpSocket": { "port": component_port } }));
    };
    let mut probe = own.clone();
    for action in ["httpGet", "tcpSocket", "grpc"] {
        let Some(action) = probe.get_mut(action) else { continue };
        if let Some(name) = action.get("port").and_then(Value::as_str).map(str::to_owned) {
            let ports = front.get("ports").and_then(Value::as_array).into_iter().flatten();
            let number =
                ports.filter(|port| name_of(port) == name).find_map(|port| port.get("containerPort"));
            let number = number.cloned().or_else(|| name.parse::<u16>().ok().map(Value::from));
            set(action, "port", number.unwrap_or_else(|| component_port.into()));
        }
        return Some(probe);
    }
    None
}
