//! Models without a manifest: files and folders by their content and layout.

use crate::fingerprint;
use gantry_api::{ModelFile, Object, Parsed, model_of_file};
use gantry_python::{Recognised, Requirements, Route, recognise};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// The requirement of a model that its own library serves.
pub(crate) const PYTHON: &str = "python";
/// Files whose folder may be one model.
const FOLDER_MARKS: [&str; 4] = ["MLmodel", "model-settings.json", "saved_model.pb", "config.json"];

/// A model that is not served, with the reason and the remedies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unserved {
    /// Relative to the root.
    pub(crate) name: String,
    /// As the user would write it.
    pub(crate) path: String,
    pub(crate) reason: String,
    /// Label, command and what the command does.
    pub(crate) remedies: Vec<(&'static str, String, &'static str)>,
}

impl Unserved {
    /// The reason, and a line for each remedy.
    pub(crate) fn lines(&self, indent: &str) -> Vec<String> {
        let width = self.remedies.iter().map(|(_, command, _)| command.len()).max().unwrap_or_default();
        let labels = self.remedies.iter().map(|(label, ..)| label.len()).max().unwrap_or_default();
        let remedies = self.remedies.iter().map(|(label, command, comment)| {
            format!("{indent}{label:labels$}  {command:width$}   {comment}").trim_end().to_owned()
        });
        std::iter::once(self.reason.clone()).chain(remedies).collect()
    }
}

/// The models of a root without manifests.
#[derive(Debug, Default)]
pub(super) struct BareModels {
    pub(super) models: Vec<Parsed>,
    pub(super) unserved: Vec<Unserved>,
    /// Environments of the models that their own libraries serve.
    pub(super) python: Vec<Requirements>,
}

/// A root, and how its models are served and shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root<'a> {
    pub(super) path: &'a Path,
    /// As the user wrote it.
    pub(super) shown: &'a Path,
    pub(super) allow_python: bool,
}

/// Reads the models below a directory, or a file.
pub(super) fn read(root: Root<'_>, files: &[PathBuf]) -> BareModels {
    let mut found = BareModels::default();
    let folders = model_folders(files);
    let in_folder = |file: &PathBuf| folders.iter().any(|(folder, _)| file.starts_with(folder));
    for (folder, model) in &folders {
        found.add(root, folder, model);
    }
    let mut later = Vec::new();
    for file in files.iter().filter(|file| !in_folder(file)) {
        match recognise(file) {
            Some(model) if !matches!(model.route, Route::Builtin(_)) => later.push((file, model)),
            recognised => {
                let by_content = recognised.and_then(|model| native_ending(&model));
                found.models.extend(model_below(root.path, file, by_content));
            }
        }
    }
    // A converted model beside takes precedence.
    for (file, model) in later {
        found.add(root, file, &model);
    }
    // The versions of one model are one folder.
    found.models.sort_by(|a, b| a.file.cmp(&b.file));
    found.models.dedup_by(|a, b| a.file == b.file);
    found
}

/// Folders that are one model, none below another.
fn model_folders(files: &[PathBuf]) -> Vec<(PathBuf, Recognised)> {
    let marked = files
        .iter()
        .filter(|file| FOLDER_MARKS.iter().any(|mark| file.file_name().is_some_and(|n| n == *mark)));
    let candidates: BTreeSet<&Path> = marked.filter_map(|file| file.parent()).collect();
    let mut folders: Vec<(PathBuf, Recognised)> = Vec::new();
    for folder in candidates {
        if !folders.iter().any(|(outer, _)| folder.starts_with(outer))
            && let Some(model) = recognise(folder)
        {
            folders.push((folder.to_owned(), model));
        }
    }
    folders
}

/// The unambiguous ending of a file that the built-in runtime evaluates.
fn native_ending(model: &Recognised) -> Option<&'static str> {
    match model.route {
        Route::Builtin(gantry_python::Native::Onnx) => Some("onnx"),
        Route::Builtin(gantry_python::Native::Xgboost) => Some("xgb"),
        Route::Builtin(gantry_python::Native::Lightgbm) => Some("lgb"),
        _ => None,
    }
}

impl BareModels {
    /// Adds a model of a folder, or of a file that the built-in runtime does not evaluate.
    fn add(&mut self, root: Root<'_>, path: &Path, model: &Recognised) {
        let named = named(root.path, path);
        let taken = |name: &str| self.models.iter().find(|known| known.object.name() == name);
        if let Some(other) = named.as_ref().and_then(|(name, _)| taken(name)) {
            let other = Path::new(&other.file).file_name().map(|n| n.to_string_lossy().into_owned());
            let reason = format!("not served: {} has the same name", other.unwrap_or_default());
            self.unserved.push(root.unserved(path, reason, Vec::new()));
            return;
        }
        let Some((name, place)) = named else {
            let reason = "no model name can be made of the file name: use letters, digits and -".to_owned();
            self.unserved.push(root.unserved(path, reason, Vec::new()));
            return;
        };
        let (requirement, uri) = match &model.route {
            Route::Builtin(native) => (native.requirement(), model.file.clone()),
            Route::Python { requirements, .. } if root.allow_python => {
                if !self.python.contains(requirements) {
                    self.python.push(requirements.clone());
                }
                (PYTHON, place)
            }
            _ => {
                self.unserved.push(root.refused(path, model));
                return;
            }
        };
        let object = ModelFile { name, requirement }.to_model(uri.display().to_string());
        let file = path.display().to_string();
        self.models.push(Parsed { object: Object::Model(Box::new(object)), file, line: 0 });
    }
}

