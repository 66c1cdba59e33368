//! Folders of `MLflow`: the flavor's own file where the built-in runtime evaluates it, else the Python function.

use crate::{
    Loader, Recognised, Requirements, Route,
    formats::{self, read_small},
    packages,
};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

#[derive(Debug, Deserialize)]
struct MlModel {
    #[serde(default)]
    flavors: BTreeMap<String, BTreeMap<String, serde_json::Value>>,
    #[serde(default)]
    mlflow_version: Option<String>,
}

/// Flavors with a file of their own, and the field that names it.
const FILES: &[(&str, &[&str])] = &[
    ("onnx", &["data"]),
    ("xgboost", &["data"]),
    ("lightgbm", &["data"]),
    ("catboost", &["data"]),
    ("sklearn", &["pickled_model"]),
];

pub(crate) fn recognise(folder: &Path) -> Recognised {
    let refused = |reason: String| Recognised::refused(folder, "MLflow model", reason);
    let Some(text) = read_small(&folder.join("MLmodel")) else {
        return refused("its file MLmodel cannot be read".into());
    };
    let parsed: MlModel = match serde_saphyr::from_str(&text) {
        Ok(parsed) => parsed,
        Err(error) => return refused(format!("its file MLmodel is not valid: {error}")),
    };
    let flavor = FILES.iter().find_map(|(name, fields)| Some((*name, *fields, parsed.flavors.get(*name)?)));
    let mut detail =
        parsed.flavors.keys().find(|name| *name != "python_function").cloned().unwrap_or_default();
    if let Some((name, fields, settings)) = flavor {
        name.clone_into(&mut detail);
        let named = fields.iter().find_map(|field| settings.get(*field)?.as_str());
        let own = named.and_then(|file| inside(folder, file)).and_then(|file| formats::file(&file));
        if let Some(own) = own.filter(|own| matches!(own.route, Route::Builtin(_))) {
            return Recognised { description: format!("MLflow model ({})", own.description), ..own };
        }
    }
    if !parsed.flavors.contains_key("python_function") {
        return refused(format!("its flavor {detail} has no Python function: log it with one"));
    }
    Recognised {
        file: folder.to_owned(),
        description: format!("MLflow model ({detail})"),
        runs_code: true,
        route: Route::Python { loader: Loader::Mlflow, requirements: requirements(folder, &parsed) },
        // The file of its flavor can be converted by itself.
        converter: None,
    }
}

/// The model's own list, with the part of `MLflow` that loads models.
fn requirements(folder: &Path, parsed: &MlModel) -> Requirements {
    let text = read_small(&folder.join("requirements.txt")).unwrap_or_default();
    let is_mlflow = |line: &String| {
        line.strip_prefix("mlflow")
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-'))
    };
    let mut requirements = Requirements::default();
    let version = parsed.mlflow_version.as_deref().filter(|version| crate::pickle::is_version(version));
    requirements.packages = packages::lines(&text).into_iter().filter(|line| !is_mlflow(line)).collect();
    requirements
        .add(&version.map_or_else(|| "mlflow-skinny".into(), |version| format!("mlflow-skinny=={version}")));
    // What the Python function of MLflow needs beyond its skinny package.
    requirements.add("pandas");
    requirements.add("numpy");
    let python = read_small(&folder.join("python_env.yaml")).unwrap_or_default();
    let minor = python.lines().find_map(|line| {
        line.trim().strip_prefix("python:")?.trim().strip_prefix("3.")?.split('.').next()?.parse::<u32>().ok()
    });
    let pinned = requirements.packages.iter().find_map(|p| p.strip_prefix("scikit-learn=="));
    if let Some(version) = pinned.filter(|version| crate::pickle::is_version(version)) {
        requirements.python = Requirements::sklearn(Some(version)).python;
    } else if let Some(minor) = minor {
        // The version of the model, or a later one.
        requirements.python = minor..=minor.max(14);
    }
    requirements
}

/// A path below a folder that does not lead out of it.
pub(crate) fn inside(folder: &Path, file: &str) -> Option<PathBuf> {
    let relative = Path::new(file);
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let path = folder.join(relative);
    (plain && path.exists()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Native;

    fn model(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Recognised) {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        let found = recognise(dir.path());
        (dir, found)
    }

    const SKLEARN: &[u8] = b"flavors:\n  python_function:\n    loader_module: mlflow.sklearn\n  sklearn:\n    pickled_model: model.pkl\n    sklearn_version: 1.7.2\nmlflow_version: 3.1.0\n";

    #[test]
    fn flavors_of_the_builtin_runtime_are_served_from_their_file() {
        let text =
            b"flavors:\n  python_function: {loader_module: mlflow.xgboost}\n  xgboost: {data: model.ubj}\n";
        let (dir, found) = model(&[("MLmodel", text), ("model.ubj", b"{L\0\0\0\0\0\0\0\x07learner")]);
        assert_eq!(found.route, Route::Builtin(Native::Xgboost));
        assert_eq!(found.file, dir.path().join("model.ubj"));
        assert_eq!(found.description, "MLflow model (XGBoost)");
    }

    #[test]
    fn other_flavors_are_loaded_by_mlflow_with_their_requirements() {
        let (_dir, found) = model(&[
            ("MLmodel", SKLEARN),
            ("model.pkl", b"\x80\x02csklearn.svm\nSVC\n."),
            ("requirements.txt", b"mlflow==3.1.0\nscikit-learn==1.7.2\n"),
        ]);
        let Route::Python { loader, requirements } = &found.route else { panic!("{found:?}") };
        assert_eq!(*loader, Loader::Mlflow);
        assert_eq!(requirements.packages, ["scikit-learn==1.7.2", "mlflow-skinny==3.1.0", "pandas", "numpy"]);
        assert_eq!(requirements.python, 10..=13);
        assert_eq!(found.description, "MLflow model (sklearn)");
    }

    #[test]
    fn invalid_folders_are_refused_and_paths_stay_inside() {
        for (text, expected) in
            [(&b"flavors: ["[..], "is not valid"), (b"flavors: {keras: {data: x}}", "has no Python function")]
        {
            let (_dir, found) = model(&[("MLmodel", text)]);
            assert!(found.reason().contains(expected), "{}", found.reason());
        }
        let (dir, _) = model(&[("a", b"")]);
        assert!(inside(dir.path(), "../etc").is_none() && inside(dir.path(), "/etc/passwd").is_none());
        assert!(inside(dir.path(), "./a").is_some());
    }
}
