//! Kafka settings of the gateway: flags, the mounted `kafka.json`, and the Secrets that Seldon's variables name.

use super::{objects::Build, services::GATEWAY};
use crate::{
    conditions::{ConditionUpdate, Progress},
    workload::merge,
};
use gantry_api::SeldonConfiguration;
use serde_json::{Value, json};

/// Whether the gateway has the Kafka settings; absent without brokers.
pub(super) const CONDITION: &str = "KafkaConfigured";
pub(super) const CONFIG_MAP: &str = "seldon-kafka";
pub(super) const FILE: &str = "kafka.json";
const DIRECTORY: &str = "/etc/gantry/kafka";
/// Flags of a gateway that has its own Kafka settings.
const OWN_FLAGS: [&str; 3] = ["--kafka-config-path", "--kafka-broker", "--kafka"];
const NAMESPACE_FLAG: &str = "--kafka-namespace";
/// Readable by the group of the pod.
const SECRET_MODE: u32 = 0o440;

/// A Secret that a variable names, and the variables with the paths of its files.
struct SecretFiles {
    variable: &'static str,
    volume: &'static str,
    /// Path variables with the default name of the file; without a default only where the variable is set.
    paths: &'static [(&'static str, Option<&'static str>)],
}

const SECRETS: [SecretFiles; 3] = [
    SecretFiles {
        variable: "KAFKA_CLIENT_TLS_SECRET_NAME",
        volume: "kafka-client-tls",
        paths: &[
            ("KAFKA_CLIENT_TLS_CRT_LOCATION", Some("tls.crt")),
            ("KAFKA_CLIENT_TLS_KEY_LOCATION", Some("tls.key")),
            ("KAFKA_CLIENT_TLS_CA_LOCATION", None),
        ],
    },
    SecretFiles {
        variable: "KAFKA_BROKER_TLS_SECRET_NAME",
        volume: "kafka-broker-tls",
        paths: &[("KAFKA_BROKER_TLS_CA_LOCATION", Some("ca.crt"))],
    },
    SecretFiles {
        variable: "KAFKA_CLIENT_SASL_SECRET_NAME",
        volume: "kafka-sasl",
        paths: &[("KAFKA_CLIENT_SASL_PASSWORD_LOCATION", Some("password"))],
    },
];

/// The brokers of the settings.
fn brokers(settings: &SeldonConfiguration) -> Option<String> {
    let kafka = settings.kafka_config.as_ref()?;
    let of_consumer = || kafka.consumer.get("bootstrap.servers").map(ToString::to_string);
    let is_set = |text: &String| !text.trim().is_empty();
    kafka.bootstrap_servers.clone().filter(is_set).or_else(of_consumer).filter(is_set)
}

/// How the gateway gets the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    /// The pod spec has its own flags.
    Own,
    Flags,
    /// Gantry's image, built without a Kafka client.
    NoClient,
    /// No container runs `gantry gateway`.
    NoContainer,
}

fn delivery(pod: &Value, has_client: bool) -> Delivery {
    let Some(container) = gateway_container(pod) else { return Delivery::NoContainer };
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    if texts(container, "args").any(|argument| OWN_FLAGS.contains(&flag(argument))) {
        Delivery::Own
    } else if image.is_empty() && !has_client {
        // Only the gateway knows what another image contains.
        Delivery::NoClient
    } else {
        Delivery::Flags
    }
}

fn gateway_container(pod: &Value) -> Option<&Value> {
    let containers = pod.get("containers").and_then(Value::as_array)?;
    containers.iter().find(|container| {
        texts(container, "command").chain(texts(container, "args")).any(|word| word == "gateway")
    })
}

fn texts<'a>(container: &'a Value, list: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    container.get(list).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn flag(argument: &str) -> &str {
    argument.split_once('=').map_or(argument, |(name, _)| name)
}

