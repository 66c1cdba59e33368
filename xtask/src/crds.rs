//! `cargo xtask crds`: generates the CRDs from the Rust types.

use crate::{Failure, metadata};

/// Writes the CRDs in `deploy`, or with `--check` compares them with the types.
pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    let check: &[&str] = match arguments {
        [] => &[],
        ["--check"] => &["--check"],
        other => return Err(format!("crds takes --check or nothing, not {}", other.join(" ")).into()),
    };
    let mut command = metadata::cargo();
    // A separate program: this one does not depend on our types, to stay quick to build.
    command.args(["run", "--quiet", "--package", "gantry-api", "--example", "crds", "--"]);
    Ok(command.args(check).arg("deploy").status()?.success())
}
