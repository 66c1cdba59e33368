//! What the given paths ask for: manifests, or model files that stand for models.

use super::{fingerprint, servers::Recipe};
use crate::failure::Failure;
use gantry_agent::CONTENT;
use gantry_api::{Kind, Model, Object, ParameterSpec, Parsed, Problem, model_of_file, parse};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// A Model's annotation with example data for its first input, for the line that can be pasted.
const EXAMPLE: &str = "gantry.dev/example";

/// The paths that were given.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    roots: Vec<PathBuf>,
}

/// What the paths ask for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    /// Objects by kind and name, in the order in which they are to be applied.
    pub(crate) objects: BTreeMap<(Kind, String), Object>,
    /// The file that asks for each of them.
    pub(crate) files: BTreeMap<(Kind, String), String>,
    /// How servers are run, for those whose manifest says so.
    pub(crate) recipes: BTreeMap<String, Recipe>,
    /// Example data by model.
    pub(crate) examples: BTreeMap<String, String>,
}

/// Everything that is wrong with the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problems(Vec<Problem>);

impl Problems {
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.0.iter().map(ToString::to_string)
    }

    pub(crate) fn into_failure(self) -> Failure {
        let mut lines: Vec<String> = self.lines().collect();
        lines.push("Nothing was started.".into());
        Failure::usage(lines.join("\n"))
    }
}

impl Sources {
    /// Checks that the paths exist.
    pub(crate) fn new(paths: &[PathBuf]) -> Result<Self, Failure> {
        let mut roots = Vec::new();
        for path in paths {
            let root = path.canonicalize().map_err(|e| {
                let reason = if e.kind() == std::io::ErrorKind::NotFound {
                    "does not exist".into()
                } else {
                    e.to_string()
                };
                Failure::usage(format!("{} {reason}", path.display()))
            })?;
            roots.push(root);
        }
        Ok(Self { roots })
    }

    /// The paths, made absolute.
    pub(crate) fn roots(&self) -> &[PathBuf] {
        &self.roots
    }

    /// A number that changes when any of the files does.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.roots.iter().fold(0, |all, root| all.rotate_left(1) ^ fingerprint::of(root))
    }

    /// Reads everything anew.
    pub(crate) fn read(&self) -> Result<Asked, Problems> {
        let mut asked = Asked::default();
        let mut problems = Vec::new();
        for root in &self.roots {
            match read_root(root) {
                Ok(found) => {
                    for parsed in found {
                        add(&mut asked, parsed, &mut problems);
                    }
                }
                Err(more) => problems.extend(more),
            }
        }
        if problems.is_empty() { Ok(asked) } else { Err(Problems(problems)) }
    }
}

fn add(asked: &mut Asked, parsed: Parsed, problems: &mut Vec<Problem>) {
    let Parsed { mut object, file, line } = parsed;
    let key = (object.kind(), object.name().to_owned());
    if asked.objects.contains_key(&key) {
        let message = format!("\"{}\" is used by another file too: names are unique", key.1);
        problems.push(Problem { file, line, path: "metadata.name".into(), message });
        return;
    }
    if let Object::Server(server) = &object {
        let folder = Path::new(&file).parent().unwrap_or(Path::new("/"));
        match Recipe::read(server, folder) {
            Ok(recipe) => asked.recipes.extend(recipe.map(|r| (key.1.clone(), r))),
            Err(refused) => {
                for (path, message) in refused {
                    problems.push(Problem { file: file.clone(), line, path, message });
                }
            }
        }
    }
    if let Object::Model(model) = &mut object {
        if let Some(example) = model.metadata.annotations.get(EXAMPLE) {
            asked.examples.insert(key.1.clone(), example.clone());
        }
        settle_local(model, Path::new(&file));
    }
    asked.files.insert(key.clone(), file);
    asked.objects.insert(key, object);
}

