use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

fn none(_: &str) -> Option<String> {
    None
}

fn with(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    let pairs: HashMap<String, String> =
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Settings::with_broker("b:9092", "", &|name| pairs.get(name).cloned())
}

#[test]
fn defaults_are_those_of_seldon() {
    let settings = Settings::parse(r#"{"bootstrap.servers":"kafka:9092"}"#, "", &none).unwrap();
    assert_eq!(settings, Settings::with_broker("kafka:9092", "default", &none).unwrap());
    assert_eq!((settings.partitions, settings.replication), (1, 1));
    assert_eq!(settings.consumer.session_timeout, Duration::from_secs(6));
    assert!(settings.consumer.from_earliest);
    assert_eq!((settings.producer.linger, settings.producer.max_bytes), (Duration::ZERO, 1_000_000_000));
    assert_eq!(settings.topics.errors(), "seldon.default.errors.errors");
    assert_eq!(settings.security, Security::default());
    assert!(settings.warnings.is_empty());
}

#[test]
fn file_of_seldon_is_read() {
    let text = r#"{
        "bootstrap.servers": "a:9092,b:9092", "consumerGroupIdPrefix": "blue", "topicPrefix": "team", "debug": "all",
        "consumer": {"session.timeout.ms": "9000", "auto.offset.reset": "latest", "message.max.bytes": 1000000000,
                     "topic.metadata.propagation.max.ms": 300000, "client.rack": "x"},
        "producer": {"linger.ms": 5, "message.max.bytes": "2000000", "acks": "all"},
        "streams": {"replication.factor": 3, "state.dir": "/tmp"},
        "topics": {"replicationFactor": "3", "numPartitions": 4},
        "worker": {"maxInFlight": 8, "retryTimeoutMs": 1000}
    }"#;
    let settings = Settings::parse(text, "ml", &none).unwrap();
    assert_eq!(settings.group("p"), "blue-ml-seldon-dataflow-p");
    assert_eq!(settings.topics.errors(), "team.ml.errors.errors");
    assert_eq!((settings.partitions, settings.replication), (4, 3));
    assert_eq!(settings.consumer.session_timeout, Duration::from_secs(9));
    assert!(!settings.consumer.from_earliest);
    assert_eq!(
        (settings.producer.linger, settings.producer.max_bytes),
        (Duration::from_millis(5), 2_000_000)
    );
    assert_eq!((settings.worker.max_in_flight, settings.worker.retry_timeout()), (8, Duration::from_secs(1)));
    assert_eq!(
        settings.warnings,
        [
            "debug has no effect: set the log level instead",
            "consumer.client.rack has no effect",
            "streams.state.dir has no effect"
        ]
    );
}

