//! How a release was built: an in-toto statement with the predicate of SLSA 1.0.

use crate::{Failure, image};
use serde_json::{Value, json};
use std::{env, fs, path::Path, process::Command};

/// What a release is built from.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) repository: String,
    pub(super) commit: String,
    /// The tag of the commit, if it has one.
    pub(super) tag: Option<String>,
    /// Seconds since 1970.
    pub(super) committed: u64,
    lock_digest: String,
    toolchain: String,
}

impl Source {
    /// The commit of a checkout without changes.
    pub(super) fn of_checkout(root: &Path) -> Result<Self, Failure> {
        let changes = git(root, &["status", "--porcelain"])?;
        if let Some(first) = changes.lines().next() {
            return Err(format!(
                "the checkout has changes ({}): a release is built from a commit; commit or remove them",
                first.trim()
            )
            .into());
        }
        let toolchain = Command::new("rustc").arg("--version").output()?;
        Ok(Self {
            repository: env!("CARGO_PKG_REPOSITORY").to_owned(),
            commit: git(root, &["rev-parse", "HEAD"])?,
            tag: git(root, &["describe", "--tags", "--exact-match"]).ok(),
            committed: git(root, &["log", "-1", "--format=%ct"])?.parse()?,
            lock_digest: image::sha256(&fs::read(root.join("Cargo.lock"))?),
            toolchain: String::from_utf8_lossy(&toolchain.stdout).trim().to_owned(),
        })
    }

    #[cfg(test)]
    pub(super) fn of_checkout_for_tests() -> Self {
        Self {
            repository: "https://git.example/gantry".into(),
            commit: "5e884898da28047151d0e56f8dc6292773603d0d".into(),
            tag: Some("v0.1.0".into()),
            committed: 1_780_000_000,
            lock_digest: "ab".repeat(32),
            toolchain: "rustc 1.95.0".into(),
        }
    }
}

/// The statement about these artifacts (name and digest). The same sources and builder give the same bytes.
pub(super) fn statement(artifacts: &[(String, String)], source: &Source) -> Value {
    let subject: Vec<Value> =
        artifacts.iter().map(|(name, digest)| json!({"name": name, "digest": {"sha256": digest}})).collect();
    let origin = format!("git+{}", source.repository);
    json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subject,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": format!("{}/blob/main/RELEASING.md#build-type-1", source.repository),
                "externalParameters": {
                    "command": "cargo xtask release",
                    "ref": source.tag.as_ref().map_or_else(|| source.commit.clone(), |tag| format!("refs/tags/{tag}")),
                },
                "internalParameters": {"toolchain": source.toolchain},
                "resolvedDependencies": [
                    {"uri": origin, "digest": {"gitCommit": source.commit}},
                    {"uri": format!("{origin}#Cargo.lock"), "digest": {"sha256": source.lock_digest}},
                ],
            },
            "runDetails": {"builder": {"id": builder()}, "metadata": {"invocationId": invocation()}},
        },
    })
}

/// The workflow of GitHub that builds, or a build by hand.
fn builder() -> String {
    match (env::var("GITHUB_SERVER_URL"), env::var("GITHUB_WORKFLOW_REF")) {
        (Ok(server), Ok(workflow)) => format!("{server}/{workflow}"),
        _ => "by-hand".into(),
    }
}

fn invocation() -> String {
    let part = |name| env::var(name).unwrap_or_default();
    match env::var("GITHUB_RUN_ID") {
        Ok(run) => format!("{}/{}/actions/runs/{run}", part("GITHUB_SERVER_URL"), part("GITHUB_REPOSITORY")),
        Err(_) => String::new(),
    }
}

fn git(root: &Path, words: &[&str]) -> Result<String, Failure> {
    let output = Command::new("git").args(words).current_dir(root).output()?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("git {}: {}", words.join(" "), reason.trim()).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_names_artifacts_commit_and_lock() {
        let source = Source::of_checkout_for_tests();
        let statement = statement(&[("gantry.tar.gz".into(), "cd".repeat(32))], &source);
        let text = |pointer: &str| statement.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        assert_eq!(text("/_type"), "https://in-toto.io/Statement/v1");
        assert_eq!(text("/subject/0/name"), "gantry.tar.gz");
        assert_eq!(text("/subject/0/digest/sha256"), "cd".repeat(32));
        let build = "/predicate/buildDefinition";
        assert_eq!(text(&format!("{build}/externalParameters/ref")), "refs/tags/v0.1.0");
        assert_eq!(text(&format!("{build}/resolvedDependencies/0/digest/gitCommit")), source.commit);
        assert_eq!(text(&format!("{build}/resolvedDependencies/1/digest/sha256")), source.lock_digest);
    }

    #[test]
    fn checkout_with_changes_is_refused() {
        let root = std::env::temp_dir().join(format!("gantry-provenance-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        git(&root, &["init", "--quiet"]).unwrap();
        fs::write(root.join("Cargo.lock"), "").unwrap();
        let refused = Source::of_checkout(&root).unwrap_err().to_string();
        assert!(refused.contains("Cargo.lock") && refused.contains("commit or remove"), "{refused}");
        git(&root, &["add", "."]).unwrap();
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false"];
        git(&root, &[&identity[..], &["commit", "--quiet", "-m", "one"]].concat()).unwrap();
        let source = Source::of_checkout(&root).unwrap();
        assert_eq!((source.commit.len(), source.tag), (40, None));
        fs::remove_dir_all(&root).unwrap();
    }
}
