//! Settings of the components, and the `ConfigMaps` that contain them.

use super::kafka;
use gantry_api::{SeldonConfiguration, TracingConfig};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// The runtime's settings over those of its configuration, field by field; maps are merged, lists are appended, and topic
/// settings come from one of the two.
pub(super) fn merged(config: &SeldonConfiguration, runtime: &SeldonConfiguration) -> SeldonConfiguration {
    let json = |settings: &SeldonConfiguration| serde_json::to_value(settings).unwrap_or_default();
    let mut all = json(config);
    lay("", &mut all, &json(runtime));
    // Merged settings are settings.
    serde_json::from_value(all).unwrap_or_else(|_| runtime.clone())
}

fn lay(field: &str, at: &mut Value, over: &Value) {
    match (&mut *at, over) {
        (_, Value::Null) => {}
        (Value::Object(fields), Value::Object(over)) if field != "topics" => {
            for (name, value) in over {
                lay(name, fields.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(list), Value::Array(over)) => {
            for item in over {
                if !list.contains(item) {
                    list.push(item.clone());
                }
            }
        }
        (_, over) => *at = over.clone(),
    }
}

/// `ConfigMaps` by name, each with its files and variables.
pub(super) fn config_maps(settings: &SeldonConfiguration) -> [(&'static str, BTreeMap<String, String>); 4] {
    let file = |name: &str, text: String| BTreeMap::from([(name.to_owned(), text)]);
    let tracing = settings.tracing_config.clone().unwrap_or_default();
    let mut tracing_map = variables(&tracing);
    tracing_map.insert("tracing.json".into(), text(&tracing));
    [
        ("seldon-agent", file("agent.yaml", text(&settings.agent_config.clone().unwrap_or_default()))),
        (kafka::CONFIG_MAP, file(kafka::FILE, text(&settings.kafka_config.clone().unwrap_or_default()))),
        ("seldon-scaling", file("scaling.yaml", text(&settings.scaling_config.clone().unwrap_or_default()))),
        ("seldon-tracing", tracing_map),
    ]
}

fn text(settings: &impl Serialize) -> String {
    serde_json::to_string_pretty(settings).unwrap_or_default() + "\n"
}

/// OpenTelemetry's variables; without tracing there is no endpoint.
fn variables(tracing: &TracingConfig) -> BTreeMap<String, String> {
    let is_on = tracing.disable != Some(true);
    let enabled = |value: &Option<String>| value.clone().filter(|v| is_on && !v.is_empty());
    let url = |address: String| if address.contains("://") { address } else { format!("http://{address}") };
    let mut variables = BTreeMap::from([("OTEL_JAVAAGENT_ENABLED".to_owned(), is_on.to_string())]);
    let mut set = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            variables.insert(name.to_owned(), value);
        }
    };
    set("OTEL_EXPORTER_OTLP_ENDPOINT", enabled(&tracing.otel_exporter_endpoint).map(url));
    set("OTEL_EXPORTER_OTLP_PROTOCOL", enabled(&tracing.otel_exporter_protocol));
    set("OTEL_TRACES_SAMPLER_ARG", enabled(&tracing.ratio));
    variables
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn settings(value: Value) -> SeldonConfiguration {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn runtime_settings_override_config_field_by_field() {
        let config = settings(json!({
            "kafkaConfig": {
                "bootstrap.servers": "a:9092", "topicPrefix": "seldon",
                "consumer": {"x": 1, "y": "2"}, "topics": {"replicationFactor": 1, "numPartitions": 4},
            },
            "agentConfig": {"rclone": {"config_secrets": ["one"], "config": ["c"]}},
            "tracingConfig": {"disable": true, "ratio": "1"},
            "serviceConfig": {"serviceType": "ClusterIP", "grpcServicePrefix": "http2-"},
            "scalingConfig": {"servers": {"enabled": true}},
        }));
        let runtime = settings(json!({
            "kafkaConfig": {"bootstrap.servers": "b:9092", "consumer": {"y": 3, "z": 4}, "topics": {"numPartitions": 8}},
            "agentConfig": {"rclone": {"config_secrets": ["two", "one"]}},
            "tracingConfig": {"disable": false},
            "scalingConfig": {"servers": {"scaleDownPackingEnabled": true}, "models": {"enabled": true}},
        }));
        let expected = settings(json!({
            "kafkaConfig": {
                "bootstrap.servers": "b:9092", "topicPrefix": "seldon",
                "consumer": {"x": 1, "y": 3, "z": 4}, "topics": {"numPartitions": 8},
            },
            "agentConfig": {"rclone": {"config_secrets": ["one", "two"], "config": ["c"]}},
            "tracingConfig": {"disable": false, "ratio": "1"},
            "serviceConfig": {"serviceType": "ClusterIP", "grpcServicePrefix": "http2-"},
            "scalingConfig": {"servers": {"enabled": true, "scaleDownPackingEnabled": true}, "models": {"enabled": true}},
        }));
        assert_eq!(merged(&config, &runtime), expected);
        assert_eq!(merged(&expected, &runtime), expected, "twice is as once");
        assert_eq!(merged(&config, &SeldonConfiguration::default()), config);
    }

    #[test]
    fn a_collector_is_named_only_where_something_is_traced() {
        let of = |value| variables(&serde_json::from_value(value).unwrap());
        let on = of(
            json!({"otelExporterEndpoint": "collector:4317", "otelExporterProtocol": "grpc", "ratio": "0.5"}),
        );
        assert_eq!(on.get("OTEL_EXPORTER_OTLP_ENDPOINT").map(String::as_str), Some("http://collector:4317"));
        assert_eq!(on.get("OTEL_TRACES_SAMPLER_ARG").map(String::as_str), Some("0.5"));
        let off = of(json!({"disable": true, "otelExporterEndpoint": "https://collector:4317"}));
        assert_eq!(off, BTreeMap::from([("OTEL_JAVAAGENT_ENABLED".into(), "false".into())]));
    }
}
