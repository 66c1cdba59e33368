//! Issued certificates in pods, and the order in which running pods get them.
//!
//! ```text
//! scheduler    plaintext ──▶ TLS and plaintext ───────────────────────────────▶ TLS
//! gateway, servers             plaintext ──scheduler is rolled out──▶ TLS  ──rolled out──┘
//! ```
//!
//! At every moment each pod reaches the scheduler, so that an upgrade loses no replica and no route.

use super::{Rollout, merge};
use crate::{
    caches::Caches,
    certificates::{AGENT, BUNDLE, GATEWAY, ITEM, SCHEDULER, agent_item, certificate_file, key_file},
    cluster::{Key, OwnedObject, ResourceKind},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

const VOLUME: &str = "gantry-tls";
const DIRECTORY: &str = "/etc/gantry/tls";
/// Readable by the group of the pod.
const MODE: u32 = 0o440;
const ALLOW_PLAINTEXT: &str = "--allow-plaintext";
/// Interval of reviews while pods are being moved to TLS.
pub const REVIEW_INTERVAL: Duration = Duration::from_secs(5);
/// Variables of certificates that a pod brings itself.
const OWN: [&str; 2] = ["GANTRY_TLS_CERT", "GANTRY_TLS_CA"];
const SCHEDULER_WORKLOAD: &str = "seldon-scheduler";
const WORKLOADS: [ResourceKind; 2] = [ResourceKind::STATEFUL_SET, ResourceKind::DEPLOYMENT];

/// Which ports a scheduler with certificates opens beyond its own pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Those with TLS only.
    Tls,
    /// Also those without, while other pods still need them.
    TlsAndPlaintext,
}

/// The certificates that a pod gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    Scheduler(Ports),
    Gateway,
    /// The agent of a Server.
    Agent(&'a str),
}

impl Part<'_> {
    /// The command of its container.
    const fn command(self) -> &'static str {
        match self {
            Self::Scheduler(_) => "scheduler",
            Self::Gateway => "gateway",
            Self::Agent(_) => "agent",
        }
    }

    const fn secret(self) -> &'static str {
        match self {
            Self::Scheduler(_) => SCHEDULER,
            Self::Gateway => GATEWAY,
            Self::Agent(_) => AGENT,
        }
    }

    const fn variables(self) -> [(&'static str, &'static str); 3] {
        match self {
            Self::Scheduler(_) => [
                ("GANTRY_TLS_CERT", "tls.crt"),
                ("GANTRY_TLS_KEY", "tls.key"),
                ("GANTRY_TLS_CLIENT_CA", BUNDLE),
            ],
            Self::Gateway | Self::Agent(_) => [
                ("GANTRY_TLS_CA", BUNDLE),
                ("GANTRY_TLS_CLIENT_CERT", "tls.crt"),
                ("GANTRY_TLS_CLIENT_KEY", "tls.key"),
            ],
        }
    }
}

/// The pod with certificates. Pods of other software, and those with certificates of their own, stay as they are.
pub fn mount(mut pod: Value, part: Part<'_>) -> Value {
    let containers = pod.get_mut("containers").and_then(Value::as_array_mut);
    let Some(container) = containers.into_iter().flatten().find(|container| is_command(container, part))
    else {
        return pod;
    };
    let env = container.get("env").and_then(Value::as_array);
    let has_own =
        |name: &&str| env.is_some_and(|env| env.iter().any(|v| v.get("name") == Some(&json!(name))));
    if OWN.iter().any(has_own) {
        return pod;
    }
    let mut env: Vec<Value> = part
        .variables()
        .into_iter()
        .map(|(name, file)| json!({ "name": name, "value": format!("{DIRECTORY}/{file}") }))
        .collect();
    if matches!(part, Part::Scheduler(_)) {
        env.push(json!({ "name": "GANTRY_ROLE_OF_UNMARKED_CERTIFICATES", "value": "none" }));
    }
    let args: Vec<String> = args(container)
        .filter(|argument| part != Part::Scheduler(Ports::Tls) || *argument != ALLOW_PLAINTEXT)
        .map(|argument| argument.replace("seldon-scheduler:9004", "seldon-scheduler:9044"))
        .collect();
    let mount = json!({ "name": VOLUME, "mountPath": DIRECTORY, "readOnly": true });
    *container = merge(container, &json!({ "args": args, "env": env, "volumeMounts": [mount] }));
    let item = match part {
        Part::Scheduler(_) | Part::Gateway => ITEM.to_owned(),
        Part::Agent(server) => agent_item(server),
    };
    let path = |key: String, path: &str| json!({ "key": key, "path": path });
    let items = [
        path(BUNDLE.into(), BUNDLE),
        path(certificate_file(&item), "tls.crt"),
        path(key_file(&item), "tls.key"),
    ];
    let source = json!({ "secretName": part.secret(), "defaultMode": MODE, "items": items });
    merge(&pod, &json!({ "volumes": [{ "name": VOLUME, "secret": source }] }))
}