#[test]
fn invalid_settings_are_named() {
    let table = [
        ("{", "kafka.json is invalid"),
        ("{}", "no bootstrap.servers"),
        (r#"{"bootstrap.servers":" "}"#, "no bootstrap.servers"),
        (r#"{"bootstrap.servers":"a:9092,b"}"#, "bootstrap.servers is \"b\": use host:port"),
        (r#"{"bootstrap.servers":"b:9092","topicPrefiks":"x"}"#, "unknown field `topicPrefiks`"),
        (r#"{"bootstrap.servers":"b:9092","worker":{"x":1}}"#, "unknown field `x`"),
        (r#"{"bootstrap.servers":"b:9092","worker":{"maxInFlight":0}}"#, "at least 1"),
        (r#"{"bootstrap.servers":"b:9092","topicPrefix":"a b"}"#, "topicPrefix"),
        (
            r#"{"bootstrap.servers":"b:9092","topics":{"numPartitions":"many"}}"#,
            "topics.numPartitions is \"many\"",
        ),
        (r#"{"bootstrap.servers":"b:9092","topics":{"numPartitions":0}}"#, "out of range"),
        (
            r#"{"bootstrap.servers":"b:9092","consumer":{"auto.offset.reset":"never"}}"#,
            "consumer.auto.offset.reset",
        ),
        (
            r#"{"bootstrap.servers":"b:9092","producer":{"compression.type":"zstd"}}"#,
            "producer.compression.type",
        ),
    ];
    for (text, message) in table {
        let error = Settings::parse(text, "", &none).unwrap_err().to_string();
        assert!(error.contains(message), "{text}: {error}");
    }
    let missing = Settings::read(Path::new("/nonexistent/kafka.json"), "", &none).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/kafka.json"));
}

#[test]
fn environment_configures_tls_and_sasl() {
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    std::fs::write(&password, "s3cret\n").unwrap();
    let settings = with(&[
        ("KAFKA_CLIENT_SECURITY_PROTOCOL", "SASL_SSL"),
        ("KAFKA_BROKER_TLS_CA_LOCATION", "/ca.crt"),
        ("KAFKA_CLIENT_TLS_CRT_LOCATION", "/tls.crt"),
        ("KAFKA_CLIENT_TLS_KEY_LOCATION", "/tls.key"),
        ("KAFKA_CLIENT_SASL_USERNAME", "gantry"),
        ("KAFKA_CLIENT_SASL_PASSWORD_LOCATION", password.to_str().unwrap()),
    ]);
    let security = settings.unwrap().security;
    let identity = Some(("/tls.crt".into(), "/tls.key".into()));
    assert_eq!(security.tls, Some(Tls { ca: Some("/ca.crt".into()), identity }));
    let sasl = security.sasl.unwrap();
    assert_eq!((sasl.mechanism, sasl.password.0.as_str()), (Mechanism::ScramSha512, "s3cret"));
    assert!(!format!("{sasl:?}").contains("s3cret"));
}

#[test]
fn invalid_environment_is_named() {
    let table: [(&[(&str, &str)], &str); 7] = [
        (&[("KAFKA_CLIENT_SECURITY_PROTOCOL", "TLS")], "use PLAINTEXT, SSL"),
        (&[("KAFKA_SECURITY_PROTOCOL", "SSL"), ("KAFKA_CLIENT_TLS_CRT_LOCATION", "/c")], "belong together"),
        (&[("KAFKA_CLIENT_SECURITY_PROTOCOL", "SASL_SSL")], "KAFKA_CLIENT_SASL_USERNAME"),
        (
            &[("KAFKA_CLIENT_SECURITY_PROTOCOL", "SASL_SSL"), ("KAFKA_CLIENT_SASL_MECHANISM", "OAUTHBEARER")],
            "use PLAIN, SCRAM",
        ),
        (
            &[
                ("KAFKA_CLIENT_SECURITY_PROTOCOL", "SASL_PLAINTEXT"),
                ("KAFKA_CLIENT_SASL_USERNAME", "u"),
                ("KAFKA_CLIENT_SASL_PASSWORD_LOCATION", "/nonexistent/password"),
            ],
            "/nonexistent/password",
        ),
        (&[("KAFKA_BROKER_TLS_ENDPOINT_IDENTIFICATION_ALGORITHM", "none")], "only https"),
        (&[("KAFKA_BROKER_TLS_SECRET_NAME", "ca")], "KAFKA_BROKER_TLS_CA_LOCATION"),
    ];
    for (pairs, message) in table {
        let error = with(pairs).unwrap_err().to_string();
        assert!(error.contains(message), "{pairs:?}: {error}");
    }
}

proptest! {
    #[test]
    fn arbitrary_text_is_no_panic(text in "\\PC{0,80}") {
        let _ = Settings::parse(&text, "", &none);
    }

    #[test]
    fn numbers_and_texts_are_the_same(partitions in 1i64..10_000) {
        let of = |value: String| {
            let text = format!(r#"{{"bootstrap.servers":"b:9092","topics":{{"numPartitions":{value}}}}}"#);
            Settings::parse(&text, "", &none).unwrap().partitions
        };
        prop_assert_eq!(i64::from(of(partitions.to_string())), partitions);
        prop_assert_eq!(i64::from(of(format!("\"{partitions}\""))), partitions);
    }
}
