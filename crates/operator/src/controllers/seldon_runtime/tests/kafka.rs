//! Kafka settings of the gateway.

use super::*;

const BROKERS: &str = "kafka:9092";

/// A configuration with Gantry's gateway and these fields of its container.
fn gateway(container: Value) -> Arc<Custom<SeldonConfig>> {
    let container = merge(&json!({ "name": "gateway", "args": ["gateway", "--linger=3"] }), &container);
    let helper = json!({ "name": "my-helper", "podSpec": { "containers": [{ "name": "h" }] } });
    let gateway = json!({ "name": "seldon-gateway", "podSpec": { "containers": [container] } });
    Arc::new(config(json!({ "components": [gateway, helper] })))
}

fn with_brokers(container: Value, brokers: &str) -> Snapshot {
    let settings = json!({ "config": { "kafkaConfig": {
        "bootstrap.servers": brokers, "topicPrefix": "ours",
        "consumer": { "session.timeout.ms": 9000 }, "topics": { "numPartitions": "4" },
        "worker": { "maxInFlight": 64, "stepTopics": false },
    }}});
    Snapshot { config: Some(gateway(container)), ..snapshot(settings) }
}

fn template(plan: &Plan<PlainStatus>, component: &str) -> Value {
    let deployment = find(plan, ResourceKind::DEPLOYMENT, component).unwrap();
    deployment.body.pointer("/spec/template").cloned().unwrap()
}

fn pod(plan: &Plan<PlainStatus>) -> Value {
    template(plan, "seldon-gateway")["spec"].clone()
}

