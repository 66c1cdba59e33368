//! Manifests from files, directories and stdin, validated as a whole before use.

use crate::error::{CommandError, Exit};
use gantry_api::{ClusterObject, Diagnostic, ForeignObject, Object, Parsed, runtime_of_file};
use gantry_artifacts::Uri;
use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

const MAX_FILE_BYTES: u64 = 4 << 20;
/// Bounds `-R /`.
const MAX_FILES: usize = 10_000;
const MAX_DEPTH: usize = 32;
/// Name of stdin in messages.
const STDIN: &str = "stdin";

#[derive(Debug, Default)]
pub(crate) struct Manifests {
    /// In file order.
    pub(crate) objects: Vec<Parsed>,
    /// Kinds that only exist on Kubernetes.
    pub(crate) cluster: Vec<ClusterObject>,
    /// Objects of other API groups.
    pub(crate) foreign: Vec<ForeignObject>,
    pub(crate) problems: Vec<Diagnostic>,
    /// Fields that are valid, but probably a mistake.
    pub(crate) warnings: Vec<Diagnostic>,
    pub(crate) files: usize,
}

impl Manifests {
    /// Reads files, directories and `-` for a scheduler: InferenceServices become models, other kinds of the operator and
    /// of other API groups are reported as problems. Fails only if a path cannot be read.
    pub(crate) fn read(paths: &[PathBuf], recursive: bool) -> Result<Self, CommandError> {
        let mut manifests = Self::read_files(paths, recursive, true)?;
        manifests
            .problems
            .extend(std::mem::take(&mut manifests.foreign).iter().map(ForeignObject::unsupported));
        Ok(manifests)
    }

    /// Like `read`, but keeps the objects that are not for a scheduler.
    pub(crate) fn read_all(paths: &[PathBuf], recursive: bool) -> Result<Self, CommandError> {
        Self::read_files(paths, recursive, false)
    }

    fn read_files(paths: &[PathBuf], recursive: bool, for_scheduler: bool) -> Result<Self, CommandError> {
        let mut manifests = Self::default();
        for (file, text) in read_files(paths, recursive)? {
            let folder = match file.as_str() {
                STDIN => Path::new("."),
                path => Path::new(path).parent().unwrap_or(Path::new(".")),
            };
            manifests.add(&file, folder, text, for_scheduler);
        }
        manifests.find_duplicates();
        manifests.problems.extend(gantry_api::check_set(&manifests.objects));
        Ok(manifests)
    }

    /// Sets the models of the policies, which needs the Models among the objects.
    pub(crate) fn with_resolved_policies(mut self) -> Self {
        // An invalid file may have the Models that a policy selects.
        if self.problems.is_empty() {
            self.problems = gantry_api::resolve_policies(&mut self.objects);
        }
        self
    }

    /// The objects, or all problems followed by `consequence`.
    pub(crate) fn checked(self, consequence: &str) -> Result<Vec<Parsed>, CommandError> {
        if self.problems.is_empty() {
            return Ok(self.objects);
        }
        let lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        Err(CommandError::new(Exit::Usage, format!("{}\n{consequence}", lines.join("\n"))))
    }

    fn add(&mut self, file: &str, folder: &Path, text: Result<String, String>, for_scheduler: bool) {
        self.files += 1;
        let text = match text {
            Ok(text) => text,
            Err(message) => {
                self.problems.push(Diagnostic {
                    file: file.to_owned(),
                    line: 0,
                    path: String::new(),
                    message,
                });
                return;
            }
        };
        match gantry_api::parse_manifest(file, &text) {
            Ok(found) => {
                let mut objects = found.objects;
                for object in found.cluster {
                    if !for_scheduler {
                        self.cluster.push(object);
                        continue;
                    }
                    match object.into_scheduled() {
                        Ok(parsed) => objects.push(parsed),
                        Err(problems) => self.problems.extend(problems),
                    }
                }
                self.foreign.extend(found.foreign);
                self.warnings.extend(found.warnings);
                for mut parsed in objects {
                    self.problems.extend(check_uri(&parsed, &text));
                    resolve_relative_uri(&mut parsed.object, folder);
                    self.objects.push(parsed);
                }
            }
            Err(problems) => self.problems.extend(problems),
        }
    }

