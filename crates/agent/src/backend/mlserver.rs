//! MLServer layout: the model's files with a `model-settings.json`.

use super::{
    Arranged, ServerEnvironment, copy_tree,
    files::{numbered, read_small},
};
use crate::model_server::{LoadError, LoadOrder};
use gantry_proto::scheduler::{
    MlServerModelSettings, ModelRuntimeInfo, ModelSpec, model_runtime_info::ModelRuntimeInfo as Info,
    model_spec::ModelSpec as Companion,
};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

const SETTINGS: &str = "model-settings.json";
/// Gantry's own parameters, not passed to the server.
const OWN_PREFIX: &str = "gantry.";

/// Requirement, implementation class, default file names.
type Runtime = (&'static str, &'static str, &'static [&'static str]);

const RUNTIMES: &[Runtime] = &[
    ("sklearn", "mlserver_sklearn.SKLearnModel", &["model.joblib", "model.pickle", "model.pkl"]),
    ("xgboost", "mlserver_xgboost.XGBoostModel", &["model.json", "model.ubj", "model.bst"]),
    ("lightgbm", "mlserver_lightgbm.LightGBMModel", &["model.bst", "model.txt"]),
    ("mlflow", "mlserver_mlflow.MLflowRuntime", &[]),
    ("alibi-detect", "mlserver_alibi_detect.AlibiDetectRuntime", &[]),
    ("alibi-explain", "mlserver_alibi_explain.AlibiExplainRuntime", &[]),
];

pub(super) fn arrange(
    order: &LoadOrder,
    environment: &ServerEnvironment,
    target: &Path,
) -> Result<Arranged, LoadError> {
    let spec = order.spec();
    let base = base(order, &spec);
    copy_tree(&base, target, |_| true)?;
    let file = target.join(SETTINGS);
    let mut settings = match read_small(&file)? {
        Some(text) => match serde_json::from_str(&text) {
            Ok(Value::Object(settings)) => settings,
            Ok(_) => return Err(format!("{SETTINGS} is not a JSON object").into()),
            Err(e) => return Err(format!("{SETTINGS} is not valid JSON: {e}").into()),
        },
        None => generated(&spec, target)?,
    };
    settings.insert("name".into(), order.name.clone().into());
    let parameters = object(&mut settings, "parameters")?;
    parameters.insert("version".into(), order.definition.version.to_string().into());
    let own = order.parameters.iter().filter(|(name, _)| !name.starts_with(OWN_PREFIX));
    let mut extra: Vec<(String, Value)> =
        own.map(|(name, value)| (name.clone(), value.clone().into())).collect();
    let companion = companion(&spec, environment);
    let calls_back = companion.is_some();
    extra.extend(companion.into_iter().flatten());
    if !extra.is_empty() {
        object(parameters, "extra")?.extend(extra);
    }
    if calls_back {
        // With workers, calls back to the explained model would deadlock.
        settings.insert("parallel_workers".into(), 0.into());
    }
    let workers = settings.get("parallel_workers").and_then(Value::as_u64).map(|n| n as u32);
    let platform = settings.get("implementation").and_then(Value::as_str).unwrap_or_default().to_owned();
    let text = serde_json::to_string_pretty(&settings).map_err(|e| e.to_string())?;
    std::fs::write(&file, text)
        .map_err(|e| LoadError::transient(format!("{SETTINGS} cannot be written: {e}")))?;
    let parallel_workers = workers.or(environment.parallel_workers).unwrap_or(1);
    let info = Info::Mlserver(MlServerModelSettings { parallel_workers });
    Ok(Arranged { platform, runtime_info: Some(ModelRuntimeInfo { model_runtime_info: Some(info) }) })
}

/// The folder with the settings: artifact root, model directory, requested version, highest version; else the model
/// directory.
fn base(order: &LoadOrder, spec: &ModelSpec) -> PathBuf {
    let has = |directory: &Path| directory.join(SETTINGS).is_file();
    if has(&order.root) {
        return order.root.clone();
    }
    if has(&order.directory) {
        return order.directory.clone();
    }
    let folders = numbered(&order.root);
    let requested = spec.artifact_version.and_then(|v| folders.iter().find(|(n, _)| *n == v));
    let chosen = requested.or(folders.last().filter(|(_, name)| has(&order.root.join(name))));
    chosen.map_or_else(|| order.directory.clone(), |(_, name)| order.root.join(name))
}

