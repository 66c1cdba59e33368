//! `cargo xtask dashboard`: builds the pages of the dashboard with npm; the result is committed, so that a build of Gantry
//! needs a Rust toolchain only.

use crate::{Failure, Unavailable, cache, metadata};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    let assets = assets();
    match arguments {
        [] => {
            for (name, content) in build()? {
                fs::write(assets.join(&name), content)?;
                println!("{}", assets.join(name).display());
            }
            Ok(true)
        }
        ["--check"] => {
            let stale = stale()?;
            for name in &stale {
                println!(
                    "{} differs from its source: run cargo xtask dashboard",
                    assets.join(name).display()
                );
            }
            Ok(stale.is_empty())
        }
        _ => Err("dashboard takes --check or nothing".into()),
    }
}

/// Committed files that differ from what their source builds to.
pub(crate) fn stale() -> Result<Vec<String>, Failure> {
    let (built, committed) = (build()?, files(&assets())?);
    let names = built.keys().chain(committed.keys()).cloned();
    let mut stale: Vec<String> = names.filter(|name| built.get(name) != committed.get(name)).collect();
    stale.sort();
    stale.dedup();
    Ok(stale)
}

fn assets() -> PathBuf {
    metadata::root().join("crates/dashboard/assets")
}

/// The files by name. They are built in the cache, beside the packages of the lock file.
fn build() -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    let source = metadata::root().join("crates/dashboard/web");
    let lock = fs::read_to_string(source.join("package-lock.json"))?;
    let packages = cache::directory()?.join(format!("dashboard-{:016x}", cache::fingerprint(&lock)));
    fs::create_dir_all(&packages)?;
    // A concurrent run waits.
    let guard = fs::File::create(packages.with_extension("lock"))?;
    guard.lock()?;
    for name in ["package.json", "package-lock.json", "tsconfig.json", "build.mjs"] {
        fs::copy(source.join(name), packages.join(name))?;
    }
    if packages.join("src").exists() {
        fs::remove_dir_all(packages.join("src"))?;
    }
    copy(&source.join("src"), &packages.join("src"))?;
    if !packages.join("complete").exists() {
        eprintln!("Installing the packages of the dashboard into {} (once)", packages.display());
        // Packages run no programs of their own.
        step(&packages, "npm", &["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"])?;
        fs::write(packages.join("complete"), "")?;
    }
    step(&packages, "node", &["node_modules/typescript/bin/tsc", "--noEmit"])?;
    let out = packages.join("out");
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    step(&packages, "node", &["build.mjs", "out"])?;
    files(&out)
}

fn step(directory: &Path, program: &str, words: &[&str]) -> Result<(), Failure> {
    let mut command = Command::new(program);
    let status = command.current_dir(directory).args(words).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("{program} {} failed in {}", words.join(" "), directory.display()).into()),
        Err(_) => Err(Unavailable(format!("it needs {program}: install Node.js 20 or later")).into()),
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn files(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        found.insert(name, fs::read(&path)?);
    }
    Ok(found)
}
