//! What a file or folder is, by its content: which library wrote it, and how it can be served.

use crate::{Converter, Requirements, formats, mlflow, mlserver};
use std::path::{Path, PathBuf};

/// How the host process loads a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loader {
    Pickle,
    Skops,
    Catboost,
    Xgboost,
    Keras,
    SavedModel,
    Torchscript,
    TorchExport,
    TorchPickle,
    Mlflow,
}

/// Limits of a search for the model of an artifact.
const MAX_DEPTH: usize = 3;
const MAX_ENTRIES: usize = 1000;

impl Loader {
    /// The name in the host program.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pickle => "pickle",
            Self::Skops => "skops",
            Self::Catboost => "catboost",
            Self::Xgboost => "xgboost",
            Self::Keras => "keras",
            Self::SavedModel => "savedmodel",
            Self::Torchscript => "torchscript",
            Self::TorchExport => "torch-export",
            Self::TorchPickle => "torch-pickle",
            Self::Mlflow => "mlflow",
        }
    }

    /// The platform in the metadata of a served model.
    pub const fn platform(self) -> &'static str {
        match self {
            Self::Pickle | Self::Skops => "sklearn",
            Self::Catboost => "catboost",
            Self::Xgboost => "xgboost",
            Self::Keras | Self::SavedModel => "tensorflow",
            Self::Torchscript | Self::TorchExport | Self::TorchPickle => "pytorch",
            Self::Mlflow => "mlflow",
        }
    }
}

/// A file of a format that the built-in runtime evaluates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Native {
    Onnx,
    Xgboost,
    Lightgbm,
}

impl Native {
    /// The requirement of a Model.
    pub const fn requirement(self) -> &'static str {
        match self {
            Self::Onnx => "onnx",
            Self::Xgboost => "xgboost",
            Self::Lightgbm => "lightgbm",
        }
    }
}

/// How a model can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// By the built-in runtime.
    Builtin(Native),
    /// By its library, with the user's permission.
    Python { loader: Loader, requirements: Requirements },
    /// Not at all, for this reason.
    Refused(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recognised {
    /// The file or folder that is loaded.
    pub file: PathBuf,
    /// Such as `scikit-learn 1.7.2 pickle (Pipeline)`.
    pub description: String,
    /// Loading it runs code that the file contains.
    pub runs_code: bool,
    pub route: Route,
    pub converter: Option<Converter>,
}

impl Recognised {
    pub(crate) fn builtin(file: &Path, native: Native, description: &str) -> Self {
        Self {
            file: file.to_owned(),
            description: description.to_owned(),
            runs_code: false,
            route: Route::Builtin(native),
            converter: None,
        }
    }

    pub(crate) fn refused(file: &Path, description: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            description: description.into(),
            runs_code: false,
            route: Route::Refused(reason.into()),
            converter: None,
        }
    }

    /// Modules beside the model, which its loading may import.
    pub fn import_path(&self) -> Option<PathBuf> {
        formats::own_folder(&self.file).map(Path::to_owned)
    }

    /// One sentence: what it is, and why it is not served as it is.
    pub fn reason(&self) -> String {
        match &self.route {
            Route::Builtin(_) => self.description.clone(),
            Route::Refused(reason) => format!("{}: {reason}", self.description),
            Route::Python { .. } if self.runs_code => {
                format!("{}: needs Python. A pickle runs code when it is loaded.", self.description)
            }
            Route::Python { .. } => format!("{}: needs Python.", self.description),
        }
    }

    /// Labels and commands that make it servable. `model` and `root` are paths as the user writes them.
    pub fn remedies(&self, model: &str, root: Option<&str>) -> Vec<(&'static str, String)> {
        let mut remedies = Vec::new();
        if let Some(converter) = &self.converter {
            remedies.push((
                "convert it:",
                format!("gantry convert {}{}", quoted(model), converter.placeholder()),
            ));
        }
        if matches!(self.route, Route::Python { .. }) {
            let label = if remedies.is_empty() { "allow it:" } else { "or allow it:" };
            let command = match root {
                Some(root) => format!("gantry up {} --allow-python", quoted(root)),
                None => "start gantry with --allow-python".into(),
            };
            remedies.push((label, command));
        }
        remedies
    }

    /// Reason and remedies in one line.
    pub fn refusal(&self, model: &str) -> String {
        let remedies: Vec<String> = self
            .remedies(model, None)
            .into_iter()
            .map(|(label, command)| format!("{label} {command}"))
            .collect();
        let (reason, dot) = (self.reason(), if remedies.is_empty() { "" } else { " " });
        format!("{reason}{dot}{}", remedies.join(", "))
    }
}

fn quoted(path: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@=,:".contains(c);
    if !path.is_empty() && path.chars().all(plain) {
        path.to_owned()
    } else {
        format!("'{}'", path.replace('\'', "'\\''"))
    }
}

/// Recognises a model; `None` when the path is not one that is known. Blocking; reads the whole file of a pickle.
pub fn recognise(path: &Path) -> Option<Recognised> {
    if path.is_dir() { folder(path) } else { formats::file(path) }
}

/// Recognises the model of an artifact: a folder that is one, or the only file of a model in a folder. A file called `model`
/// comes first. Blocking.
pub fn recognise_artifact(path: &Path) -> Option<Recognised> {
    if path.is_file() {
        return formats::file(path);
    }
    let mut level = vec![path.to_owned()];
    for _ in 0..MAX_DEPTH {
        let mut files = Vec::new();
        let mut deeper = Vec::new();
        for directory in level {
            if let Some(found) = folder(&directory) {
                return Some(found);
            }
            for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten().take(MAX_ENTRIES) {
                let entry = entry.path();
                if entry.is_dir() { deeper.push(entry) } else { files.push(entry) }
            }
        }
        files.sort_by_key(|file| (formats::own_folder(file).is_none(), file.clone()));
        if let Some(found) = files.iter().find_map(|file| formats::file(file)) {
            return Some(found);
        }
        level = deeper;
    }
    None
}

/// Folders that are one model, not a collection of models.
pub(crate) fn folder(path: &Path) -> Option<Recognised> {
    if path.join("MLmodel").is_file() {
        return Some(mlflow::recognise(path));
    }
    if path.join(mlserver::SETTINGS).is_file() {
        return Some(mlserver::recognise(path));
    }
    if path.join("saved_model.pb").is_file() {
        return Some(formats::saved_model(path));
    }
    formats::huggingface(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_has_reason_and_commands_in_one_line() {
        let model = Recognised {
            file: "churn.pkl".into(),
            description: "scikit-learn 1.7.2 pickle (Pipeline)".into(),
            runs_code: true,
            route: Route::Python { loader: Loader::Pickle, requirements: Requirements::default() },
            converter: Some(Converter::Sklearn),
        };
        assert_eq!(
            model.refusal("models/churn.pkl"),
            "scikit-learn 1.7.2 pickle (Pipeline): needs Python. A pickle runs code when it is loaded. convert it: gantry \
             convert models/churn.pkl, or allow it: start gantry with --allow-python"
        );
        let commands = model.remedies("my models/churn.pkl", Some("my models"));
        assert_eq!(commands[0].1, "gantry convert 'my models/churn.pkl'");
        assert_eq!(commands[1].1, "gantry up 'my models' --allow-python");
        let refused = Recognised::refused(Path::new("x"), "GGUF weights", "serve it with llama.cpp");
        assert_eq!(refused.refusal("x"), "GGUF weights: serve it with llama.cpp");
    }
}