/// Makes a path in a manifest absolute, and lets a change of its files be a change of the model.
fn settle_local(model: &mut Model, manifest: &Path) {
    let uri = &model.spec.storage_uri;
    let plain = uri.strip_prefix("file://").unwrap_or(uri);
    if plain.contains("://") {
        return;
    }
    let path = manifest.parent().unwrap_or(Path::new("/")).join(plain);
    // `s3:bucket/key` is a remote and not a path; so is anything else that is not here.
    let Ok(path) = path.canonicalize() else { return };
    model.spec.storage_uri = path.display().to_string();
    let content = format!("{:016x}", fingerprint::of(&path));
    model.spec.parameters.retain(|p| p.name != CONTENT);
    model.spec.parameters.push(ParameterSpec { name: CONTENT.into(), value: content });
}

fn problem(file: &Path, message: impl Into<String>) -> Problem {
    Problem { file: file.display().to_string(), line: 0, path: String::new(), message: message.into() }
}

fn read_root(root: &Path) -> Result<Vec<Parsed>, Vec<Problem>> {
    if root.is_file() {
        return if is_manifest(root) {
            read_manifest(root)
        } else {
            by_convention(root, None).map(|m| vec![m]).ok_or_else(|| {
                vec![problem(root, "is neither a manifest (.yaml, .yml, .json) nor a model that can be served (.onnx, .ubj, .txt, .lgb)")]
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
                by_convention(file, folder.map(|f| f.to_string_lossy().into_owned()).as_deref())
            })
            .collect();
        if models.is_empty() {
            return Err(vec![problem(
                root,
                "holds no manifest and no model file: put a .yaml, .onnx, .ubj or .lgb file there",
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

/// YAML is a manifest; JSON is one if it says so, and may be an XGBoost model otherwise.
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

fn read_manifest(file: &Path) -> Result<Vec<Parsed>, Vec<Problem>> {
    let text =
        std::fs::read_to_string(file).map_err(|e| vec![problem(file, format!("cannot be read: {e}"))])?;
    parse(&file.display().to_string(), &text)
}

fn by_convention(file: &Path, folder: Option<&str>) -> Option<Parsed> {
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
        let asked = Sources::new(&[dir.to_owned()]).unwrap().read().unwrap();
        let of = |o: &Object| match o {
            Object::Model(m) => (m.metadata.name.clone(), m.spec.storage_uri.clone()),
            Object::Server(s) => (s.metadata.name.clone(), "server".into()),
        };
        asked.objects.values().map(of).collect()
    }

    #[test]
    fn a_directory_of_model_files_becomes_models() {
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
    fn manifests_count_before_model_files_and_their_paths_are_relative_to_them() {
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
    fn a_changed_file_changes_the_model_and_nothing_else_does() {
        let dir = tree(&[("iris.onnx", "x")]);
        let sources = Sources::new(&[dir.path().to_owned()]).unwrap();
        let (before, same) = (sources.read().unwrap(), sources.read().unwrap());
        assert_eq!(before.objects, same.objects);
        std::fs::write(dir.path().join("iris.onnx"), "longer").unwrap();
        assert_ne!(before.objects, sources.read().unwrap().objects);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (files, says) in [
            (vec![("a.yaml", "kind: Modle")], "a.yaml:1: kind \"Modle\" is not known"),
            (vec![("notes.md", "")], "holds no manifest and no model file"),
            (vec![], "holds no manifest and no model file"),
        ] {
            let dir = tree(&files);
            let problems = Sources::new(&[dir.path().to_owned()]).unwrap().read().unwrap_err();
            let said = problems.into_failure().message;
            assert!(said.contains(says) && said.ends_with("Nothing was started."), "{said}");
        }
        let twice = tree(&[("a.yaml", &manifest("a", "/x")), ("b.yaml", &manifest("a", "/y"))]);
        let problems = Sources::new(&[twice.path().to_owned()]).unwrap().read().unwrap_err();
        assert!(problems.into_failure().message.contains("names are unique"));
        assert!(Sources::new(&["/no/such/place".into()]).unwrap_err().message.contains("does not exist"));
    }
}
