//! `cargo xtask crds`: the kinds' definitions for Kubernetes, made from their Rust types.

use crate::{Failure, metadata};

/// Writes `deploy/crds`, or with `--check` says whether it is what the types say.
pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    let check: &[&str] = match arguments {
        [] => &[],
        ["--check"] => &["--check"],
        other => return Err(format!("crds takes --check or nothing, not {}", other.join(" ")).into()),
    };
    let mut command = metadata::cargo();
    // A program of its own, because this one does not know our types: it must be quick to build.
    command.args(["run", "--quiet", "--package", "gantry-api", "--example", "crds", "--"]);
    Ok(command.args(check).arg("deploy/crds").status()?.success())
}