/// Status and reason of the condition.
fn condition(plan: &Plan<PlainStatus>) -> Option<(String, String)> {
    let conditions = &plan.status.as_ref().unwrap().conditions;
    let found = conditions.iter().find(|c| c.r#type == "KafkaConfigured")?;
    Some((found.status.clone(), found.reason.clone().unwrap()))
}

fn is(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

fn environment(pod: &Value) -> BTreeMap<String, String> {
    let variables = pod.pointer("/containers/0/env").and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |variable: &Value, field: &str| variable[field].as_str().unwrap_or_default().to_owned();
    variables.iter().map(|v| (text(v, "name"), text(v, "value"))).collect()
}

#[test]
fn brokers_reach_the_gateway_in_a_mounted_file() {
    let plan = plan(&with_brokers(json!({}), BROKERS), NOW);
    let pod = pod(&plan);
    assert_eq!(
        pod["containers"][0]["args"],
        json!([
            "gateway",
            "--linger=3",
            "--kafka-config-path=/etc/gantry/kafka/kafka.json",
            "--kafka-namespace=ml"
        ])
    );
    let mount = json!([{ "name": "kafka-config", "mountPath": "/etc/gantry/kafka", "readOnly": true }]);
    assert_eq!(pod["containers"][0]["volumeMounts"], mount);
    assert_eq!(pod["volumes"], json!([{ "name": "kafka-config", "configMap": { "name": "seldon-kafka" } }]));
    assert_eq!(condition(&plan), Some(is("True", "KafkaConfigured")));

    let map = find(&plan, ResourceKind::CONFIG_MAP, "seldon-kafka").unwrap();
    let file = map.body.pointer("/data/kafka.json").and_then(Value::as_str).unwrap();
    let read = gantry_kafka::settings::Settings::parse(file, "ml", &|_| None).unwrap();
    assert_eq!((read.bootstrap_servers.as_str(), read.partitions), (BROKERS, 4));
    assert_eq!(read.consumer.session_timeout, Duration::from_secs(9));
    assert_eq!((read.worker.max_in_flight, read.worker.step_topics), (64, false));
    assert_eq!(read.worker.retry_timeout(), Duration::from_mins(10), "the default");
    assert_eq!(read.warnings, [] as [&str; 0]);
}

#[test]
fn without_brokers_the_gateway_has_no_kafka_flags() {
    for kafka in [json!({}), json!({ "topicPrefix": "ours" }), json!({ "bootstrap.servers": " " })] {
        let plain = snapshot(json!({ "config": { "kafkaConfig": kafka } }));
        let plan = plan(&Snapshot { config: Some(gateway(json!({}))), ..plain }, NOW);
        let expected = json!({ "containers": [{ "name": "gateway", "image": "gantry:1", "args": ["gateway", "--linger=3"] }] });
        assert_eq!((pod(&plan), condition(&plan)), (expected, None));
    }
}

#[test]
fn changed_kafka_settings_replace_the_pods_of_the_gateway_only() {
    let of =
        |brokers: &str, component: &str| template(&plan(&with_brokers(json!({}), brokers), NOW), component);
    assert_ne!(of("a:9092", "seldon-gateway"), of("b:9092", "seldon-gateway"));
    assert_eq!(of("a:9092", "my-helper"), of("b:9092", "my-helper"));
}

#[test]
fn image_without_a_kafka_client_is_reported_and_still_serves() {
    let without = Snapshot { has_kafka_client: false, ..with_brokers(json!({}), BROKERS) };
    let ready = made(without.clone());
    let plan_of = plan(&ready, NOW);
    assert_eq!(pod(&plan_of)["containers"][0]["args"], json!(["gateway", "--linger=3"]));
    assert_eq!(condition(&plan_of), Some(is("False", "NoKafkaClient")));
    let (status, reason, progress, message) = ready_condition(&plan_of);
    assert_eq!((status, reason.as_str(), progress), (ConditionStatus::False, "NoKafkaClient", "stalled"));
    assert!(message.contains("gantry:1") && message.contains("--features kafka"), "{message}");
    // The components come first.
    assert_eq!(ready_condition(&plan(&without, NOW)).1, "ComponentsNotReady");

    // Another image may have a client: its gateway reports what it lacks when it starts.
    let other = with_brokers(json!({ "image": "gantry-kafka:2" }), BROKERS);
    let plan_of = plan(&Snapshot { has_kafka_client: false, ..other }, NOW);
    assert_eq!(condition(&plan_of), Some(is("True", "KafkaConfigured")));
    assert_eq!(pod(&plan_of)["containers"][0]["terminationMessagePolicy"], "FallbackToLogsOnError");

    // The condition goes with the brokers.
    let removed = with_object(&ready, |object| object.spec = runtime(json!({})).spec);
    let plan_of = plan(&removed, NOW);
    assert_eq!((condition(&plan_of), ready_condition(&plan_of).1.as_str()), (None, "RuntimeReady"));
}

#[test]
fn gateway_with_its_own_kafka_flags_keeps_them() {
    for own in ["--kafka-broker=mine:9092", "--kafka-config-path", "--kafka=file.json"] {
        let args = json!(["gateway", own]);
        let plan = plan(&with_brokers(json!({ "args": args }), BROKERS), NOW);
        assert_eq!(pod(&plan)["containers"][0]["args"], args);
        assert_eq!(condition(&plan), Some(is("True", "OwnFlags")));
    }
}

#[test]
fn gateway_without_its_argument_is_reported() {
    let plan_of = plan(&with_brokers(json!({ "args": ["serve"] }), BROKERS), NOW);
    assert_eq!(condition(&plan_of), Some(is("False", "NoGatewayContainer")));
    let by_command = json!({ "command": ["/gantry", "gateway"], "args": ["--linger=1"] });
    assert_eq!(
        condition(&plan(&with_brokers(by_command, BROKERS), NOW)),
        Some(is("True", "KafkaConfigured"))
    );
}

#[test]
fn secrets_of_seldons_variables_are_mounted() {
    let variable = |name: &str, value: &str| json!({ "name": name, "value": value });
    // As Seldon's chart sets them: paths are those at which its own components write the files.
    let env = json!([
        variable("KAFKA_CLIENT_SECURITY_PROTOCOL", "SASL_SSL"),
        variable("KAFKA_CLIENT_TLS_SECRET_NAME", "client"),
        variable("KAFKA_CLIENT_TLS_KEY_LOCATION", "/tmp/certs/kafka/client/user.key"),
        variable("KAFKA_BROKER_TLS_SECRET_NAME", "broker"),
        variable("KAFKA_CLIENT_SASL_SECRET_NAME", "sasl"),
        variable("KAFKA_CLIENT_SASL_PASSWORD_LOCATION", "password"),
    ]);
    let pod_of = |container: Value| pod(&plan(&with_brokers(container, BROKERS), NOW));
    let all = pod_of(json!({ "env": env }));
    let expected = BTreeMap::from(
        [
            ("KAFKA_CLIENT_SECURITY_PROTOCOL", "SASL_SSL"),
            ("KAFKA_CLIENT_TLS_SECRET_NAME", "client"),
            ("KAFKA_CLIENT_TLS_KEY_LOCATION", "/etc/gantry/kafka-client-tls/user.key"),
            ("KAFKA_CLIENT_TLS_CRT_LOCATION", "/etc/gantry/kafka-client-tls/tls.crt"),
            ("KAFKA_BROKER_TLS_SECRET_NAME", "broker"),
            ("KAFKA_BROKER_TLS_CA_LOCATION", "/etc/gantry/kafka-broker-tls/ca.crt"),
            ("KAFKA_CLIENT_SASL_SECRET_NAME", "sasl"),
            ("KAFKA_CLIENT_SASL_PASSWORD_LOCATION", "/etc/gantry/kafka-sasl/password"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    assert_eq!(environment(&all), expected);
    let volumes: Vec<(&str, &str)> = all["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|v| Some((v["name"].as_str()?, v.pointer("/secret/secretName")?.as_str()?)))
        .collect();
    assert_eq!(
        volumes,
        [("kafka-client-tls", "client"), ("kafka-broker-tls", "broker"), ("kafka-sasl", "sasl")]
    );

    // Files that the pod spec mounts stay where they are; empty names are none.
    let own = pod_of(json!({
        "env": [
            variable("KAFKA_CLIENT_SASL_SECRET_NAME", "sasl"),
            variable("KAFKA_CLIENT_SASL_PASSWORD_LOCATION", "/mnt/sasl/password"),
            variable("KAFKA_CLIENT_TLS_SECRET_NAME", ""),
        ],
        "volumeMounts": [{ "name": "mine", "mountPath": "/mnt/sasl" }],
    }));
    assert_eq!(environment(&own)["KAFKA_CLIENT_SASL_PASSWORD_LOCATION"], "/mnt/sasl/password");
    assert_eq!(own["volumes"].as_array().map(Vec::len), Some(1), "{own}");
}

#[test]
fn kept_pods_keep_their_kafka_condition() {
    let pinned = |snapshot: &Snapshot| {
        with_object(snapshot, |object| object.spec = runtime(json!({ "disableAutoUpdate": true })).spec)
    };
    let first = made(pinned(&Snapshot { config: Some(gateway(json!({}))), ..snapshot(json!({})) }));
    let mut newer = Arc::unwrap_or_clone(gateway(json!({})));
    newer.metadata.generation = Some(2);
    let mut spec = newer.spec.clone().unwrap();
    spec.config = serde_json::from_value(json!({ "kafkaConfig": { "bootstrap.servers": BROKERS } })).unwrap();
    newer.spec = Ok(spec);
    let changed = Snapshot { config: Some(Arc::new(newer)), ..first };
    assert_eq!(condition(&plan(&changed, NOW)), None);
}

#[test]
fn installed_gateway_gets_the_settings() {
    let settings = json!({ "config": { "kafkaConfig": { "bootstrap.servers": BROKERS } } });
    let plan = plan(&Snapshot { config: Some(Arc::new(installed())), ..snapshot(settings) }, NOW);
    assert_eq!(condition(&plan), Some(is("True", "KafkaConfigured")));
    let args = pod(&plan)["containers"][0]["args"].as_array().cloned().unwrap();
    assert!(args.contains(&json!("--kafka-config-path=/etc/gantry/kafka/kafka.json")), "{args:?}");
}
