//! Snapshots of the desired objects.

use super::*;

fn shown(objects: &[Desired]) -> Value {
    let bare = |object: &Desired| {
        let mut manifest = object.manifest();
        let annotations =
            manifest.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut).unwrap();
        annotations.remove(APPLIED);
        manifest
    };
    objects.iter().map(bare).collect()
}

fn built(spec: Value, config: &Custom<ServerConfig>, deployments: bool) -> Value {
    let object = server(spec);
    let spec = object.spec.as_ref().unwrap();
    let objects = objects(&Build {
        key: &Key::new("ml", "a"),
        uid: "u1",
        spec,
        config: config.spec.as_ref().unwrap(),
        image: "gantry:1",
        workload: if deployments { ResourceKind::DEPLOYMENT } else { ResourceKind::STATEFUL_SET },
        replicas: spec.scaling().unwrap().replicas,
        is_autoscaled: false,
        reads_secrets: false,
        has_certificates: false,
        inherited: Inherited::of(&object.metadata).over(&Inherited::of(&config.metadata)),
        annotations: BTreeMap::new(),
        config_maps: &BTreeMap::from([("seldon-tracing".to_owned(), "0123".to_owned())]),
    });
    shown(&objects)
}

#[test]
fn objects_of_a_small_server() {
    insta::assert_json_snapshot!(built(json!({}), &installed("gantry"), false));
}

#[test]
fn objects_of_a_server_with_everything() {
    let spec = json!({
        "replicas": 2, "minReplicas": 1, "maxReplicas": 4,
        "capabilities": ["onnx"], "extraCapabilities": ["mine"],
        "statefulSetPersistentVolumeClaimRetentionPolicy": { "whenDeleted": "Delete", "whenScaled": "Retain" },
        "podSpec": {
            "nodeSelector": { "disk": "ssd" },
            "tolerations": [{ "key": "gpu", "operator": "Exists" }],
            "containers": [
                { "name": "mlserver", "image": "mine:2", "env": [{ "name": "MLSERVER_PARALLEL_WORKERS", "value": "4" }] },
                { "name": "more", "image": "more:1" },
            ],
        },
    });
    insta::assert_json_snapshot!(built(spec, &installed("mlserver"), false));
}

#[test]
fn objects_of_a_server_that_is_a_deployment() {
    let spec = json!({ "replicas": 2, "deploymentStrategy": { "type": "Recreate" } });
    insta::assert_json_snapshot!(built(spec, &small(), true));
}

#[test]
fn objects_of_a_server_with_triton() {
    insta::assert_json_snapshot!(built(json!({}), &installed("triton"), false));
}
