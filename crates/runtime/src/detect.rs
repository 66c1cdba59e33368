//! Model file detection.

use gantry_trees::Format as TreeFormat;
use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

/// Supported formats, for error messages.
pub const FORMATS: &str = "ONNX (.onnx), XGBoost (.json, .ubj) and LightGBM (.txt)";

/// Limit of files inspected per artifact.
const MAX_FILES: usize = 10_000;
/// Files that are looked at for a message.
const MAX_INSPECTED: usize = 100;
/// Bytes read to detect a format.
const SNIFF_BYTES: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Onnx,
    Trees(TreeFormat),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DetectError {
    #[error("{path} does not exist")]
    Missing { path: String },
    #[error("{path} cannot be read: {reason}")]
    Unreadable { path: String, reason: String },
    #[error("{path} contains no supported model; the built-in runtime supports {FORMATS}. {hint}")]
    NoModel { path: String, hint: String },
    #[error("{path} contains more than one model ({found}): keep one, or name it `model` with its extension")]
    Several { path: String, found: String },
}

/// Finds the model in a file or a directory.
///
/// In a directory a file named `model` wins; otherwise exactly one file must look like a model. Subdirectories are
/// searched when the directory itself has none.
pub fn detect(path: &Path) -> Result<(PathBuf, Format), DetectError> {
    let shown =
        || path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
    let unreadable = |e: std::io::Error| DetectError::Unreadable { path: shown(), reason: e.to_string() };
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(DetectError::Missing { path: path.display().to_string() });
        }
        Err(e) => return Err(unreadable(e)),
    };
    if meta.is_file() {
        return match format_of(path).map_err(unreadable)? {
            Some(format) => Ok((path.to_owned(), format)),
            None => Err(DetectError::NoModel { path: shown(), hint: hint(&[path.to_owned()]) }),
        };
    }
    let mut all = Vec::new();
    let mut levels = Vec::new();
    let mut level = vec![path.to_owned()];
    // The topmost level with a model wins; the depth is limited.
    for _ in 0..4 {
        let mut files = Vec::new();
        let mut deeper = Vec::new();
        for directory in &level {
            for entry in std::fs::read_dir(directory).map_err(unreadable)? {
                let entry = entry.map_err(unreadable)?.path();
                if entry.is_dir() { deeper.push(entry) } else { files.push(entry) }
            }
        }
        files.sort();
        all.extend(files.iter().cloned());
        if all.len() + deeper.len() > MAX_FILES {
            break;
        }
        if let Some(found) = choose(&shown(), &files)? {
            return Ok(found);
        }
        levels.push(files);
        level = deeper;
    }
    // A model under a name of models comes first, at any level.
    if let Some(found) = levels.iter().find_map(|files| by_content(files)) {
        return Ok(found);
    }
    Err(DetectError::NoModel { path: shown(), hint: hint(&all) })
}

fn choose(shown: &str, files: &[PathBuf]) -> Result<Option<(PathBuf, Format)>, DetectError> {
    let mut found = Vec::new();
    for file in files {
        if is_model_file_name(file)
            && let Ok(Some(format)) = format_of(file)
        {
            found.push((file.clone(), format));
        }
    }
    let named =
        |(file, _): &(PathBuf, Format)| file.file_stem().is_some_and(|s| s.eq_ignore_ascii_case("model"));
    let preferred: Vec<_> = found.iter().filter(|f| named(f)).cloned().collect();
    match (preferred.as_slice(), found.as_slice()) {
        ([one], _) | ([], [one]) => Ok(Some(one.clone())),
        ([], []) => Ok(None),
        _ => {
            let names: Vec<_> = found
                .iter()
                .filter_map(|(f, _)| f.file_name().map(|n| n.to_string_lossy().into_owned()))
                .collect();
            Err(DetectError::Several { path: shown.to_owned(), found: names.join(", ") })
        }
    }
}