    /// Reports objects that are defined more than once.
    fn find_duplicates(&mut self) {
        let mut seen: BTreeMap<_, (&str, u32)> = BTreeMap::new();
        let objects =
            self.objects.iter().map(|p| (p.object.kind().name(), p.object.name(), None, &p.file, p.line));
        let cluster = self.cluster.iter();
        let cluster = cluster.map(|c| (c.kind, c.name.as_str(), c.namespace.as_deref(), &c.file, c.line));
        for (kind, name, namespace, file, line) in objects.chain(cluster) {
            if let Some((first, at)) = seen.get(&(kind, name, namespace)) {
                self.problems.push(Diagnostic {
                    file: file.clone(),
                    line,
                    path: "metadata.name".into(),
                    message: format!(
                        "\"{name}\" is a duplicate: {kind} {name} is already defined at {first}:{at}"
                    ),
                });
            } else {
                seen.insert((kind, name, namespace), (file, line));
            }
        }
    }
}

/// A file, and its text or why it has none.
pub(crate) type FileText = (String, Result<String, String>);

/// Name and text of each file; `-` is stdin. Fails only if a path cannot be read.
pub(crate) fn read_files(paths: &[PathBuf], recursive: bool) -> Result<Vec<FileText>, CommandError> {
    let mut read = Vec::new();
    let mut add = |path: &Path| {
        let file = fs::File::open(path).map_err(|e| unreadable(path, &e))?;
        read.push((path.display().to_string(), read_text(file)));
        Ok(())
    };
    let mut stdin = None;
    for path in paths {
        if path.as_os_str() == "-" {
            stdin = Some((STDIN.to_owned(), read_text(std::io::stdin().lock())));
            continue;
        }
        let about = fs::metadata(path).map_err(|e| unreadable(path, &e))?;
        if !about.is_dir() {
            add(path)?;
            continue;
        }
        let mut found = Vec::new();
        list(path, recursive, 0, &mut found)?;
        if found.is_empty() {
            let hint = if recursive { "" } else { "; use -R to include subdirectories" };
            return Err(CommandError::usage(format!(
                "{} contains no manifests (*.yaml, *.yml, *.json){hint}",
                path.display()
            )));
        }
        found.iter().try_for_each(|file| add(file))?;
    }
    read.extend(stdin);
    Ok(read)
}

fn unreadable(path: &Path, error: &std::io::Error) -> CommandError {
    let why = match error.kind() {
        std::io::ErrorKind::NotFound => "does not exist".to_owned(),
        std::io::ErrorKind::PermissionDenied => "cannot be read: permission denied".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    CommandError::usage(format!("{} {why}", path.display()))
}

/// UTF-8 text of at most `MAX_FILE_BYTES`.
fn read_text(source: impl Read) -> Result<String, String> {
    let mut bytes = Vec::new();
    source.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|e| format!("cannot be read: {e}"))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("has more than {MAX_FILE_BYTES} bytes: split it"));
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8 text".to_owned())
}

fn list(folder: &Path, recursive: bool, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), CommandError> {
    let entries = fs::read_dir(folder).map_err(|e| unreadable(folder, &e))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            if recursive && depth < MAX_DEPTH && !path.is_symlink() {
                list(&path, recursive, depth + 1, found)?;
            }
        } else if is_manifest(&path) {
            found.push(path);
        }
        if found.len() > MAX_FILES {
            return Err(CommandError::usage(format!(
                "{} contains more than {MAX_FILES} manifests",
                folder.display()
            )));
        }
    }
    Ok(())
}

/// By extension; model files such as XGBoost's `model.json` are excluded.
fn is_manifest(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    matches!(ending.as_str(), "yaml" | "yml") || (ending == "json" && runtime_of_file(name).is_none())
}

/// The problem with a model's `storageUri`, if any.
fn check_uri(parsed: &Parsed, text: &str) -> Option<Diagnostic> {
    let Object::Model(model) = &parsed.object else { return None };
    let error = Uri::parse(&model.spec.storage_uri).err()?.to_string();
    let message = match error.strip_prefix("storageUri ") {
        Some(rest) => rest.to_owned(),
        None => format!("is invalid: {error}"),
    };
    let start = usize::try_from(parsed.line).unwrap_or(0).saturating_sub(1);
    let offset = text.lines().skip(start).position(|l| l.contains("storageUri")).unwrap_or(0);
    let line = u32::try_from(start + offset + 1).unwrap_or(parsed.line);
    Some(Diagnostic { file: parsed.file.clone(), line, path: "spec.storageUri".into(), message })
}