impl Root<'_> {
    fn shown(&self, path: &Path) -> (String, String) {
        let relative = path.strip_prefix(self.path).unwrap_or(path);
        if relative.as_os_str().is_empty() {
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            return (name, self.shown.display().to_string());
        }
        (relative.display().to_string(), self.shown.join(relative).display().to_string())
    }

    fn unserved(
        &self,
        path: &Path,
        reason: String,
        remedies: Vec<(&'static str, String, &'static str)>,
    ) -> Unserved {
        let (name, path) = self.shown(path);
        Unserved { name, path, reason, remedies }
    }

    fn refused(&self, path: &Path, model: &Recognised) -> Unserved {
        let (_, shown) = self.shown(path);
        let tool = match model.converter {
            Some(_) => "(compares predictions)",
            None => "",
        };
        let remedies = model.remedies(&shown, Some(&self.shown.display().to_string()));
        let remedies = remedies.into_iter().map(|(label, command)| {
            let comment = if command.starts_with("gantry convert") {
                tool
            } else {
                "(in a Python environment of its own)"
            };
            (label, command, comment)
        });
        let remedies = remedies.collect();
        self.unserved(path, model.reason(), remedies)
    }
}

/// Name and artifact of a model that is not one file of the built-in runtime.
fn named(root: &Path, path: &Path) -> Option<(String, PathBuf)> {
    let text = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let is_version = |name: &String| name.bytes().all(|b| b.is_ascii_digit());
    let is_own = |name: &str| name.eq_ignore_ascii_case("model");
    let stem = if path.is_dir() { text(path)? } else { path.file_stem()?.to_string_lossy().into_owned() };
    let stem = stem.strip_suffix(".savedmodel").map_or(stem.clone(), str::to_owned);
    let folder = path.parent().filter(|_| path != root);
    // `net/1/model.savedmodel` and `net/1` are versions of `net`.
    let (base, artifact) = match folder {
        Some(folder) if is_own(&stem) => match (text(folder).filter(is_version), folder.parent()) {
            (Some(_), Some(versions)) if folder != root => (text(versions)?, versions.to_owned()),
            _ if folder == root && path.is_file() => (stem, folder.to_owned()),
            _ => (text(folder)?, folder.to_owned()),
        },
        Some(folder) if path.is_dir() && is_version(&stem) && folder != root => {
            (text(folder)?, folder.to_owned())
        }
        _ => (stem, path.to_owned()),
    };
    let model = model_of_file(None, &format!("{}.onnx", base.replace('.', "-")))?;
    Some((model.name, artifact))
}

/// A model file below a root: named after the file, or after its folder when the file is called `model`. If that folder
/// is a number, it is a version of the folder around it, as in a repository of Triton.
fn model_below(root: &Path, file: &Path, ending: Option<&str>) -> Option<Parsed> {
    let name = |folder: &Path| folder.file_name().map(|f| f.to_string_lossy().into_owned());
    let Some(folder) = file.parent().filter(|p| *p != root && file != root) else {
        return bare_model(file, None, ending);
    };
    let version = file.file_stem().is_some_and(|stem| stem == "model")
        && name(folder).is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
    match folder.parent().filter(|_| version) {
        Some(versions) => {
            let mut parsed = bare_model(file, name(versions).as_deref(), ending)?;
            parsed.file = versions.display().to_string();
            if let Object::Model(model) = &mut parsed.object {
                model.spec.storage_uri.clone_from(&parsed.file);
            }
            Some(parsed)
        }
        None => bare_model(file, name(folder).as_deref(), ending),
    }
}

fn bare_model(file: &Path, folder: Option<&str>, ending: Option<&str>) -> Option<Parsed> {
    let name = file.file_name()?.to_string_lossy();
    let found = model_of_file(folder, &name).or_else(|| {
        let stem = file.file_stem()?.to_string_lossy();
        model_of_file(folder, &format!("{stem}.{}", ending?))
    })?;
    let model = found.to_model(file.display().to_string());
    Some(Parsed { object: Object::Model(Box::new(model)), file: file.display().to_string(), line: 0 })
}

/// Files below a root, for a message and for [`read`].
pub(super) fn files(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    if root.is_file() { Ok(vec![root.to_owned()]) } else { fingerprint::files_below(root) }
}
