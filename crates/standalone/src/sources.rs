//! Desired state from the given paths: manifests, or bare model files.

mod bare_models;

pub(crate) use bare_models::{PYTHON, Unserved};

use super::{
    fingerprint::{self, ContentHashes},
    graphs::Graphs,
    servers::LaunchSpec,
};
use crate::error::CommandError;
use gantry_agent::CONTENT_PARAMETER;
use gantry_api::{
    ClusterObject, Diagnostic, ForeignObject, Kind, Model, Object, ParameterSpec, Parsed, check_set,
    parse_manifest, resolve_policies,
};
use gantry_python::Requirements;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Model files, for error messages.
const MODEL_FILES: &str = "a model file: .onnx, .json or .ubj of XGBoost, .txt or .lgb of LightGBM";

/// Model annotation with data for the first input of the printed curl example.
const EXAMPLE_ANNOTATION: &str = "gantry.dev/example";

#[derive(Clone, Debug)]
pub(crate) struct Sources {
    roots: Vec<PathBuf>,
    /// As the user wrote them.
    shown: Vec<PathBuf>,
    /// Models of Python libraries may be loaded, which runs code.
    allow_python: bool,
    hashes: ContentHashes,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct DesiredState {
    /// By kind and name, in the order of application.
    pub(crate) objects: BTreeMap<(Kind, String), Object>,
    /// Source file of each object.
    pub(crate) files: BTreeMap<(Kind, String), String>,
    pub(crate) graphs: Graphs,
    /// Of servers that are run as local processes.
    pub(crate) launch_specs: BTreeMap<String, LaunchSpec>,
    /// Example input by model.
    pub(crate) examples: BTreeMap<String, String>,
    /// Models beside those that are served.
    pub(crate) unserved: Vec<Unserved>,
    /// Environments of models in Python.
    pub(crate) python: Vec<Requirements>,
}

/// The objects of files.
#[derive(Default)]
struct Found {
    objects: Vec<Parsed>,
    /// InferenceGraphs.
    graphs: Vec<ClusterObject>,
    unserved: Vec<Unserved>,
    python: Vec<Requirements>,
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
        Ok(Self { roots, shown: paths.to_vec(), allow_python: false, hashes: ContentHashes::default() })
    }

    /// The same, with models of Python libraries among the models that are served.
    #[must_use]
    pub(crate) fn allowing_python(self, allow_python: bool) -> Self {
        Self { allow_python, ..self }
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
        let (mut objects, mut graphs) = (Vec::new(), Vec::new());
        for (path, shown) in self.roots.iter().zip(&self.shown) {
            match read_root(bare_models::Root { path, shown, allow_python: self.allow_python }) {
                Ok(found) => {
                    objects.extend(found.objects);
                    graphs.extend(found.graphs);
                    desired.unserved.extend(found.unserved);
                    desired.python.extend(found.python);
                }
                Err(more) => problems.extend(more),
            }
        }
        if problems.is_empty() {
            problems.extend(resolve_policies(&mut objects));
        }
        problems.extend(check_set(&objects));
        for parsed in objects {
            add(&mut desired, parsed, &self.hashes, &mut problems);
        }
        if problems.is_empty() {
            match Graphs::new(graphs, &desired.objects) {
                Ok(graphs) => desired.graphs = graphs,
                Err(more) => problems = more,
            }
        }
        if problems.is_empty() { Ok(desired) } else { Err(Problems(problems)) }
    }
}

fn add(desired: &mut DesiredState, parsed: Parsed, hashes: &ContentHashes, problems: &mut Vec<Diagnostic>) {
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
        resolve_local_uri(model, Path::new(&file), hashes);
    }
    desired.files.insert(key.clone(), file);
    desired.objects.insert(key, object);
}

/// Makes a local storageUri absolute and adds a hash of its files, so that a changed file is a changed model.
fn resolve_local_uri(model: &mut Model, manifest: &Path, hashes: &ContentHashes) {
    let uri = &model.spec.storage_uri;
    let plain = uri.strip_prefix("file://").unwrap_or(uri);
    if plain.contains("://") {
        return;
    }
    let path = manifest.parent().unwrap_or(Path::new("/")).join(plain);
    // `s3:bucket/key` and other paths that do not exist are remote locations.
    let Ok(path) = path.canonicalize() else { return };
    model.spec.storage_uri = path.display().to_string();
    let content = format!("{:016x}", hashes.of(&path));
    model.spec.parameters.retain(|p| p.name != CONTENT_PARAMETER);
    model.spec.parameters.push(ParameterSpec { name: CONTENT_PARAMETER.into(), value: content });
}

fn problem(file: &Path, message: impl Into<String>) -> Diagnostic {
    Diagnostic { file: file.display().to_string(), line: 0, path: String::new(), message: message.into() }
}

