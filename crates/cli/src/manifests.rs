//! Manifests from files, directories and stdin: all of them checked before any of them is used.

use crate::failure::{Exit, Failure};
use gantry_api::{ClusterObject, Object, Parsed, Problem, runtime_of_file};
use gantry_artifacts::Uri;
use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

/// Largest manifest that is read.
const LARGEST: u64 = 4 << 20;
/// Most files that a directory may hold, so that `-R /` ends.
const MOST_FILES: usize = 10_000;
/// How deep directories are followed.
const DEEPEST: usize = 32;

/// Everything that was read.
#[derive(Debug, Default)]
pub(crate) struct Manifests {
    /// The objects, in the order of files.
    pub(crate) objects: Vec<Parsed>,
    /// Objects that only Kubernetes takes.
    pub(crate) cluster: Vec<ClusterObject>,
    /// What is wrong.
    pub(crate) problems: Vec<Problem>,
    /// How many files were read.
    pub(crate) files: usize,
}

impl Manifests {
    /// Reads files, directories and `-`, for a scheduler: what only Kubernetes takes is a problem. Fails only when one
    /// of them cannot be read at all.
    pub(crate) fn read(paths: &[PathBuf], recursive: bool) -> Result<Self, Failure> {
        let mut manifests = Self::read_all(paths, recursive)?;
        let refused = std::mem::take(&mut manifests.cluster);
        manifests.problems.extend(refused.iter().map(ClusterObject::refusal));
        Ok(manifests)
    }

    /// The same, for whoever wants to know whether they are right, whoever takes them.
    pub(crate) fn read_all(paths: &[PathBuf], recursive: bool) -> Result<Self, Failure> {
        let mut manifests = Self::default();
        for path in paths {
            if path.as_os_str() == "-" {
                let text = bounded(std::io::stdin().lock());
                manifests.add("stdin", Path::new("."), text);
                continue;
            }
            let about = fs::metadata(path).map_err(|e| unreadable(path, &e))?;
            if !about.is_dir() {
                manifests.add_file(path)?;
                continue;
            }
            let mut found = Vec::new();
            list(path, recursive, 0, &mut found)?;
            if found.is_empty() {
                let deeper = if recursive { "" } else { "; -R looks into its directories too" };
                return Err(Failure::usage(format!(
                    "{} holds no manifests (*.yaml, *.yml, *.json){deeper}",
                    path.display()
                )));
            }
            for file in found {
                manifests.add_file(&file)?;
            }
        }
        manifests.find_twins();
        Ok(manifests)
    }

    /// The objects; or every problem, and what follows from them.
    pub(crate) fn checked(self, consequence: &str) -> Result<Vec<Parsed>, Failure> {
        if self.problems.is_empty() {
            return Ok(self.objects);
        }
        let lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        Err(Failure::new(Exit::Usage, format!("{}\n{consequence}", lines.join("\n"))))
    }

    fn add_file(&mut self, path: &Path) -> Result<(), Failure> {
        let file = fs::File::open(path).map_err(|e| unreadable(path, &e))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        self.add(&path.display().to_string(), folder, bounded(file));
        Ok(())
    }

    fn add(&mut self, file: &str, folder: &Path, text: Result<String, String>) {
        self.files += 1;
        let text = match text {
            Ok(text) => text,
            Err(message) => {
                self.problems.push(Problem { file: file.to_owned(), line: 0, path: String::new(), message });
                return;
            }
        };
        match gantry_api::read(file, &text) {
            Ok(found) => {
                self.cluster.extend(found.cluster);
                for mut parsed in found.objects {
                    self.problems.extend(check_uri(&parsed, &text));
                    anchor(&mut parsed.object, folder);
                    self.objects.push(parsed);
                }
            }
            Err(problems) => self.problems.extend(problems),
        }
    }