/// The pod of the gateway with the settings, where there are brokers; `pod` is still without the default image.
pub(super) fn with_settings(build: &Build<'_>, settings: &SeldonConfiguration, pod: Value) -> Value {
    if brokers(settings).is_none() || delivery(&pod, build.has_kafka_client) != Delivery::Flags {
        return pod;
    }
    let Some(container) = gateway_container(&pod) else { return pod };
    let mut args: Vec<&str> = texts(container, "args").collect();
    let path = format!("--kafka-config-path={DIRECTORY}/{FILE}");
    let namespace = format!("{NAMESPACE_FLAG}={}", build.key.namespace);
    args.push(&path);
    // Part of the topics' names.
    if !args.iter().any(|argument| flag(argument) == NAMESPACE_FLAG) {
        args.push(&namespace);
    }
    let mut mounts = vec![json!({ "name": "kafka-config", "mountPath": DIRECTORY, "readOnly": true })];
    let mut volumes = vec![json!({ "name": "kafka-config", "configMap": { "name": CONFIG_MAP } })];
    let mut variables = Vec::new();
    for secret in &SECRETS {
        let Some(name) = variable(container, secret.variable) else { continue };
        let directory = format!("/etc/gantry/{}", secret.volume);
        let before = variables.len();
        for (path, default) in secret.paths {
            let Some(file) = variable(container, path).or(*default) else { continue };
            if !is_mounted(container, file) {
                let file = file.rsplit('/').next().unwrap_or(file);
                variables.push(json!({ "name": path, "value": format!("{directory}/{file}") }));
            }
        }
        if variables.len() > before {
            mounts.push(json!({ "name": secret.volume, "mountPath": directory, "readOnly": true }));
            let source = json!({ "secretName": name, "defaultMode": SECRET_MODE });
            volumes.push(json!({ "name": secret.volume, "secret": source }));
        }
    }
    let over = json!({
        "containers": [{
            "name": container.get("name"), "args": args, "env": variables, "volumeMounts": mounts,
            // `kubectl describe` shows why a gateway without a client, or with invalid settings, does not start.
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }],
        "volumes": volumes,
    });
    merge(&pod, &over)
}

/// The value of a variable that is set.
pub(super) fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let mut variables = container.get("env").and_then(Value::as_array)?.iter();
    let found = variables.find(|variable| variable.get("name").and_then(Value::as_str) == Some(name))?;
    found.get("value").and_then(Value::as_str).filter(|value| !value.trim().is_empty())
}

/// Whether a volume of the pod spec covers a path.
fn is_mounted(container: &Value, path: &str) -> bool {
    let mounts = container.get("volumeMounts").and_then(Value::as_array).into_iter().flatten();
    let mut mounts = mounts.filter_map(|mount| mount.get("mountPath").and_then(Value::as_str));
    mounts
        .any(|mount| path.strip_prefix(mount.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/')))
}

/// The condition of the runtime; `None` without brokers, or without Gantry's gateway.
pub(super) fn condition(
    build: &Build<'_>,
    settings: &SeldonConfiguration,
    pod: &Value,
) -> Option<ConditionUpdate> {
    let brokers = brokers(settings)?;
    let failed =
        |reason: &str, message: String| Some(ConditionUpdate::new(false, reason, message, Progress::Stalled));
    match delivery(pod, build.has_kafka_client) {
        Delivery::Own => {
            let message = format!("{GATEWAY} has its own Kafka flags; kafkaConfig is not used");
            Some(ConditionUpdate::new(true, "OwnFlags", message, Progress::Settled))
        }
        Delivery::Flags => {
            let message = format!("{GATEWAY} is configured with the brokers {brokers}");
            Some(ConditionUpdate::new(true, CONDITION, message, Progress::Settled))
        }
        Delivery::NoClient => failed(
            "NoKafkaClient",
            format!(
                "kafkaConfig has brokers ({brokers}), and the image {} has no Kafka client: pipelines are not consumed from \
                 topics. Use an image built with --features kafka, or remove bootstrap.servers",
                build.image
            ),
        ),
        Delivery::NoContainer => failed(
            "NoGatewayContainer",
            format!(
                "kafkaConfig has brokers ({brokers}), and no container of {GATEWAY} has the argument `gateway`: pipelines are \
                 not consumed from topics. Add it to args, or remove bootstrap.servers"
            ),
        ),
    }
}