fn read_root(root: bare_models::Root<'_>) -> Result<Found, Vec<Diagnostic>> {
    let path = root.path;
    let files = bare_models::files(path).map_err(|e| vec![problem(path, format!("cannot be read: {e}"))])?;
    let manifests: Vec<&PathBuf> = files.iter().filter(|f| is_manifest(f)).collect();
    if manifests.is_empty() {
        let found = bare_models::read(root, &files);
        if !found.models.is_empty() {
            let bare_models::BareModels { models: objects, unserved, python } = found;
            return Ok(Found { objects, unserved, python, ..Found::default() });
        }
        if found.unserved.is_empty() {
            let message = if path.is_file() {
                format!("is neither a manifest (.yaml, .yml, .json) nor {MODEL_FILES}")
            } else {
                format!("contains no manifest and no model file: add a .yaml file or {MODEL_FILES}")
            };
            return Err(vec![problem(path, message)]);
        }
        let problems = found.unserved.iter().map(|model| Diagnostic {
            file: model.path.clone(),
            line: 0,
            path: String::new(),
            message: model.lines("  ").join("\n"),
        });
        return Err(problems.collect());
    }
    let mut all = Found::default();
    let mut problems = Vec::new();
    for manifest in manifests {
        match read_manifest(manifest) {
            Ok(found) => {
                all.objects.extend(found.objects);
                all.graphs.extend(found.graphs);
            }
            Err(more) => problems.extend(more),
        }
    }
    if problems.is_empty() { Ok(all) } else { Err(problems) }
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

fn read_manifest(file: &Path) -> Result<Found, Vec<Diagnostic>> {
    let text =
        std::fs::read_to_string(file).map_err(|e| vec![problem(file, format!("cannot be read: {e}"))])?;
    let manifest = parse_manifest(&file.display().to_string(), &text)?;
    let mut errors: Vec<Diagnostic> = manifest.foreign.iter().map(ForeignObject::unsupported).collect();
    let mut found = Found { objects: manifest.objects, ..Found::default() };
    for object in manifest.cluster {
        if object.graph.is_some() {
            found.graphs.push(object);
            continue;
        }
        match object.into_scheduled() {
            Ok(parsed) => found.objects.push(parsed),
            Err(more) => errors.extend(more),
        }
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
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
            other => (other.name().to_owned(), other.kind().name().to_lowercase()),
        };
        desired.objects.values().map(of).collect()
    }

    #[test]
    fn policies_select_models_of_all_files() {
        let model = manifest("iris", "/m").replace("{name: iris}", "{name: iris, labels: {team: a}}");
        let policy = "apiVersion: gantry.dev/v1alpha1\nkind: RolloutPolicy\nmetadata: {name: careful}\n\
                      spec: {selector: {kind: Model, matchLabels: {team: a}}, strategy: {blueGreen: {}}}\n";
        let dir = tree(&[("a/policy.yaml", policy), ("b/model.yaml", &model)]);
        let read = |folders: &[&str]| {
            let paths: Vec<PathBuf> = folders.iter().map(|folder| dir.path().join(folder)).collect();
            Sources::new(&paths).unwrap().read()
        };
        let desired = read(&["a", "b"]).unwrap();
        let kinds: Vec<Kind> = desired.objects.keys().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [Kind::RolloutPolicy, Kind::Model], "policies are applied before models");
        let Some(Object::RolloutPolicy(policy)) = desired.objects.values().next() else {
            panic!("{desired:?}")
        };
        assert_eq!(policy.models, ["iris"]);
        let message = read(&["a"]).unwrap_err().into_error().message;
        assert!(message.contains("spec.selector selects no Model of these manifests"), "{message}");
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
    fn models_are_recognised_by_their_content_and_layout() {
        let dir = tree(&[
            ("churn.json", r#"{"learner": {}}"#),
            ("package.json", r#"{"name": "x"}"#),
            ("demand.txt", "tree\nversion=v4\n"),
            ("notes.txt", "trees are green"),
            ("net/1/model.onnx", "x"),
            ("net/2/model.onnx", "x"),
            ("net/config.pbtxt", ""),
            ("2024/iris.onnx", "x"),
        ]);
        let root = dir.path().canonicalize().unwrap();
        let at = |p: &str| root.join(p).display().to_string();
        assert_eq!(
            models(dir.path()),
            [
                ("churn".into(), at("churn.json")),
                ("demand".into(), at("demand.txt")),
                ("iris".into(), at("2024/iris.onnx")),
                ("net".into(), at("net"))
            ]
        );
        assert_eq!(models(&root.join("net")), [("net".into(), at("net"))]);
        assert_eq!(models(&root.join("demand.txt")), [("demand".into(), at("demand.txt"))]);
    }

    #[test]
    fn files_of_other_frameworks_are_rejected_with_the_way_to_convert_them() {
        for (file, content, expected) in [
            ("churn.pkl", PICKLE, "gantry convert "),
            ("churn.pkl", PICKLE, " --allow-python"),
            ("net.pt", "x", "torch.onnx.export"),
            ("m/saved_model.pb", "x", "gantry convert "),
            ("llama.gguf", "GGUF", "llama.cpp"),
        ] {
            let dir = tree(&[(file, content)]);
            let (whole, _) = file.split_once("saved_model").unwrap_or((file, ""));
            for path in [dir.path().to_owned(), dir.path().join(whole)] {
                let message = Sources::new(&[path]).unwrap().read().unwrap_err().into_error().message;
                assert!(message.contains(expected) && message.ends_with("Nothing was started."), "{message}");
            }
        }
    }

    const PICKLE: &str = "c__builtin__\nobject\ncsklearn.svm\nSVC\n.";

    #[test]
    fn models_beside_served_ones_are_reported() {
        let dir = tree(&[("iris.onnx", "x"), ("churn.pkl", PICKLE), ("notes.md", ""), ("iris.pkl", PICKLE)]);
        let sources = Sources::new(&[dir.path().to_owned()]).unwrap();
        let reported = |desired: &DesiredState| -> Vec<(String, String)> {
            let of = |model: &Unserved| (model.name.clone(), model.reason.clone());
            desired.unserved.iter().map(of).collect()
        };
        let desired = sources.read().unwrap();
        let needs = "scikit-learn pickle (SVC): needs Python. A pickle runs code when it is loaded.";
        assert_eq!(
            reported(&desired),
            [
                ("churn.pkl".into(), needs.into()),
                ("iris.pkl".into(), "not served: iris.onnx has the same name".into())
            ]
        );
        assert_eq!(desired.unserved[0].lines("").len(), 3, "{:?}", desired.unserved[0]);
        assert_eq!(models(dir.path()).len(), 1);

        let desired = sources.allowing_python(true).read().unwrap();
        assert_eq!(reported(&desired).len(), 1, "only the one of the same name");
        assert_eq!(desired.python.len(), 1);
        let Some(Object::Model(churn)) = desired.objects.get(&(Kind::Model, "churn".into())) else {
            panic!()
        };
        assert_eq!(churn.spec.requirements, [PYTHON]);
    }

    #[test]
    fn folders_of_other_tools_are_one_model() {
        let mlflow = "flavors: {python_function: {}, xgboost: {data: model.xgb}}";
        let settings =
            r#"{"implementation": "mlserver_sklearn.SKLearnModel", "parameters": {"uri": "./m.joblib"}}"#;
        let dir = tree(&[
            ("churn/MLmodel", mlflow),
            ("churn/model.xgb", "{\"learner\":1}"),
            ("churn/input_example.json", "{}"),
            ("iris/model-settings.json", settings),
            ("iris/m.joblib", PICKLE),
            ("flowers/1/model.savedmodel/saved_model.pb", "x"),
            ("fraud/model.pkl", PICKLE),
            ("tree.model", "{\"learner\":1}"),
        ]);
        let root = dir.path().canonicalize().unwrap();
        let desired =
            Sources::new(std::slice::from_ref(&root)).unwrap().allowing_python(true).read().unwrap();
        let models: Vec<(&str, String)> = desired
            .objects
            .values()
            .map(|object| match object {
                Object::Model(m) => {
                    let uri = Path::new(&m.spec.storage_uri).strip_prefix(&root).unwrap().display();
                    (m.metadata.name.as_str(), format!("{} {uri}", m.spec.requirements[0]))
                }
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = [
            ("churn", "xgboost churn/model.xgb"),
            ("flowers", "python flowers"),
            ("fraud", "python fraud"),
            ("iris", "python iris"),
            ("tree", "xgboost tree.model"),
        ];
        assert_eq!(models, expected.map(|(name, uri)| (name, uri.to_owned())));
        assert_eq!(desired.unserved, []);
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
    fn model_does_not_change_with_the_time_of_its_file() {
        let dir = tree(&[("iris.onnx", "x"), ("fraud/model.json", "{}")]);
        let sources = Sources::new(&[dir.path().to_owned()]).unwrap();
        let (before, print) = (sources.read().unwrap(), sources.fingerprint());
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(10);
        for file in ["iris.onnx", "fraud/model.json"] {
            let file = std::fs::File::options().write(true).open(dir.path().join(file)).unwrap();
            file.set_modified(later).unwrap();
        }
        assert_ne!(sources.fingerprint(), print, "the files are read again");
        assert_eq!(sources.read().unwrap().objects, before.objects);
        std::fs::write(dir.path().join("iris.onnx"), "y").unwrap();
        assert_ne!(sources.read().unwrap().objects, before.objects, "same size, other content");
    }

    #[test]
    fn model_changes_with_the_weights_beside_its_file() {
        let dir = tree(&[("net.onnx", "x"), ("net.onnx.data", "1"), ("other.onnx", "x")]);
        let sources = Sources::new(&[dir.path().to_owned()]).unwrap();
        let before = sources.read().unwrap();
        std::fs::write(dir.path().join("net.onnx.data"), "22").unwrap();
        let after = sources.read().unwrap();
        let changed = |name: &str| {
            let key = (Kind::Model, name.to_owned());
            before.objects[&key] != after.objects[&key]
        };
        assert!(changed("net") && !changed("other"));
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