/// Makes a `storageUri` path absolute: it is relative to the manifest, whose directory the scheduler does not know.
fn resolve_relative_uri(object: &mut Object, folder: &Path) {
    let Object::Model(model) = object else { return };
    let Ok(Uri::Local(path)) = Uri::parse(&model.spec.storage_uri) else { return };
    if !path.is_relative() {
        return;
    }
    let written = &model.spec.storage_uri;
    let explicit = written.starts_with("./") || written.starts_with("../") || written == ".";
    let joined = folder.join(&path);
    if !explicit && !joined.exists() {
        return;
    }
    // `canonicalize` first: `..` across symlinks cannot be resolved lexically.
    let absolute = joined.canonicalize().or_else(|_| std::path::absolute(&joined));
    if let Ok(absolute) = absolute {
        model.spec.storage_uri = absolute.display().to_string();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, file: &str, name: &str, uri: &str) -> PathBuf {
        let path = dir.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = format!(
            "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata:\n  name: {name}\nspec:\n  storageUri: {uri}\n"
        );
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn directory_yields_sorted_manifests_without_model_files() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "b.yml", "b", "/m");
        write(dir.path(), "a.yaml", "a", "/m");
        write(dir.path(), "deep/c.yaml", "c", "/m");
        fs::write(dir.path().join("model.json"), "{}").unwrap();
        fs::write(dir.path().join("README.md"), "text").unwrap();
        let names = |recursive| {
            let read = Manifests::read(&[dir.path().to_owned()], recursive).unwrap();
            assert_eq!(read.problems, []);
            read.objects.iter().map(|p| p.object.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(false), ["a", "b"]);
        assert_eq!(names(true), ["a", "b", "c"]);
    }

    #[test]
    fn relative_storage_uri_is_resolved_against_the_manifest() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(root.join("sub/iris.onnx"), "").unwrap();
        fs::write(root.join("up.onnx"), "").unwrap();
        for (uri, expected) in [
            ("./iris.onnx", root.join("sub/iris.onnx").display().to_string()),
            ("iris.onnx", root.join("sub/iris.onnx").display().to_string()),
            ("../up.onnx", root.join("up.onnx").display().to_string()),
            ("./missing.onnx", root.join("sub/missing.onnx").display().to_string()),
            ("missing.onnx", "missing.onnx".to_owned()),
            ("/abs/iris.onnx", "/abs/iris.onnx".to_owned()),
            ("s3://bucket/iris", "s3://bucket/iris".to_owned()),
        ] {
            let file = write(&root, "sub/m.yaml", "m", uri);
            let read = Manifests::read(&[file], false).unwrap();
            let Object::Model(model) = &read.objects[0].object else { panic!("a Model was written") };
            assert_eq!(model.spec.storage_uri, expected, "{uri}");
        }
    }

    #[test]
    fn duplicate_object_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let a = write(dir.path(), "a.yaml", "iris", "/m");
        let b = write(dir.path(), "b.yaml", "iris", "/n");
        let read = Manifests::read(&[a.clone(), b.clone()], false).unwrap();
        let [problem] = read.problems.as_slice() else { panic!("one problem: {:?}", read.problems) };
        assert_eq!(
            problem.to_string(),
            format!(
                "{}:1: metadata.name \"iris\" is a duplicate: Model iris is already defined at {}:1",
                b.display(),
                a.display()
            )
        );
    }

    #[test]
    fn kubernetes_only_kinds_are_problems_for_a_scheduler() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("all.yaml");
        let runtime = |namespace: &str| {
            format!(
                "apiVersion: mlops.seldon.io/v1alpha1\nkind: SeldonRuntime\n\
                 metadata: {{name: seldon, namespace: {namespace}}}\nspec: {{seldonConfig: default}}\n"
            )
        };
        fs::write(&file, format!("{}---\n{}", runtime("a"), runtime("b"))).unwrap();
        let all = Manifests::read_all(std::slice::from_ref(&file), false).unwrap();
        assert_eq!((all.cluster.len(), all.problems.len()), (2, 0), "the same name in two namespaces");
        let refused = Manifests::read(std::slice::from_ref(&file), false).unwrap();
        let problems: Vec<String> = refused.problems.iter().map(ToString::to_string).collect();
        let at = file.display();
        let message = "kind SeldonRuntime is handled by the Kubernetes operator: use kubectl apply -f";
        assert_eq!(problems, [format!("{at}:1: {message} {at}"), format!("{at}:6: {message} {at}")]);
    }

    #[test]
    fn oversized_or_binary_file_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let large = dir.path().join("large.yaml");
        fs::write(&large, vec![b' '; usize::try_from(MAX_FILE_BYTES).unwrap() + 1]).unwrap();
        let binary = dir.path().join("binary.yaml");
        fs::write(&binary, [0xff, 0xfe]).unwrap();
        let read = Manifests::read(&[large, binary], false).unwrap();
        let problems: Vec<&str> = read.problems.iter().map(|p| p.message.as_str()).collect();
        assert_eq!(problems, ["has more than 4194304 bytes: split it", "is not UTF-8 text"]);
    }
}
