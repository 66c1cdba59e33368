//! Desired state from the given paths: manifests, or bare model files.

use super::{fingerprint, servers::LaunchSpec};
use crate::error::CommandError;
use gantry_agent::CONTENT_PARAMETER;
use gantry_api::{Diagnostic, Kind, Model, Object, ParameterSpec, Parsed, model_of_file, parse};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Model annotation with data for the first input of the printed curl example.
const EXAMPLE_ANNOTATION: &str = "gantry.dev/example";

#[derive(Clone, Debug)]
pub(crate) struct Sources {
    roots: Vec<PathBuf>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct DesiredState {
    /// By kind and name, in the order of application.
    pub(crate) objects: BTreeMap<(Kind, String), Object>,
    /// Source file of each object.
    pub(crate) files: BTreeMap<(Kind, String), String>,
    /// Of servers that are run as local processes.
    pub(crate) launch_specs: BTreeMap<String, LaunchSpec>,
    /// Example input by model.
    pub(crate) examples: BTreeMap<String, String>,
}

/// Validation errors of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problems(Vec<Diagnostic>);

impl Problems {
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.0.iter().map(ToString::to_string)
    }

    pub(crate) fn into_error(self) -> CommandError {
        let mut lines: Vec<String> = self.lines().collect();
        lines.push("Nothing was started.".into());
        CommandError::usage(lines.join("\n"))
    }
}

impl Sources {
    /// Fails if a path does not exist.
    pub(crate) fn new(paths: &[PathBuf]) -> Result<Self, CommandError> {
        let mut roots = Vec::new();
        for path in paths {
            let root = path.canonicalize().map_err(|e| {
                let reason = if e.kind() == std::io::ErrorKind::NotFound {
                    "does not exist".into()
                } else {
                    e.to_string()
                };
                CommandError::usage(format!("{} {reason}", path.display()))
            })?;
            roots.push(root);
        }
        Ok(Self { roots })
    }

    /// Absolute paths.
    pub(crate) fn roots(&self) -> &[PathBuf] {
        &self.roots
    }

    /// A hash that changes with any of the files.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.roots.iter().fold(0, |all, root| all.rotate_left(1) ^ fingerprint::of(root))
    }

    pub(crate) fn read(&self) -> Result<DesiredState, Problems> {
        let mut desired = DesiredState::default();
        let mut problems = Vec::new();
        for root in &self.roots {
            match read_root(root) {
                Ok(found) => {
                    for parsed in found {
                        add(&mut desired, parsed, &mut problems);
                    }
                }
                Err(more) => problems.extend(more),
            }
        }
        if problems.is_empty() { Ok(desired) } else { Err(Problems(problems)) }
    }
}

fn add(desired: &mut DesiredState, parsed: Parsed, problems: &mut Vec<Diagnostic>) {
    let Parsed { mut object, file, line } = parsed;
    let key = (object.kind(), object.name().to_owned());
    if desired.objects.contains_key(&key) {
        let message = format!("\"{}\" is defined in another file too: names are unique", key.1);
        problems.push(Diagnostic { file, line, path: "metadata.name".into(), message });
        return;
    }
    if let Object::Server(server) = &object {
        let folder = Path::new(&file).parent().unwrap_or(Path::new("/"));
        match LaunchSpec::read(server, folder) {
            Ok(spec) => desired.launch_specs.extend(spec.map(|s| (key.1.clone(), s))),
            Err(invalid) => {
                for (path, message) in invalid {
                    problems.push(Diagnostic { file: file.clone(), line, path, message });
                }
            }
        }
    }
    if let Object::Model(model) = &mut object {
        if let Some(example) = model.metadata.annotations.get(EXAMPLE_ANNOTATION) {
            desired.examples.insert(key.1.clone(), example.clone());
        }
        resolve_local_uri(model, Path::new(&file));
    }
    desired.files.insert(key.clone(), file);
    desired.objects.insert(key, object);
}

/// Makes a local storageUri absolute and adds a hash of its files, so that a changed file is a changed model.
fn resolve_local_uri(model: &mut Model, manifest: &Path) {
    let uri = &model.spec.storage_uri;
    let plain = uri.strip_prefix("file://").unwrap_or(uri);
    if plain.contains("://") {
        return;
    }
    let path = manifest.parent().unwrap_or(Path::new("/")).join(plain);
    // `s3:bucket/key` and other paths that do not exist are remote locations.
    let Ok(path) = path.canonicalize() else { return };
    model.spec.storage_uri = path.display().to_string();
    let content = format!("{:016x}", fingerprint::of(&path));
    model.spec.parameters.retain(|p| p.name != CONTENT_PARAMETER);
    model.spec.parameters.push(ParameterSpec { name: CONTENT_PARAMETER.into(), value: content });
}

fn problem(file: &Path, message: impl Into<String>) -> Diagnostic {
    Diagnostic { file: file.display().to_string(), line: 0, path: String::new(), message: message.into() }
}

