//! Workspace metadata from cargo.

use crate::Failure;
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The workspace's directory.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_path_buf()
}

/// The target directory.
pub(crate) fn target() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR").filter(|v| !v.is_empty());
    root().join(set.map_or_else(|| PathBuf::from("target"), PathBuf::from))
}

/// The current cargo, or the one on the path, in the workspace directory.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) directory: PathBuf,
    pub(crate) edition: String,
    pub(crate) license: String,
    pub(crate) manifest: String,
    /// Workspace dependencies.
    pub(crate) uses: Vec<String>,
    /// Workspace dev-dependencies.
    pub(crate) tests_use: Vec<String>,
}

/// The workspace's crates, by name.
pub(crate) fn packages() -> Result<Vec<Package>, Failure> {
    let metadata = query(&["--no-deps"])?;
    let listed =
        metadata.get("packages").and_then(Value::as_array).ok_or("cargo metadata lists no packages")?;
    let text =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let names: Vec<String> = listed.iter().map(|p| text(p, "name")).collect();
    let mut packages = Vec::new();
    for package in listed {
        let manifest_path = PathBuf::from(text(package, "manifest_path"));
        let (mut uses, mut tests_use) = (Vec::new(), Vec::new());
        for dependency in package.get("dependencies").and_then(Value::as_array).into_iter().flatten() {
            let name = text(dependency, "name");
            if names.contains(&name) && name != text(package, "name") {
                let kind = dependency.get("kind").and_then(Value::as_str);
                if kind == Some("dev") { &mut tests_use } else { &mut uses }.push(name);
            }
        }
        packages.push(Package {
            name: text(package, "name"),
            edition: text(package, "edition"),
            license: text(package, "license"),
            manifest: std::fs::read_to_string(&manifest_path)?,
            directory: manifest_path.parent().map(Path::to_path_buf).unwrap_or_default(),
            uses,
            tests_use,
        });
    }
    packages.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(packages)
}

/// Names of all packages compiled on this platform with the enabled features. (Those of other platforms may not be
/// downloaded.)
pub(crate) fn resolved() -> Result<Vec<String>, Failure> {
    let about =
        Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("-vV").output()?;
    let about = String::from_utf8_lossy(&about.stdout);
    let host = about.lines().find_map(|l| l.strip_prefix("host: ")).ok_or("rustc does not say its host")?;
    let metadata = query(&["--filter-platform", host])?;
    let nodes =
        metadata.pointer("/resolve/nodes").and_then(Value::as_array).ok_or("cargo metadata has no graph")?;
    let used: Vec<&str> = nodes.iter().filter_map(|n| n.get("id")?.as_str()).collect();
    let mut names: Vec<String> = metadata
        .get("packages")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter(|p| p.get("id").and_then(Value::as_str).is_some_and(|id| used.contains(&id)))
        .filter_map(|p| Some(p.get("name")?.as_str()?.to_owned()))
        .collect();
    names.sort_unstable();
    Ok(names)
}

fn query(more: &[&str]) -> Result<Value, Failure> {
    let output =
        cargo().args(["metadata", "--format-version", "1"]).args(more).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("cargo metadata failed".into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
