//! A copy of the workspace with all mutants in it.

use super::table::{self, Mutant};
use crate::{Failure, metadata};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A copy that can be built.
pub(super) struct Copy {
    pub(super) root: PathBuf,
    build: PathBuf,
}

/// Brings the copy up to date. Unchanged files keep their modification time, so that cargo builds incrementally.
pub(super) fn prepare(mutants: &[Mutant]) -> Result<Copy, Failure> {
    let (root, directory) = (metadata::root(), metadata::target().join("mutants"));
    let copy = Copy { root: directory.join("workspace"), build: directory.join("build") };
    let mut mutated = table::mutated(&root, mutants)?;
    let module = fs::read_to_string(root.join("crates/sim/mutants/mutant.rs"))?;
    let crates: BTreeSet<String> =
        mutated.keys().filter_map(|file| Some(file.split_once("/src/")?.0.to_owned())).collect();
    for name in crates {
        let library = ["lib", "main"].map(|file| format!("{name}/src/{file}.rs"));
        let [library, main] = library;
        let library = if root.join(&library).is_file() { library } else { main };
        let text = mutated.remove(&library).map_or_else(|| fs::read_to_string(root.join(&library)), Ok)?;
        mutated.insert(library, text + "mod mutant;\n");
        mutated.insert(format!("{name}/src/mutant.rs"), module.clone());
    }
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(&root)
        .output()?;
    if !listed.status.success() {
        return Err("git ls-files failed: --mutants needs a git checkout".into());
    }
    let listed = String::from_utf8(listed.stdout)?;
    let existing = listed.split('\0').filter(|file| root.join(file).is_file());
    let files: BTreeSet<&str> = existing.chain(mutated.keys().map(String::as_str)).collect();
    for file in &files {
        let content = match mutated.get(*file) {
            Some(text) => text.clone().into_bytes(),
            None => fs::read(root.join(file))?,
        };
        let to = copy.root.join(file);
        if fs::read(&to).is_ok_and(|present| present == content) {
            continue;
        }
        fs::create_dir_all(to.parent().unwrap_or(&copy.root))?;
        fs::write(&to, content)?;
    }
    remove_others(&copy.root, Path::new(""), &files)?;
    Ok(copy)
}

/// Removes files that the workspace no longer has.
fn remove_others(root: &Path, directory: &Path, files: &BTreeSet<&str>) -> Result<(), Failure> {
    for entry in fs::read_dir(root.join(directory))? {
        let entry = entry?;
        let path = directory.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            remove_others(root, &path, files)?;
        } else if path.to_str().is_none_or(|path| !files.contains(path)) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

impl Copy {
    /// Builds one target and returns its executable.
    pub(super) fn build(&self, arguments: &[&str]) -> Result<PathBuf, Failure> {
        let built = metadata::cargo()
            .args(arguments)
            .args(["--message-format", "json-render-diagnostics"])
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.build)
            .stderr(Stdio::inherit())
            .output()?;
        if !built.status.success() {
            return Err(format!("cargo {} failed in {}", arguments.join(" "), self.root.display()).into());
        }
        let messages = String::from_utf8(built.stdout)?;
        // Tests of a program come with the program itself.
        let is_test = arguments.first() == Some(&"test");
        let mut executables = messages.lines().filter_map(|line| {
            let message: Value = serde_json::from_str(line).ok()?;
            let path = message.get("executable")?.as_str().map(PathBuf::from)?;
            (message.pointer("/profile/test") == Some(&Value::Bool(is_test))).then_some(path)
        });
        executables
            .next_back()
            .ok_or_else(|| format!("cargo {} built no executable", arguments.join(" ")).into())
    }
}