/// The only file of a tree model, whatever its name.
fn by_content(files: &[PathBuf]) -> Option<(PathBuf, Format)> {
    let is_model = |file: &&PathBuf| {
        gantry_python::recognise(file).is_some_and(|m| matches!(m.route, gantry_python::Route::Builtin(_)))
    };
    let mut models = files.iter().take(MAX_INSPECTED).filter(is_model);
    let (file, None) = (models.next()?, models.next()) else { return None };
    Some((file.clone(), format_of(file).ok()??))
}

/// By name: settings and documentation files are not models, whatever their content.
fn is_model_file_name(file: &Path) -> bool {
    let name = file.file_name().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let ending = name.rsplit_once('.').map_or("", |(_, e)| e);
    let is_settings = matches!(
        name.as_str(),
        "model-settings.json"
            | "settings.json"
            | "config.json"
            | "tokenizer.json"
            | "requirements.txt"
            | "readme.txt"
    );
    !is_settings && matches!(ending, "onnx" | "json" | "ubj" | "xgb" | "bst" | "txt" | "lgb" | "model" | "")
}

/// ONNX by extension, since it has no magic number; the others by their first bytes.
fn format_of(file: &Path) -> std::io::Result<Option<Format>> {
    if file.extension().is_some_and(|e| e.eq_ignore_ascii_case("onnx")) {
        return Ok(Some(Format::Onnx));
    }
    let mut head = Vec::new();
    File::open(file)?.take(SNIFF_BYTES as u64).read_to_end(&mut head)?;
    Ok(TreeFormat::sniff(&head).ok().map(Format::Trees))
}

fn hint(files: &[PathBuf]) -> String {
    let models = files.iter().take(MAX_INSPECTED).filter_map(|file| {
        let name = file.file_name()?.to_string_lossy();
        Some(format!("{name} is a {}", gantry_python::recognise(file)?.refusal(&name)))
    });
    if let Some(hint) = models.into_iter().next() {
        return hint;
    }
    if files.is_empty() {
        return "It is empty.".into();
    }
    let names: Vec<_> = files
        .iter()
        .filter_map(|f| f.file_name())
        .take(5)
        .map(|n| n.to_string_lossy().into_owned())
        .collect();
    format!("It contains {}.", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        dir
    }

    #[test]
    fn detect_finds_the_model() {
        let lightgbm = Format::Trees(TreeFormat::LightgbmText);
        let xgboost = Format::Trees(TreeFormat::XgboostJson);
        for (files, name, format) in [
            (vec![("iris.onnx", "x")], "iris.onnx", Format::Onnx),
            (
                vec![("model.json", "{\"learner\":1}"), ("model-settings.json", "{\"name\":1}")],
                "model.json",
                xgboost,
            ),
            (vec![("a.onnx", ""), ("model.onnx", ""), ("b.onnx", "")], "model.onnx", Format::Onnx),
            (vec![("1/model.txt", "tree\nversion=v4"), ("readme.txt", "tree\n")], "1/model.txt", lightgbm),
            (vec![("train.py", ""), ("m.txt", "tree\n")], "m.txt", lightgbm),
        ] {
            let dir = artifact(&files);
            assert_eq!(detect(dir.path()), Ok((dir.path().join(name), format)), "{files:?}");
        }
    }

    #[test]
    fn unsupported_artifacts_are_rejected_with_a_hint() {
        for (files, expected) in [
            (vec![], "It is empty"),
            (vec![("model.pkl", "x")], "it is no pickle, or it is damaged"),
            (vec![("model.pt", "x")], "torch.onnx.export"),
            (
                vec![("model.bst", "binf")],
                "deprecated binary format: needs Python. convert it: gantry convert model.bst",
            ),
            (
                vec![("model.cbm", "CBM1----")],
                "CatBoost model: needs Python. convert it: gantry convert model.cbm",
            ),
            (vec![("notes.md", "x")], "It contains notes.md"),
            (vec![("a.onnx", ""), ("b.onnx", "")], "more than one model (a.onnx, b.onnx)"),
        ] {
            let dir = artifact(&files);
            let message = detect(dir.path()).unwrap_err().to_string();
            assert!(message.contains(expected), "{files:?}: {message}");
        }
        let message = detect(Path::new("/no/such/place")).unwrap_err().to_string();
        assert_eq!(message, "/no/such/place does not exist");
    }
}
