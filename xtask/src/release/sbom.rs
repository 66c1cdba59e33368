//! The bill of materials of the program, by cargo-cyclonedx.

use super::{Source, platform, succeed};
use crate::{Failure, image, metadata, tools};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Writes the components of `gantry` as released, with versions, licences and digests.
pub(super) fn write(source: &Source, file: &Path) -> Result<(), Failure> {
    let checkout = checkout(source)?;
    let mut cyclonedx = Command::new(tools::cyclonedx()?);
    // Of one platform, without build-time dependencies: what runs.
    cyclonedx.args(["cyclonedx", "-qq", "--format", "json", "--spec-version", "1.5", "--no-build-deps"]);
    cyclonedx.arg("--target").arg(platform());
    cyclonedx
        .args(["--override-filename", "sbom", "--manifest-path"])
        .arg(checkout.join("crates/cli/Cargo.toml"));
    cyclonedx.env("SOURCE_DATE_EPOCH", source.committed.to_string());
    succeed(&mut cyclonedx)?;
    let mut bill: Value = serde_json::from_slice(&fs::read(checkout.join("crates/cli/sbom.json"))?)?;
    without_paths(&mut bill, &checkout.display().to_string(), source);
    if let Some(bill) = bill.as_object_mut() {
        // The tool's is random.
        bill.insert("serialNumber".into(), serial_number(source).into());
    }
    fs::write(file, serde_json::to_string_pretty(&bill)? + "\n")?;
    Ok(())
}

/// A copy of the commit: cargo-cyclonedx writes a file into every crate.
fn checkout(source: &Source) -> Result<PathBuf, Failure> {
    let directory = metadata::target().join("release-source");
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    let mut clone = Command::new("git");
    succeed(clone.args(["clone", "--quiet", "--no-checkout"]).arg(metadata::root()).arg(&directory))?;
    let mut checkout = Command::new("git");
    succeed(checkout.arg("-C").arg(&directory).args(["checkout", "--quiet", &source.commit]))?;
    Ok(directory)
}

/// Replaces the paths of this machine by places in the repository.
fn without_paths(value: &mut Value, root: &str, source: &Source) {
    match value {
        Value::String(text) => {
            if let Some((name, _)) = text.split_once("?download_url=file://") {
                *text = format!("{name}?vcs_url=git%2B{}%40{}", source.repository, source.commit);
            } else if text.contains(root) {
                *text = text.replace(&format!("file://{root}/"), "").replace(root, "");
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| without_paths(value, root, source)),
        Value::Object(fields) => fields.values_mut().for_each(|value| without_paths(value, root, source)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A UUID that depends on the commit only.
fn serial_number(source: &Source) -> String {
    let digest = image::sha256(format!("{}@{}", source.repository, source.commit).as_bytes());
    let part = |from: usize, to: usize| digest.get(from..to).unwrap_or_default();
    // Version 8: of the application's own form.
    format!("urn:uuid:{}-{}-8{}-8{}-{}", part(0, 8), part(8, 12), part(13, 16), part(17, 20), part(20, 32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_of_the_machine_are_replaced() {
        let source = Source::of_checkout_for_tests();
        let mut bill = json!({"components": [
            {"bom-ref": "path+file:///tmp/a/crates/api#gantry-api@0.1.0",
             "purl": "pkg:cargo/gantry-api@0.1.0?download_url=file://../api"},
            {"bom-ref": "registry+x#serde@1.0.0", "purl": "pkg:cargo/serde@1.0.0"},
        ]});
        without_paths(&mut bill, "/tmp/a", &source);
        let text = |pointer: &str| bill.pointer(pointer).and_then(Value::as_str).unwrap();
        assert_eq!(text("/components/0/bom-ref"), "path+crates/api#gantry-api@0.1.0");
        let purl = text("/components/0/purl");
        assert!(purl.starts_with("pkg:cargo/gantry-api@0.1.0?vcs_url=git%2Bhttps://git.example"), "{purl}");
        assert_eq!(text("/components/1/purl"), "pkg:cargo/serde@1.0.0");
    }

    #[test]
    fn serial_number_is_a_uuid_of_the_commit() {
        let one = Source::of_checkout_for_tests();
        let mut other = one.clone();
        other.commit = "0".repeat(40);
        let number = serial_number(&one);
        assert_eq!(number.len(), "urn:uuid:".len() + 36);
        assert_eq!(number, serial_number(&one));
        assert_ne!(number, serial_number(&other));
    }
}