/// Default settings for known requirements.
fn generated(spec: &ModelSpec, target: &Path) -> Result<Map<String, Value>, String> {
    let asks = |name: &str| spec.requirements.iter().any(|r| r.trim() == name);
    let (implementation, uri) = if let Some((_, class, files)) = RUNTIMES.iter().find(|(name, ..)| asks(name))
    {
        ((*class).to_owned(), format!("./{}", main_file(target, files)))
    } else if asks("python") {
        (python_class(target)?, "./".to_owned())
    } else if asks("huggingface") {
        return Err(format!("a huggingface model needs a {SETTINGS} that sets its task"));
    } else {
        return Err(format!(
            "the model has no {SETTINGS}, and there is no default for requirements [{}]",
            spec.requirements.join(", ")
        ));
    };
    let mut settings = Map::new();
    settings.insert("implementation".into(), implementation.into());
    object(&mut settings, "parameters")?.insert("uri".into(), uri.into());
    Ok(settings)
}

/// The default file, the only file, or the folder.
fn main_file(target: &Path, usual: &[&str]) -> String {
    if usual.is_empty() {
        let mut folders = names(target, |t| t.is_dir());
        let only_a_folder = names(target, |t| t.is_file()).is_empty() && folders.len() == 1;
        return if only_a_folder { folders.pop().unwrap_or_default() } else { String::new() };
    }
    if let Some(found) = usual.iter().find(|f| target.join(f).is_file()) {
        return (*found).to_owned();
    }
    match names(target, |t| t.is_file()).as_slice() {
        [only] => only.clone(),
        _ => String::new(),
    }
}

