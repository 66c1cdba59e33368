//! Snapshots of the desired objects.

use super::*;

fn built(spec: Value, config: &Custom<SeldonConfig>) -> Value {
    let object = runtime(spec);
    let objects = objects(&Build {
        key: &Key::new("ml", "seldon"),
        uid: "u1",
        spec: object.spec.as_ref().unwrap(),
        config: config.spec.as_ref().unwrap(),
        image: "gantry:1",
        has_kafka_client: true,
        counts: None,
        autoscaled: &BTreeSet::new(),
        agent_secrets: &[],
        certificates: None,
        inherited: Inherited::of(&object.metadata).over(&Inherited::of(&config.metadata)),
        annotations: BTreeMap::new(),
    });
    let bare = |object: &Desired| {
        let mut manifest = object.manifest();
        let annotations =
            manifest.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut).unwrap();
        annotations.remove(APPLIED);
        manifest
    };
    objects.unwrap().iter().map(bare).collect()
}

#[test]
fn objects_of_the_configuration_that_is_installed() {
    insta::assert_json_snapshot!(built(json!({}), &installed()));
}

#[test]
fn objects_with_overrides_and_without_a_component() {
    let spec = json!({
        "overrides": [
            { "name": "seldon-gateway", "replicas": 3, "serviceType": "NodePort", "podSpec": {
                "nodeSelector": { "disk": "ssd" }, "containers": [{ "name": "g", "image": "gateway:2" }],
            }},
            { "name": "seldon-scheduler", "replicas": 2, "serviceType": "" },
            { "name": "my-helper", "disable": true },
        ],
        "config": {
            "serviceConfig": { "serviceType": "ClusterIP", "grpcServicePrefix": "http2-" },
            "agentConfig": { "rclone": { "config_secrets": ["minio"] } },
            "tracingConfig": { "otelExporterEndpoint": "collector:4317", "ratio": "0.1" },
            "kafkaConfig": { "bootstrap.servers": "kafka:9092", "consumer": { "session.timeout.ms": 6000 } },
        },
    });
    insta::assert_json_snapshot!(built(spec, &config(small())));
}
