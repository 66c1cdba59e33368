//! Folders of MLServer: `model-settings.json` names the implementation and the file.

use crate::{
    Recognised, Route,
    formats::{self, read_small},
    mlflow,
};
use std::path::Path;

pub(crate) const SETTINGS: &str = "model-settings.json";

/// Implementations whose files Gantry loads itself.
const KNOWN: &[&str] = &[
    "mlserver_sklearn.SKLearnModel",
    "mlserver_xgboost.XGBoostModel",
    "mlserver_lightgbm.LightGBMModel",
    "mlserver_catboost.CatboostModel",
    "mlserver_mlflow.MLflowRuntime",
    "mlserver_onnx.OnnxModel",
];
const FILES: &[&str] = &[
    "model.joblib",
    "model.pickle",
    "model.pkl",
    "model.json",
    "model.ubj",
    "model.bst",
    "model.txt",
    "model.cbm",
    "model.onnx",
];

pub(crate) fn recognise(folder: &Path) -> Recognised {
    let refused = |reason: String| Recognised::refused(folder, "MLServer folder", reason);
    let text = read_small(&folder.join(SETTINGS)).unwrap_or_default();
    let settings: serde_json::Value = match serde_json::from_str(&text) {
        Ok(settings) => settings,
        Err(error) => return refused(format!("{SETTINGS} is not valid JSON: {error}")),
    };
    let implementation =
        settings.get("implementation").and_then(serde_json::Value::as_str).unwrap_or_default();
    if !KNOWN.contains(&implementation) {
        let shown: String = implementation.chars().filter(|c| !c.is_control()).take(80).collect();
        return refused(format!(
            "its implementation {shown} is code for MLServer: run it there, as in examples/mlserver/server.yaml"
        ));
    }
    let uri = settings.pointer("/parameters/uri").and_then(serde_json::Value::as_str);
    let named = uri.map(|uri| uri.trim_start_matches("./")).filter(|uri| !uri.is_empty());
    let file = match named {
        Some(uri) => mlflow::inside(folder, uri),
        None => FILES.iter().map(|file| folder.join(file)).find(|file| file.is_file()),
    };
    let Some(file) = file else {
        return refused(format!("{SETTINGS} names no file of this folder: set parameters.uri"));
    };
    let found = if file.is_dir() { crate::recognise(&file) } else { formats::file(&file) };
    match found {
        Some(found) if !matches!(found.route, Route::Refused(_)) => {
            Recognised { description: format!("MLServer folder, {}", found.description), ..found }
        }
        Some(found) => found,
        None => refused(format!("{} is no model that is known", file.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Native;

    fn found(settings: &str, files: &[(&str, &[u8])]) -> Recognised {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(SETTINGS), settings).unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        recognise(dir.path())
    }

    #[test]
    fn files_of_known_implementations_are_recognised() {
        let pickle = (&b"\x80\x02csklearn.svm\nSVC\n."[..], "model.joblib");
        let sklearn = found(
            r#"{"implementation": "mlserver_sklearn.SKLearnModel", "parameters": {"uri": "./model.joblib"}}"#,
            &[(pickle.1, pickle.0)],
        );
        assert_eq!(sklearn.description, "MLServer folder, scikit-learn joblib file (SVC)");
        let trees = found(
            r#"{"implementation": "mlserver_xgboost.XGBoostModel"}"#,
            &[("model.json", b"{\"learner\":1}")],
        );
        assert_eq!(trees.route, Route::Builtin(Native::Xgboost));
        for (settings, expected) in [
            ("{", "not valid JSON"),
            (r#"{"implementation": "models.Mine"}"#, "code for MLServer"),
            (
                r#"{"implementation": "mlserver_sklearn.SKLearnModel", "parameters": {"uri": "../x"}}"#,
                "names no file",
            ),
        ] {
            assert!(found(settings, &[]).reason().contains(expected), "{settings}");
        }
    }
}