    /// The same object in two files: nobody can say which one is meant.
    fn find_twins(&mut self) {
        let mut seen: BTreeMap<_, (&str, u32)> = BTreeMap::new();
        let ours =
            self.objects.iter().map(|p| (p.object.kind().name(), p.object.name(), None, &p.file, p.line));
        let cluster = self.cluster.iter();
        let theirs = cluster.map(|c| (c.kind, c.name.as_str(), c.namespace.as_deref(), &c.file, c.line));
        for (kind, name, namespace, file, line) in ours.chain(theirs) {
            if let Some((first, at)) = seen.get(&(kind, name, namespace)) {
                self.problems.push(Problem {
                    file: file.clone(),
                    line,
                    path: "metadata.name".into(),
                    message: format!(
                        "\"{name}\" is used twice: {kind} {name} stands at {first}:{at} already"
                    ),
                });
            } else {
                seen.insert((kind, name, namespace), (file, line));
            }
        }
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    let why = match error.kind() {
        std::io::ErrorKind::NotFound => "does not exist".to_owned(),
        std::io::ErrorKind::PermissionDenied => "may not be read".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    Failure::usage(format!("{} {why}", path.display()))
}

/// A text that is not larger than a manifest may be.
fn bounded(source: impl Read) -> Result<String, String> {
    let mut bytes = Vec::new();
    source.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|e| format!("cannot be read: {e}"))?;
    if bytes.len() as u64 > LARGEST {
        return Err(format!("has more than {LARGEST} bytes: split it"));
    }
    String::from_utf8(bytes).map_err(|_| "is not text in UTF-8".to_owned())
}

fn list(folder: &Path, recursive: bool, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let entries = fs::read_dir(folder).map_err(|e| unreadable(folder, &e))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            if recursive && depth < DEEPEST && !path.is_symlink() {
                list(&path, recursive, depth + 1, found)?;
            }
        } else if is_manifest(&path) {
            found.push(path);
        }
        if found.len() > MOST_FILES {
            return Err(Failure::usage(format!(
                "{} holds more than {MOST_FILES} manifests",
                folder.display()
            )));
        }
    }
    Ok(())
}

/// Whether a file of a directory is a manifest: a model's own `model.json` is none.
fn is_manifest(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    matches!(ending.as_str(), "yaml" | "yml") || (ending == "json" && runtime_of_file(name).is_none())
}

/// What is wrong with where a model's files are said to be.
fn check_uri(parsed: &Parsed, text: &str) -> Option<Problem> {
    let Object::Model(model) = &parsed.object else { return None };
    let said = Uri::parse(&model.spec.storage_uri).err()?.to_string();
    let message = match said.strip_prefix("storageUri ") {
        Some(rest) => rest.to_owned(),
        None => format!("cannot be used: {said}"),
    };
    let start = usize::try_from(parsed.line).unwrap_or(0).saturating_sub(1);
    let offset = text.lines().skip(start).position(|l| l.contains("storageUri")).unwrap_or(0);
    let line = u32::try_from(start + offset + 1).unwrap_or(parsed.line);
    Some(Problem { file: parsed.file.clone(), line, path: "spec.storageUri".into(), message })
}

/// Makes a relative path absolute: it is relative to the manifest, and the scheduler does not know where that is.
fn anchor(object: &mut Object, folder: &Path) {
    let Object::Model(model) = object else { return };
    let Ok(Uri::Local(path)) = Uri::parse(&model.spec.storage_uri) else { return };
    if !path.is_relative() {
        return;
    }
    let written = &model.spec.storage_uri;
    let meant_here = written.starts_with("./") || written.starts_with("../") || written == ".";
    let joined = folder.join(&path);
    if !meant_here && !joined.exists() {
        return;
    }
    // Where `..` leads through links, only the file system knows.
    let whole = joined.canonicalize().or_else(|_| std::path::absolute(&joined));
    if let Ok(whole) = whole {
        model.spec.storage_uri = whole.display().to_string();
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
    fn a_directory_gives_its_manifests_in_order_and_not_its_models() {
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
    fn relative_places_are_relative_to_the_manifest() {
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
    fn the_same_name_in_two_files_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let a = write(dir.path(), "a.yaml", "iris", "/m");
        let b = write(dir.path(), "b.yaml", "iris", "/n");
        let read = Manifests::read(&[a.clone(), b.clone()], false).unwrap();
        let [problem] = read.problems.as_slice() else { panic!("one problem: {:?}", read.problems) };
        assert_eq!(
            problem.to_string(),
            format!(
                "{}:1: metadata.name \"iris\" is used twice: Model iris stands at {}:1 already",
                b.display(),
                a.display()
            )
        );
    }

    #[test]
    fn what_belongs_to_kubernetes_is_checked_and_kept_from_schedulers() {
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
        let said: Vec<String> = refused.problems.iter().map(ToString::to_string).collect();
        let at = file.display();
        let words =
            "kind SeldonRuntime belongs to Kubernetes, where the operator acts on it: use kubectl apply -f";
        assert_eq!(said, [format!("{at}:1: {words} {at}"), format!("{at}:6: {words} {at}")]);
    }

    #[test]
    fn what_is_too_large_or_no_text_is_a_problem_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let large = dir.path().join("large.yaml");
        fs::write(&large, vec![b' '; usize::try_from(LARGEST).unwrap() + 1]).unwrap();
        let binary = dir.path().join("binary.yaml");
        fs::write(&binary, [0xff, 0xfe]).unwrap();
        let read = Manifests::read(&[large, binary], false).unwrap();
        let said: Vec<&str> = read.problems.iter().map(|p| p.message.as_str()).collect();
        assert_eq!(said, ["has more than 4194304 bytes: split it", "is not text in UTF-8"]);
    }
}