fn read_root(root: &Path) -> Result<Vec<Parsed>, Vec<Diagnostic>> {
    if root.is_file() {
        return if is_manifest(root) {
            read_manifest(root)
        } else {
            bare_model(root, None).map(|m| vec![m]).ok_or_else(|| {
                vec![problem(root, "is neither a manifest (.yaml, .yml, .json) nor a supported model file (.onnx, .ubj, .txt, .lgb)")]
            })
        };
    }
    let files =
        fingerprint::files_below(root).map_err(|e| vec![problem(root, format!("cannot be read: {e}"))])?;
    let manifests: Vec<&PathBuf> = files.iter().filter(|f| is_manifest(f)).collect();
    if manifests.is_empty() {
        let models: Vec<Parsed> = files
            .iter()
            .filter_map(|file| {
                let folder = file.parent().filter(|p| *p != root).and_then(Path::file_name);
                bare_model(file, folder.map(|f| f.to_string_lossy().into_owned()).as_deref())
            })
            .collect();
        if models.is_empty() {
            return Err(vec![problem(
                root,
                "contains no manifest and no model file: add a .yaml, .onnx, .ubj or .lgb file",
            )]);
        }
        return Ok(models);
    }
    let mut objects = Vec::new();
    let mut problems = Vec::new();
    for manifest in manifests {
        match read_manifest(manifest) {
            Ok(found) => objects.extend(found),
            Err(more) => problems.extend(more),
        }
    }
    if problems.is_empty() { Ok(objects) } else { Err(problems) }
}

/// JSON without an apiVersion may be an XGBoost model.
fn is_manifest(file: &Path) -> bool {
    match file.extension().map(std::ffi::OsStr::to_ascii_lowercase).as_deref().and_then(|e| e.to_str()) {
        Some("yaml" | "yml") => true,
        Some("json") => {
            let head = std::fs::read(file).unwrap_or_default();
            let head = head.get(..head.len().min(4096)).unwrap_or_default();
            String::from_utf8_lossy(head).contains("\"apiVersion\"")
        }
        _ => false,
    }
}

fn read_manifest(file: &Path) -> Result<Vec<Parsed>, Vec<Diagnostic>> {
    let text =
        std::fs::read_to_string(file).map_err(|e| vec![problem(file, format!("cannot be read: {e}"))])?;
    parse(&file.display().to_string(), &text)
}

fn bare_model(file: &Path, folder: Option<&str>) -> Option<Parsed> {
    let name = file.file_name()?.to_string_lossy();
    let model = model_of_file(folder, &name)?.to_model(file.display().to_string());
    Some(Parsed { object: Object::Model(Box::new(model)), file: file.display().to_string(), line: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    fn manifest(name: &str, uri: &str) -> String {
        format!(
            "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata: {{name: {name}}}\nspec: {{storageUri: {uri}}}\n"
        )
    }

    fn models(dir: &Path) -> Vec<(String, String)> {
        let desired = Sources::new(&[dir.to_owned()]).unwrap().read().unwrap();
        let of = |o: &Object| match o {
            Object::Model(m) => (m.metadata.name.clone(), m.spec.storage_uri.clone()),
            Object::Server(s) => (s.metadata.name.clone(), "server".into()),
        };
        desired.objects.values().map(of).collect()
    }

    #[test]
    fn directory_of_model_files_becomes_models() {
        let dir =
            tree(&[("iris.onnx", "x"), ("fraud/model.json", "{}"), ("train.py", ""), (".git/x.onnx", "")]);
        let root = dir.path().canonicalize().unwrap();
        let at = |p: &str| root.join(p).display().to_string();
        assert_eq!(
            models(dir.path()),
            [("fraud".into(), at("fraud/model.json")), ("iris".into(), at("iris.onnx"))]
        );
    }

    #[test]
    fn manifests_take_precedence_and_resolve_relative_paths() {
        let text = manifest("a", "./a.onnx")
            + "---\n"
            + &manifest("b", "s3:bucket/b")
            + "---\n"
            + &manifest("c", "gs://x/c");
        let dir = tree(&[("deep/all.yaml", &text), ("deep/a.onnx", "x"), ("other.onnx", "x")]);
        let root = dir.path().canonicalize().unwrap();
        let local = root.join("deep/a.onnx").display().to_string();
        let expected = [("a", local.as_str()), ("b", "s3:bucket/b"), ("c", "gs://x/c")];
        let expected: Vec<_> = expected.map(|(n, u)| (n.to_owned(), u.to_owned())).into();
        assert_eq!(models(dir.path()), expected);
    }

    #[test]
    fn model_changes_only_with_its_file() {
        let dir = tree(&[("iris.onnx", "x")]);
        let sources = Sources::new(&[dir.path().to_owned()]).unwrap();
        let (before, same) = (sources.read().unwrap(), sources.read().unwrap());
        assert_eq!(before.objects, same.objects);
        std::fs::write(dir.path().join("iris.onnx"), "longer").unwrap();
        assert_ne!(before.objects, sources.read().unwrap().objects);
    }

    #[test]
    fn invalid_files_are_rejected_with_a_reason() {
        for (files, expected) in [
            (vec![("a.yaml", "kind: Modle")], "a.yaml:1: kind \"Modle\" is not supported"),
            (vec![("notes.md", "")], "contains no manifest and no model file"),
            (vec![], "contains no manifest and no model file"),
        ] {
            let dir = tree(&files);
            let problems = Sources::new(&[dir.path().to_owned()]).unwrap().read().unwrap_err();
            let message = problems.into_error().message;
            assert!(message.contains(expected) && message.ends_with("Nothing was started."), "{message}");
        }
        let twice = tree(&[("a.yaml", &manifest("a", "/x")), ("b.yaml", &manifest("a", "/y"))]);
        let problems = Sources::new(&[twice.path().to_owned()]).unwrap().read().unwrap_err();
        assert!(problems.into_error().message.contains("names are unique"));
        assert!(Sources::new(&["/no/such/place".into()]).unwrap_err().message.contains("does not exist"));
    }
}