fn names(target: &Path, wanted: impl Fn(std::fs::FileType) -> bool) -> Vec<String> {
    let entries = std::fs::read_dir(target).into_iter().flatten().flatten();
    let wanted = entries.filter(|e| e.file_type().is_ok_and(&wanted));
    let mut names: Vec<String> = wanted.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Finds the `MLModel` subclass in the folder's Python files. The code is not executed.
fn python_class(target: &Path) -> Result<String, String> {
    for name in names(target, |t| t.is_file()) {
        let Some(module) = name.strip_suffix(".py") else { continue };
        let text = read_small(&target.join(&name))?.unwrap_or_default();
        let class = text.lines().find_map(|line| {
            let (class, bases) = line.strip_prefix("class ")?.split_once('(')?;
            let derives = bases.split([',', ')']).any(|b| matches!(b.trim(), "MLModel" | "mlserver.MLModel"));
            derives.then(|| class.trim().to_owned())
        });
        if let Some(class) = class {
            return Ok(format!("{module}.{class}"));
        }
    }
    Err(format!(
        "a python model needs a {SETTINGS} that names its class, or a .py file with a class that derives from MLModel"
    ))
}

/// Extra parameters of explainers and LLMs; `None` for other models.
fn companion(spec: &ModelSpec, environment: &ServerEnvironment) -> Option<Vec<(String, Value)>> {
    let (model, pipeline, kind) = match spec.model_spec.as_ref()? {
        Companion::Explainer(e) => (&e.model_ref, &e.pipeline_ref, Some(&e.r#type)),
        Companion::Llm(l) => (&l.model_ref, &l.pipeline_ref, None),
    };
    let scheme = if environment.ssl_verify_path.is_some() { "https" } else { "http" };
    let at =
        |kind: &str, name: &String| format!("{scheme}://{}/v2/{kind}/{name}/infer", environment.inference);
    let uri = model.as_ref().map(|m| at("models", m)).or(pipeline.as_ref().map(|p| at("pipelines", p)));
    let mut extra: Vec<(String, Value)> = Vec::new();
    extra.extend(uri.map(|uri| ("infer_uri".to_owned(), uri.into())));
    extra.extend(kind.map(|kind| ("explainer_type".to_owned(), kind.clone().into())));
    let certificate = environment.ssl_verify_path.clone();
    extra.extend(certificate.map(|path| ("ssl_verify_path".to_owned(), path.into())));
    Some(extra)
}

/// The object at a key, created if missing.
fn object<'a>(map: &'a mut Map<String, Value>, key: &str) -> Result<&'a mut Map<String, Value>, String> {
    let value = map.entry(key).or_insert_with(|| Value::Object(Map::new()));
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().ok_or_else(|| format!("{key} in {SETTINGS} is not an object"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::copies;
    use gantry_proto::{
        agent::ModelVersion,
        scheduler::{ExplainerSpec, Model, ParameterSpec},
    };
    use serde_json::json;

    fn order(root: &Path, directory: &Path, spec: ModelSpec) -> LoadOrder {
        LoadOrder {
            name: "iris_3".into(),
            directory: directory.into(),
            root: root.into(),
            parameters: spec.parameters.iter().map(|p| (p.name.clone(), p.value.clone())).collect(),
            definition: ModelVersion {
                model: Some(Model { model_spec: Some(spec), ..Default::default() }),
                version: 3,
            },
            autoscaling: false,
        }
    }

    fn asks(requirement: &str) -> ModelSpec {
        ModelSpec { requirements: vec![requirement.into()], ..Default::default() }
    }

    fn arranged(
        files: &[(&str, &str)],
        directory: &str,
        spec: ModelSpec,
    ) -> (Value, Result<Arranged, LoadError>) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        for (name, text) in files {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let target = dir.path().join("target");
        let environment = ServerEnvironment { inference: "mesh:80".into(), ..Default::default() };
        let result = arrange(&order(&root, &root.join(directory), spec), &environment, &target);
        let text = std::fs::read_to_string(target.join(SETTINGS)).unwrap_or("null".into());
        (serde_json::from_str(&text).unwrap_or_default(), result)
    }

    #[test]
    fn arrange_uses_or_generates_settings() {
        type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, ModelSpec, Value);
        let own = r#"{"name": "other", "implementation": "x.Y", "parallel_workers": 4, "parameters": {"uri": "./m"}}"#;
        let custom = "import mlserver\n\nclass Twice(mlserver.MLModel):\n    pass\n";
        let cases: &[Case<'_>] = &[
            (
                &[("model.joblib", "")],
                "",
                asks("sklearn"),
                json!({"implementation": "mlserver_sklearn.SKLearnModel", "name": "iris_3",
                       "parameters": {"uri": "./model.joblib", "version": "3"}}),
            ),
            (
                &[("forest.pkl", "")],
                "",
                asks("sklearn"),
                json!({"implementation": "mlserver_sklearn.SKLearnModel", "name": "iris_3",
                       "parameters": {"uri": "./forest.pkl", "version": "3"}}),
            ),
            (
                &[("forest.pkl", "")],
                "",
                // The last of one name counts, as in Seldon's agent.
                ModelSpec {
                    parameters: [("a", "1"), ("b", "2"), ("a", "3")]
                        .map(|(name, value)| ParameterSpec { name: name.into(), value: value.into() })
                        .into(),
                    ..asks("sklearn")
                },
                json!({"implementation": "mlserver_sklearn.SKLearnModel", "name": "iris_3",
                       "parameters": {"uri": "./forest.pkl", "version": "3", "extra": {"a": "3", "b": "2"}}}),
            ),
            (
                &[("twice.py", custom)],
                "",
                asks("python"),
                json!({"implementation": "twice.Twice", "name": "iris_3",
                       "parameters": {"uri": "./", "version": "3"}}),
            ),
            (
                &[("model-settings.json", own), ("m", "")],
                "",
                asks("anything"),
                json!({"implementation": "x.Y", "name": "iris_3", "parallel_workers": 4,
                       "parameters": {"uri": "./m", "version": "3"}}),
            ),
            (
                &[("README", ""), ("7/model-settings.json", own)],
                "7",
                asks("anything"),
                json!({"implementation": "x.Y", "name": "iris_3", "parallel_workers": 4,
                       "parameters": {"uri": "./m", "version": "3"}}),
            ),
            (
                &[("docs/a", ""), ("2/model-settings.json", "{}"), ("10/model-settings.json", own)],
                "",
                asks("anything"),
                json!({"implementation": "x.Y", "name": "iris_3", "parallel_workers": 4,
                       "parameters": {"uri": "./m", "version": "3"}}),
            ),
            (
                &[("explainer/a", "")],
                "",
                ModelSpec {
                    model_spec: Some(Companion::Explainer(ExplainerSpec {
                        r#type: "anchor_tabular".into(),
                        model_ref: Some("income".into()),
                        pipeline_ref: None,
                    })),
                    ..asks("alibi-explain")
                },
                json!({"implementation": "mlserver_alibi_explain.AlibiExplainRuntime", "name": "iris_3",
                       "parallel_workers": 0, "parameters": {"uri": "./explainer", "version": "3", "extra": {
                           "infer_uri": "http://mesh:80/v2/models/income/infer",
                           "explainer_type": "anchor_tabular"}}}),
            ),
        ];
        for (files, directory, spec, expected) in cases {
            let (settings, result) = arranged(files, directory, spec.clone());
            assert_eq!(&settings, expected, "{files:?}: {result:?}");
            let workers = expected.get("parallel_workers").and_then(Value::as_u64).unwrap_or(1).max(1);
            assert_eq!(copies(result.unwrap().runtime_info.as_ref()), workers);
        }
    }

    #[test]
    fn arrange_errors_state_the_cause() {
        for (files, requirement, expected) in [
            (&[("model.bin", "")][..], "huggingface", "that sets its task"),
            (&[("model.bin", "")], "tensorflow", "there is no default for requirements [tensorflow]"),
            (&[("m.py", "class X:\n")], "python", "a class that derives from MLModel"),
            (&[("model-settings.json", "[]")], "sklearn", "is not a JSON object"),
            (&[("model-settings.json", "{")], "sklearn", "is not valid JSON"),
            (
                &[("model-settings.json", r#"{"parameters": 1}"#)],
                "sklearn",
                "parameters in model-settings.json",
            ),
        ] {
            let error = arranged(files, "", asks(requirement)).1.unwrap_err();
            assert!(error.message.contains(expected) && error.permanent, "{error}");
        }
    }
}
