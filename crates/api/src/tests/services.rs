//! InferenceServices as models of a scheduler.

use super::errors;
use crate::{INFERENCE_SERVICE, Model, Object, kserve::InferenceServiceSpec, parse};

fn service(spec: &str) -> String {
    format!(
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata:\n  name: iris\nspec:\n  predictor:\n{spec}"
    )
}

const ONNX: &str = "    model:\n      modelFormat: {name: onnx}\n      storageUri: s3://b/iris\n";

fn converted(text: &str) -> Model {
    match parse("iris.yaml", text).unwrap().remove(0).object {
        Object::Model(model) => *model,
        other => panic!("{other:?}"),
    }
}

#[test]
fn inference_services_become_models() {
    for (spec, expected) in [
        (ONNX.to_owned(), "s3://b/iris [\"onnx\"] replicas 1 min 1 memory -"),
        (
            "    xgboost: {storageUri: gs://b/x, resources: {limits: {memory: 1Gi, cpu: 1}}}\n".into(),
            "gs://b/x [\"xgboost\"] replicas 1 min 1 memory 1073741824",
        ),
        (
            "    lightgbm: {storageUri: ./m, protocolVersion: v2, resources: {requests: {memory: 1k}}}\n    minReplicas: 0\n"
                .into(),
            "./m [\"lightgbm\"] replicas 1 min 0 memory 1000",
        ),
        (
            format!("{ONNX}    minReplicas: 3\n    maxReplicas: 5\n"),
            "s3://b/iris [\"onnx\"] replicas 3 min 1 memory -",
        ),
        ("    sklearn: {storageUri: /m}\n".into(), "/m [\"sklearn\"] replicas 1 min 1 memory -"),
        (
            "    storageUris: [{uri: s3://b/one}]\n    model: {modelFormat: {name: onnx, version: '1'}, runtime: any}\n".into(),
            "s3://b/one [\"onnx\"] replicas 1 min 1 memory -",
        ),
    ] {
        let model = converted(&service(&spec));
        let shown = format!(
            "{} {:?} replicas {} min {} memory {}",
            model.spec.storage_uri,
            model.spec.requirements,
            model.spec.replicas.unwrap(),
            model.spec.min_replicas.unwrap(),
            model.spec.memory.as_ref().map_or("-".into(), |m| m.bytes().to_string()),
        );
        assert_eq!(shown, expected, "{spec}");
        assert_eq!(model.metadata.namespace.as_deref(), Some("default"));
        let again = Model::from_proto(&model.to_proto());
        assert_eq!((again.kind.as_str(), &again.metadata.namespace), (INFERENCE_SERVICE, &model.metadata.namespace));
        assert_eq!(again.metadata.generation, None);
        let document = InferenceServiceSpec::from(&again.spec);
        let same = document.to_model(&model.metadata).unwrap();
        assert_eq!(same.spec.requirements, model.spec.requirements);
        assert_eq!((same.spec.min_replicas, same.spec.replicas), (model.spec.min_replicas, model.spec.replicas), "{spec}");
        let meta = model.to_proto().meta.unwrap();
        assert_eq!(meta.kind.as_deref(), Some(INFERENCE_SERVICE));
        assert_eq!(meta.kubernetes_meta.unwrap().generation, 0, "no object of an API server");
    }
}

#[test]
fn fields_for_a_cluster_are_reported_at_once() {
    let container = "    containers: [{name: kserve-container, image: x}]\n";
    for (spec, expected) in [
        (
            container.to_owned(),
            "iris.yaml:7: spec.predictor.containers has containers, which needs Standard mode on Kubernetes: use model with modelFormat and \
             storageUri",
        ),
        (
            format!("{ONNX}  transformer:\n{container}  explainer:\n{container}"),
            "iris.yaml:11: spec.transformer is a container, which needs Standard mode on Kubernetes: remove it to serve the predictor alone, or \
             use a Pipeline\niris.yaml:13: spec.explainer is a container, which needs Standard mode on Kubernetes: remove it to serve the \
             predictor alone",
        ),
        (
            "    model:\n      modelFormat: {name: pmml}\n      storageUri: pvc://claim/m\n      image: x\n"
                .into(),
            "iris.yaml:9: spec.predictor.model.storageUri is a volume or an image of the cluster (pvc://): use a path, s3://, \
             gs://, hf:// or https://\niris.yaml:8: spec.predictor.model.modelFormat.name \"pmml\" has no runtime here, only \
             onnx, xgboost, lightgbm, sklearn, mlflow, huggingface, tensorflow, pytorch, tensorrt: convert the model to \
             ONNX\niris.yaml:10: spec.predictor.model.image changes the runtime's container, which needs Standard mode on Kubernetes: remove it",
        ),
        (
            "    onnx:\n      storageUri: /m\n      resources: {limits: {nvidia.com/gpu: 1}}\n".into(),
            "iris.yaml:9: spec.predictor.onnx.resources.limits.nvidia.com/gpu is a GPU, which no runtime here uses: remove it \
             to serve on CPUs",
        ),
        (
            "    model: {modelFormat: {name: onnx}}\n".into(),
            "iris.yaml:7: spec.predictor.model.storageUri is missing: set it to the location of the model",
        ),
        (
            "    model: {modelFormat: {name: onnx}, storage: {key: a, path: m}}\n".into(),
            "iris.yaml:7: spec.predictor.model.storage refers to a Secret of the cluster: use storageUri, with credentials in \
             the environment",
        ),
        (
            format!("{ONNX}    canaryTrafficPercent: 20\n"),
            "iris.yaml:10: spec.predictor.canaryTrafficPercent splits traffic between revisions, which needs Standard mode on Kubernetes: \
             remove it",
        ),
    ] {
        assert_eq!(errors(&service(&spec)), expected, "{spec}");
    }
}
