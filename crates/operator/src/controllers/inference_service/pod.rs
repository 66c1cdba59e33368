//! Pod specs of predictor, transformer and explainer.

use super::{runtime::Runtime, template::Placeholders};
use crate::workload::merge;
use gantry_api::kserve::{PredictorModel, PredictorSpec};
use serde_json::{Map, Value, json};

pub(super) const MAIN: &str = "kserve-container";
pub(super) const TRANSFORMER: &str = "transformer-container";
pub(super) const MODEL_DIR: &str = "/mnt/models";
/// The annotation of a runtime with the kind of its server.
const SERVER_TYPE: &str = "serving.kserve.io/server-type";
/// Fields of a runtime that pods inherit.
const RUNTIME_FIELDS: [&str; 8] = [
    "nodeSelector",
    "affinity",
    "tolerations",
    "volumes",
    "imagePullSecrets",
    "schedulerName",
    "resourceClaims",
    "hostIPC",
];

pub(super) fn name_of(container: &Value) -> &str {
    container.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn array(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The pod of a model: the runtime's container with the model's changes, then the other containers of both.
pub(super) fn model_pod(
    predictor: &PredictorSpec,
    model: &PredictorModel,
    runtime: &Runtime,
    placeholders: &Placeholders<'_>,
) -> Result<Value, String> {
    let base = runtime.spec.containers.iter().find(|c| name_of(c) == MAIN).ok_or_else(|| {
        format!("runtime {} has no container {MAIN}: name its model server so", runtime.name)
    })?;
    let own = Value::Object(model.framework.container.clone());
    let mut main = merge(base, &own);
    let args: Vec<Value> = array(base.get("args")).iter().chain(array(own.get("args"))).cloned().collect();
    set(&mut main, "args", if args.is_empty() { Value::Null } else { args.into() });
    set(&mut main, "name", MAIN.into());
    let mut main = placeholders
        .fill_value(&main)
        .map_err(|error| format!("container {MAIN} of runtime {}: {error}", runtime.name))?;
    set_image_tag(&mut main, model.framework.runtime_version.as_deref(), runtime);
    add_env(&mut main, "INFERENCE_SERVICE_NAME", placeholders.name);
    apply_server_type(&mut main, model, runtime, placeholders.name);

    let mut containers = vec![main];
    let others = runtime.spec.containers.iter().filter(|c| name_of(c) != MAIN);
    for other in others {
        let filled = placeholders
            .fill_value(other)
            .map_err(|error| format!("container {} of runtime {}: {error}", name_of(other), runtime.name))?;
        let own = predictor.containers.iter().find(|c| name_of(c) == name_of(other));
        containers.push(own.map_or_else(|| filled.clone(), |own| merge(&filled, own)));
    }
    let is_new = |c: &&Value| !runtime.spec.containers.iter().any(|known| name_of(known) == name_of(c));
    containers.extend(predictor.containers.iter().filter(is_new).cloned());
    for container in &mut containers {
        add_env(container, "INFERENCE_SERVICE_NAME", placeholders.name);
    }
    // The transformer follows the model server, as in KServe.
    if let Some(index) = containers.iter().position(|c| name_of(c) == TRANSFORMER) {
        let transformer = containers.remove(index);
        containers.insert(1.min(containers.len()), transformer);
    }
    let inherited = RUNTIME_FIELDS.iter().filter_map(|field| Some((*field, runtime.spec.pod.get(*field)?)));
    let base: Map<String, Value> =
        inherited.map(|(field, value)| (field.to_owned(), value.clone())).collect();
    let mut pod = merge(&Value::Object(base), &Value::Object(predictor.pod.clone()));
    set(&mut pod, "containers", containers.into());
    Ok(pod)
}

/// The pod of custom containers; `main` is the name of the first one if it has none.
pub(super) fn custom_pod(
    containers: &[Value],
    pod: &Map<String, Value>,
    main: &str,
    resources: &Value,
) -> Value {
    let mut containers = containers.to_vec();
    if let Some(index) = containers.iter().position(|c| name_of(c) == main) {
        let first = containers.remove(index);
        containers.insert(0, first);
    } else if let Some(first) = containers.first_mut()
        && name_of(first).is_empty()
    {
        set(first, "name", main.into());
    }
    if let Some(first) = containers.first_mut() {
        let merged = merge(&json!({ "resources": resources }), first);
        *first = merged;
    }
    let mut spec = Value::Object(pod.clone());
    set(&mut spec, "containers", containers.into());
    spec
}

pub(super) fn has_flag(args: &[Value], flag: &str) -> bool {
    let is_flag =
        |arg: &str| arg.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
    args.iter().filter_map(Value::as_str).any(is_flag)
}

/// Adds a flag with its value unless the container has the flag.
pub(super) fn add_flag(container: &mut Value, flag: &str, value: &str) {
    let args = array(container.get("args"));
    if !has_flag(args, flag) {
        let args: Vec<Value> = args.iter().cloned().chain([flag.into(), value.into()]).collect();
        set(container, "args", args.into());
    }
}

/// Adds a variable unless the container has it.
pub(super) fn add_env(container: &mut Value, name: &str, value: &str) {
    add_variable(container, json!({ "name": name, "value": value }));
}

/// Adds a variable with a value from elsewhere unless the container has it.
pub(super) fn add_env_source(container: &mut Value, name: &str, source: &Value) {
    add_variable(container, json!({ "name": name, "valueFrom": source }));
}

fn add_variable(container: &mut Value, added: Value) {
    let env = array(container.get("env"));
    if !env.iter().any(|variable| name_of(variable) == name_of(&added)) {
        let env: Vec<Value> = env.iter().cloned().chain([added]).collect();
        set(container, "env", env.into());
    }
}

pub(super) fn set(object: &mut Value, field: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        if value.is_null() {
            fields.remove(field);
        } else {
            fields.insert(field.into(), value);
        }
    }
}

/// The kind of a runtime's server.
fn server_type(runtime: &Runtime) -> &str {
    let annotated = runtime.annotations.get(SERVER_TYPE).map(String::as_str);
    annotated.unwrap_or(match runtime.name.as_str() {
        "kserve-mlserver" => "mlserver",
        "kserve-tritonserver" => "triton",
        "kserve-torchserve" => "torchserve",
        "kserve-tensorflow-serving" => "tensorflow-serving",
        "kserve-huggingfaceserver" => "huggingfaceserver",
        _ => "",
    })
}

/// Labels that tell a server what to load; its container refers to them by placeholders.
pub(super) fn server_labels(
    model: &PredictorModel,
    runtime: &Runtime,
) -> Option<(&'static str, &'static str)> {
    let is_v2 = model.framework.protocol_version.as_deref() == Some("v2");
    match (server_type(runtime), model.model_format.name.as_str()) {
        ("mlserver", "sklearn") => Some(("modelClass", "mlserver_sklearn.SKLearnModel")),
        ("mlserver", "xgboost") => Some(("modelClass", "mlserver_xgboost.XGBoostModel")),
        ("mlserver", "lightgbm") => Some(("modelClass", "mlserver_lightgbm.LightGBMModel")),
        ("mlserver", "mlflow") => Some(("modelClass", "mlserver_mlflow.MLflowRuntime")),
        ("torchserve", _) if is_v2 => Some(("serviceEnvelope", "kservev2")),
        ("torchserve", _) => Some(("serviceEnvelope", "kserve")),
        _ => None,
    }
}

fn apply_server_type(main: &mut Value, model: &PredictorModel, runtime: &Runtime, name: &str) {
    let framework = &model.framework;
    let has_storage = framework.storage_uri.is_some() || framework.storage.is_some();
    match server_type(runtime) {
        "mlserver" => {
            if has_storage {
                add_env(main, "MLSERVER_MODEL_NAME", name);
                add_env(main, "MLSERVER_MODEL_URI", MODEL_DIR);
            } else {
                add_env(main, "MLSERVER_LOAD_MODELS_AT_STARTUP", "false");
            }
        }
        "torchserve" => {
            add_env(main, "PROTOCOL_VERSION", framework.protocol_version.as_deref().unwrap_or("v1"));
        }
        "triton" if !has_storage => {
            let args =
                array(main.get("args")).iter().cloned().chain(["--model-control-mode=explicit".into()]);
            let args: Vec<Value> = args.collect();
            set(main, "args", args.into());
        }
        _ => {}
    }
}

/// `runtimeVersion` replaces the tag; without it, an image for GPUs is used where the server has one.
fn set_image_tag(main: &mut Value, version: Option<&str>, runtime: &Runtime) {
    let Some(image) = main.get("image").and_then(Value::as_str).map(str::to_owned) else { return };
    if image.contains('@') {
        return;
    }
    let after_slash = image.rfind('/').map_or(0, |at| at + 1);
    let (repository, tag) =
        image.get(after_slash..).and_then(|name| name.rfind(':')).map_or((image.as_str(), None), |at| {
            let at = after_slash + at;
            (image.get(..at).unwrap_or_default(), image.get(at + 1..))
        });
    let has_gpu = main.pointer("/resources/limits").and_then(Value::as_object).is_some_and(|limits| {
        limits.keys().any(|k| k == "nvidia.com/gpu" || k.starts_with("nvidia.com/mig"))
    });
    let server = server_type(runtime);
    let has_gpu_image = ["tensorflow-serving", "torchserve", "huggingfaceserver"].contains(&server);
    let changed = match (version, tag) {
        (Some(version), _) => format!("{repository}:{version}"),
        (None, Some(tag)) if has_gpu && has_gpu_image && !tag.ends_with("-gpu") => {
            format!("{repository}:{tag}-gpu")
        }
        (None, Some(tag)) if server == "vllmserver" && !has_gpu && !repository.ends_with("-cpu") => {
            format!("{repository}-cpu:{tag}")
        }
        _ => return,
    };
    set(main, "image", changed.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn runtime(server: &str, spec: Value) -> Runtime {
        let annotations = BTreeMap::from([(SERVER_TYPE.to_owned(), server.to_owned())]);
        let spec = serde_json::from_value(spec).unwrap();
        Runtime { name: "rt".into(), is_cluster_wide: true, created: 1, annotations, spec }
    }

    fn pod(predictor: Value, runtime: &Runtime) -> Result<Value, String> {
        let predictor: PredictorSpec = serde_json::from_value(predictor).unwrap();
        let model = predictor.model().unwrap();
        let none = BTreeMap::new();
        let placeholders = Placeholders {
            name: "iris",
            namespace: "ml",
            ingress_domain: "example.com",
            labels: &none,
            annotations: &none,
        };
        model_pod(&predictor, &model, runtime, &placeholders)
    }

    #[test]
    fn model_is_merged_over_the_runtime() {
        let runtime = runtime(
            "",
            json!({
                "containers": [
                    { "name": "sidecar", "image": "side" },
                    { "name": "kserve-container", "image": "server:1", "args": ["--name={{.Name}}"],
                      "env": [{ "name": "A", "value": "1" }], "resources": { "requests": { "cpu": "1" } } },
                ],
                "nodeSelector": { "a": "1" }, "tolerations": [{ "key": "x" }],
            }),
        );
        let spec = json!({
            "serviceAccountName": "sa", "nodeSelector": { "b": "2" },
            "containers": [{ "name": "transformer-container", "image": "t" }],
            "model": {
                "modelFormat": { "name": "onnx" }, "args": ["--more"], "env": [{ "name": "A", "value": "2" }],
                "resources": { "limits": { "memory": "1Gi" } },
            },
        });
        let pod = pod(spec, &runtime).unwrap();
        let name = json!([{ "name": "INFERENCE_SERVICE_NAME", "value": "iris" }]);
        let expected = json!({
            "serviceAccountName": "sa", "nodeSelector": { "a": "1", "b": "2" }, "tolerations": [{ "key": "x" }],
            "containers": [
                { "name": "kserve-container", "image": "server:1", "args": ["--name=iris", "--more"],
                  "env": [{ "name": "A", "value": "2" }, { "name": "INFERENCE_SERVICE_NAME", "value": "iris" }],
                  "resources": { "requests": { "cpu": "1" }, "limits": { "memory": "1Gi" } } },
                { "name": "transformer-container", "image": "t", "env": name },
                { "name": "sidecar", "image": "side", "env": name },
            ],
        });
        assert_eq!(pod, expected);
    }

    #[test]
    fn runtime_without_its_container_or_with_unknown_placeholders_is_an_error() {
        let odd = runtime("", json!({ "containers": [{ "name": "server" }] }));
        let model = json!({ "model": { "modelFormat": { "name": "onnx" } } });
        assert!(pod(model.clone(), &odd).unwrap_err().contains("no container kserve-container"));
        let odd =
            runtime("", json!({ "containers": [{ "name": "kserve-container", "args": ["{{ .Uid }}"] }] }));
        assert!(pod(model, &odd).unwrap_err().contains("{{ .Uid }} is not known"));
    }

    #[test]
    fn image_tag_follows_version_and_gpu() {
        let gpu = json!({ "limits": { "nvidia.com/gpu": 1 } });
        for (server, image, version, resources, expected) in [
            ("", "a/b:1", None, json!({}), "a/b:1"),
            ("", "a/b:1", Some("2"), json!({}), "a/b:2"),
            ("", "host:5000/b", Some("2"), json!({}), "host:5000/b:2"),
            ("", "a/b@sha256:00", Some("2"), json!({}), "a/b@sha256:00"),
            ("torchserve", "t:1", None, gpu.clone(), "t:1-gpu"),
            ("torchserve", "t:1-gpu", None, gpu.clone(), "t:1-gpu"),
            ("torchserve", "t:1", Some("9"), gpu.clone(), "t:9"),
            ("mlserver", "m:1", None, gpu.clone(), "m:1"),
            ("vllmserver", "v:1", None, json!({}), "v-cpu:1"),
            ("vllmserver", "v:1", None, gpu, "v:1"),
        ] {
            let runtime = runtime(server, json!({ "containers": [{ "name": MAIN, "image": image }] }));
            let mut model = json!({ "modelFormat": { "name": "x" }, "resources": resources });
            if let Some(version) = version {
                model["runtimeVersion"] = version.into();
            }
            let pod = pod(json!({ "model": model }), &runtime).unwrap();
            assert_eq!(pod["containers"][0]["image"], expected, "{server} {image} {version:?}");
        }
    }

    #[test]
    fn custom_containers_get_name_and_resources() {
        let resources = json!({ "limits": { "cpu": "1" } });
        let pod = custom_pod(&[json!({ "image": "x" })], &Map::new(), MAIN, &resources);
        let expected = json!({ "containers": [{ "name": MAIN, "image": "x", "resources": resources }] });
        assert_eq!(pod, expected);
        let two = [json!({ "name": "side" }), json!({ "name": MAIN })];
        let pod = custom_pod(&two, &Map::new(), MAIN, &json!({}));
        assert_eq!(pod["containers"][0]["name"], MAIN);
    }
}