/// Whether pods of this spec can have issued certificates.
pub fn is_for(pod: &Value, part: Part<'_>) -> bool {
    let containers = pod.get("containers").and_then(Value::as_array);
    containers.into_iter().flatten().any(|container| is_command(container, part))
}

fn is_command(container: &Value, part: Part<'_>) -> bool {
    container.get("command").is_none() && args(container).next() == Some(part.command())
}

fn args(container: &Value) -> impl Iterator<Item = &str> {
    container.get("args").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Whether the pods of a workload get issued certificates.
pub fn are_mounted(live: &OwnedObject) -> bool {
    let volumes = live.data.pointer("/spec/template/spec/volumes").and_then(Value::as_array);
    let is_ours = |volume: &Value| {
        let secret = volume.pointer("/secret/secretName").and_then(Value::as_str);
        secret.is_some_and(|secret| [SCHEDULER, GATEWAY, AGENT].contains(&secret))
    };
    volumes.into_iter().flatten().any(is_ours)
}

fn allows_plaintext(live: &OwnedObject) -> bool {
    let containers = live.data.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    containers
        .into_iter()
        .flatten()
        .any(|container| args(container).any(|argument| argument == ALLOW_PLAINTEXT))
}

/// Whether every pod has the template.
fn is_rolled_out(live: &OwnedObject) -> bool {
    let kind = ResourceKind::DEPLOYMENT;
    let rollout = Rollout::of(
        kind,
        Some(live),
        live.data.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1),
    );
    rollout.is_done() && rollout.is_replaced()
}

/// The scheduler's workload in a namespace.
pub(crate) fn live_scheduler(caches: &Caches, namespace: &str) -> Option<Arc<OwnedObject>> {
    let key = Key::new(namespace, SCHEDULER_WORKLOAD);
    WORKLOADS.into_iter().find_map(|kind| caches.owned(kind).get(&key))
}

/// The workloads of a namespace that connect to its scheduler.
pub(crate) fn live_clients(caches: &Caches, namespace: &str) -> Vec<Arc<OwnedObject>> {
    let all = WORKLOADS.into_iter().flat_map(|kind| caches.owned(kind).in_namespace(namespace));
    all.filter(|live| live.metadata.name.as_deref() != Some(SCHEDULER_WORKLOAD) && connects(live)).collect()
}

/// Servers and components of a runtime; InferenceServices and Algorithms do not connect to a scheduler.
fn connects(live: &OwnedObject) -> bool {
    live.controller().is_some_and(|(kind, _)| ["Server", "SeldonRuntime"].contains(&kind))
}

/// The ports that the scheduler of a namespace opens, from the pods that run.
pub fn scheduler_ports(scheduler: Option<&OwnedObject>, clients: &[Arc<OwnedObject>]) -> Ports {
    let is_moved = |live: &Arc<OwnedObject>| are_mounted(live) && is_rolled_out(live);
    let is_closed = match scheduler {
        // A new scheduler: pods that run without certificates need the plaintext ports.
        None => clients.iter().all(|live| are_mounted(live)),
        // Never opened again: a Server that is rolled out later has certificates.
        Some(live) if are_mounted(live) => !allows_plaintext(live) || clients.iter().all(is_moved),
        Some(_) => false,
    };
    if is_closed { Ports::Tls } else { Ports::TlsAndPlaintext }
}

/// Whether the pods of a gateway or Server get certificates: never before the scheduler accepts them.
pub fn has_certificates(own: Option<&OwnedObject>, scheduler: Option<&OwnedObject>) -> bool {
    match (own, scheduler) {
        (Some(own), _) if are_mounted(own) => true,
        (Some(_), None) => false,
        (Some(_), Some(scheduler)) => are_mounted(scheduler) && is_rolled_out(scheduler),
        (None, None) => true,
        (None, Some(scheduler)) => are_mounted(scheduler),
    }
}

#[cfg(test)]
mod tests;
