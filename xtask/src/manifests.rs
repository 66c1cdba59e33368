//! `cargo xtask manifests`: plain manifests from the chart, for `kubectl apply` and `gantry install`.

mod verify;

use crate::{Failure, count::Count, k8s::Programs, metadata};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const WORDS: &str = "manifests takes nothing, --check, or --verify [--kubeconfig FILE]";
/// The namespace in the plain manifests; `gantry install` replaces it.
const NAMESPACE: &str = "seldon-mesh";

/// A manifest file and its chart values.
struct File {
    name: &'static str,
    about: &'static str,
    /// Chart values; `None` for the CRDs, which are not rendered.
    values: Option<&'static [&'static str]>,
}

const FILES: [File; 4] = [
    File { name: "crds.yaml", about: "the kinds, which come first", values: None },
    File {
        name: "gantry.yaml",
        about: "the operator, and what servers and runtimes are made of",
        values: Some(&["--set", "namespace.create=true"]),
    },
    File {
        name: "runtime.yaml",
        about: "a scheduler, a gateway and a server, in the operator's own namespace",
        values: Some(&["--set", "runtime.create=true", "--show-only", "templates/runtime.yaml"]),
    },
    File {
        name: "webhook.yaml",
        about: "the operator with its admission webhook, which is optional: apply it after gantry.yaml",
        values: Some(&[
            "--set",
            "webhook.enabled=true",
            "--show-only",
            "templates/deployment.yaml",
            "--show-only",
            "templates/webhook.yaml",
        ]),
    },
];

pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    match arguments {
        [] => write(),
        ["--check"] => check(),
        ["--verify"] => Ok(verify::run(None)?.failed == 0),
        ["--verify", "--kubeconfig", file] => Ok(verify(Path::new(file))?.failed == 0),
        _ => Err(WORDS.into()),
    }
}

/// Verifies the manifests with Helm, kube-score and an API server.
pub(crate) fn verify(kubeconfig: &Path) -> Result<Count, Failure> {
    verify::run(Some(kubeconfig))
}

pub(crate) fn directory() -> PathBuf {
    metadata::root().join("deploy/manifests")
}

fn chart() -> PathBuf {
    metadata::root().join("deploy/chart")
}

fn write() -> Result<bool, Failure> {
    std::fs::create_dir_all(directory())?;
    for file in &FILES {
        std::fs::write(directory().join(file.name), file.text()?)?;
        println!("deploy/manifests/{}", file.name);
    }
    Ok(true)
}

fn check() -> Result<bool, Failure> {
    let mut same = true;
    for file in &FILES {
        let there = std::fs::read_to_string(directory().join(file.name)).unwrap_or_default();
        if there != file.text()? {
            println!("deploy/manifests/{} is not what the chart gives: run cargo xtask manifests", file.name);
            same = false;
        }
    }
    Ok(same)
}

impl File {
    fn text(&self) -> Result<String, Failure> {
        let objects = match self.values {
            Some(values) => plain(&render(NAMESPACE, values)?),
            None => definitions()?,
        };
        Ok(format!("# Gantry: {}. Made by `cargo xtask manifests`.\n{objects}", self.about))
    }
}

/// All CRDs in one document.
fn definitions() -> Result<String, Failure> {
    let crds = metadata::root().join("deploy/crds");
    let mut files = Vec::new();
    for entry in
        std::fs::read_dir(&crds).map_err(|e| format!("{}: {e}; cargo xtask crds makes it", crds.display()))?
    {
        files.push(entry?.path());
    }
    files.sort();
    let mut text = String::new();
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "yaml")) {
        let definition = std::fs::read_to_string(file)?;
        let body = definition.lines().filter(|l| !l.starts_with('#') && *l != "---");
        text += "---\n";
        body.for_each(|line| text += &format!("{line}\n"));
    }
    Ok(text)
}

/// The chart rendered with these values.
pub(crate) fn render(namespace: &str, values: &[&str]) -> Result<String, Failure> {
    let mut helm = Command::new(tool("helm")?);
    // A Helm built without release flags assumes a very old cluster.
    helm.args(["template", "gantry", "--kube-version", "1.33.0"])
        .arg(chart())
        .args(["--namespace", namespace])
        .args(values);
    output(&mut helm)
}

/// Removes Helm's labels: these manifests are not installed by Helm.
fn plain(rendered: &str) -> String {
    let about_helm = ["# Source:", "helm.sh/chart:", "app.kubernetes.io/managed-by: Helm"];
    let kept =
        rendered.lines().filter(|line| !about_helm.iter().any(|word| line.trim_start().starts_with(word)));
    let mut text = String::new();
    for line in kept {
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// A program on the path, or built once for the test cluster.
fn tool(name: &str) -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(found) =
        std::env::split_paths(&path).map(|place| place.join(name)).find(|file| file.is_file())
    {
        return Ok(found);
    }
    let programs = Programs::locate()?;
    programs.ensure(&[name])?;
    Ok(programs.path(name))
}

/// The output of a program, if it succeeds.
fn output(command: &mut Command) -> Result<String, Failure> {
    let shown = command.get_program().display().to_string();
    let ended = command.stdin(Stdio::null()).output().map_err(|e| format!("{shown}: {e}"))?;
    if ended.status.success() {
        return Ok(String::from_utf8(ended.stdout)?);
    }
    Err(format!(
        "{shown} failed: {}{}",
        String::from_utf8_lossy(&ended.stdout),
        String::from_utf8_lossy(&ended.stderr)
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_manifests_have_no_helm_labels() {
        let rendered = "---\n# Source: gantry/templates/x.yaml\nmetadata:\n  labels:\n    helm.sh/chart: gantry-0.1.0\n    \
                        app.kubernetes.io/managed-by: Helm\n    app.kubernetes.io/name: gantry  \n# why\n";
        assert_eq!(plain(rendered), "---\nmetadata:\n  labels:\n    app.kubernetes.io/name: gantry\n# why\n");
    }

    /// Without Helm: compares committed files.
    #[test]
    fn committed_crds_match_deploy_crds() {
        let committed = std::fs::read_to_string(directory().join("crds.yaml")).unwrap();
        assert!(committed.ends_with(&definitions().unwrap()), "run cargo xtask manifests");
        assert_eq!(committed.matches("\nkind: CustomResourceDefinition\n").count(), 7);
    }
}
