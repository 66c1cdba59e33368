//! Programs from crates.io that checks need, built once into the cache: mdBook, cargo-deny and cargo-cyclonedx.

use crate::{Failure, cache, metadata};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// A program, its pinned version, and how it is built.
struct Tool {
    name: &'static str,
    version: &'static str,
    features: &'static [&'static str],
}

const MDBOOK: Tool =
    Tool { name: "mdbook", version: "0.5.4", features: &["--no-default-features", "--features", "search"] };
/// Bills of materials of releases.
const CYCLONEDX: Tool = Tool { name: "cargo-cyclonedx", version: "0.5.9", features: &[] };
const DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2", features: &["--no-default-features"] };

impl Tool {
    /// The program's path; builds it when this version is not in the cache.
    fn path(&self) -> Result<PathBuf, Failure> {
        let root = cache::directory()?.join("tools").join(format!("{}-{}", self.name, self.version));
        let program = root.join("bin").join(self.name);
        if !program.exists() {
            println!("Building {} {} into {}", self.name, self.version, root.display());
            let mut install = Command::new("cargo");
            install.args(["install", "--quiet", "--locked", self.name, "--version", self.version]);
            install.args(self.features).arg("--root").arg(&root);
            // Outside the workspace: its toolchain and target directory do not apply.
            install.current_dir(std::env::temp_dir()).env_remove("CARGO_TARGET_DIR");
            if !install.status()?.success() {
                return Err(format!("cargo install {} {} failed", self.name, self.version).into());
            }
        }
        Ok(program)
    }
}

/// The path of cargo-cyclonedx.
pub(crate) fn cyclonedx() -> Result<PathBuf, Failure> {
    CYCLONEDX.path()
}

/// `cargo xtask deny`: licences, banned crates and sources of all dependencies, by deny.toml.
pub(crate) fn deny() -> Result<bool, Failure> {
    let mut command = Command::new(DENY.path()?);
    command.current_dir(metadata::root()).args(["--log-level", "error", "--locked", "check"]);
    Ok(command.args(["licenses", "bans", "sources"]).status()?.success())
}

/// `cargo xtask book`: builds docs/ as an mdBook and checks that every relative link leads to a file.
pub(crate) fn book() -> Result<bool, Failure> {
    let root = metadata::root();
    let output = metadata::target().join("book");
    let mut command = Command::new(MDBOOK.path()?);
    command.current_dir(&root).arg("build").arg("docs").arg("--dest-dir").arg(&output);
    let built = command.status()?.success();
    let broken = broken_links(&root)?;
    for link in &broken {
        println!("{link}");
    }
    println!("{}", output.join("index.html").display());
    Ok(built && broken.is_empty())
}

/// Relative links in Markdown files whose target does not exist, and pages that the table of contents lacks.
fn broken_links(root: &Path) -> Result<Vec<String>, Failure> {
    let listed = Command::new("git").args(["ls-files", "-z", "*.md"]).current_dir(root).output()?;
    let summary = std::fs::read_to_string(root.join("docs/SUMMARY.md"))?;
    let mut broken = Vec::new();
    for file in String::from_utf8(listed.stdout)?.split('\0').filter(|file| !file.is_empty()) {
        let Ok(text) = std::fs::read_to_string(root.join(file)) else { continue };
        let directory = root.join(file).parent().unwrap_or(root).to_path_buf();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            let is_relative = !target.is_empty() && !target.contains(':') && !target.contains(' ');
            if is_relative && !directory.join(target).exists() {
                broken.push(format!("{file}: {link} does not exist"));
            }
        }
        let page = file.strip_prefix("docs/").filter(|page| *page != "SUMMARY.md");
        if let Some(page) = page.filter(|page| !summary.contains(&format!("({page})"))) {
            broken.push(format!("{file} is not in docs/SUMMARY.md: add ({page})"));
        }
    }
    Ok(broken)
}

/// `cargo xtask msrv`: compiles with the oldest supported toolchain when it differs from this one and is installed.
pub(crate) fn msrv() -> Result<bool, Failure> {
    let manifest = std::fs::read_to_string(metadata::root().join("Cargo.toml"))?;
    let msrv = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    let msrv = msrv.ok_or("Cargo.toml has no rust-version")?;
    let active = Command::new("rustc").arg("--version").output()?;
    let active = String::from_utf8_lossy(&active.stdout).into_owned();
    if active.starts_with(&format!("rustc {msrv}.")) {
        println!("{} is the oldest supported toolchain: every build checks it", active.trim());
        return Ok(true);
    }
    let toolchain = format!("+{msrv}");
    let check = Command::new("cargo").args([&toolchain, "check", "--workspace", "--locked"]).status()?;
    Ok(check.success())
}
