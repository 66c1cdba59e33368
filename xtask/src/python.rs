//! Cached Python environments, one per requirements file.

use crate::{Failure, cache};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Interpreters to try, in order, unless `GANTRY_PYTHON` is set.
const NAMES: [&str; 5] = ["python3", "python3.12", "python3.11", "python3.13", "python3.10"];

/// A Python interpreter.
#[derive(Clone, Debug)]
pub(crate) struct Python {
    program: PathBuf,
    /// Such as (3, 11).
    pub(crate) version: (u32, u32),
}

/// The first Python with a version in this range.
pub(crate) fn find(from: (u32, u32), to: (u32, u32)) -> Option<Python> {
    let wished = std::env::var("GANTRY_PYTHON").ok().filter(|p| !p.is_empty());
    let names: Vec<String> = wished.map_or_else(|| NAMES.map(str::to_owned).into(), |p| vec![p]);
    names.into_iter().filter_map(|name| probe(&name)).find(|p| (from..=to).contains(&p.version))
}

fn probe(name: &str) -> Option<Python> {
    // `venv` and `ensurepip` are separate packages on some systems.
    let script = "import sys, venv, ensurepip; print(*sys.version_info[:2], sys.executable)";
    let output = Command::new(name)
        .args(["-c", script])
        .stderr(Stdio::null())
        .output()
        .ok()
        .filter(|o| o.status.success())?;
    let output = String::from_utf8(output.stdout).ok()?;
    let mut words = output.trim().splitn(3, ' ');
    let version = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(Python { program: words.next()?.into(), version })
}

/// The `bin` directory of an environment with these requirements; created if missing.
pub(crate) fn environment(python: &Python, requirements: &Path) -> Result<PathBuf, Failure> {
    let text = fs::read_to_string(requirements).map_err(|e| format!("{}: {e}", requirements.display()))?;
    let name = requirements.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let (major, minor) = python.version;
    let key = cache::fingerprint(&format!("{}\n{text}", python.program.display()));
    let cache = cache::directory()?;
    let place = cache.join(format!("python{major}.{minor}-{name}-{key:016x}"));
    fs::create_dir_all(&cache)?;
    // A concurrent run waits and then finds the environment.
    let lock = File::create(place.with_extension("lock"))?;
    lock.lock()?;
    let programs = place.join(if cfg!(windows) { "Scripts" } else { "bin" });
    if place.join("complete").exists() {
        return Ok(programs);
    }
    eprintln!("Installing {} into {} (once)", requirements.display(), place.display());
    if place.exists() {
        // Left by an interrupted run.
        fs::remove_dir_all(&place)?;
    }
    succeed(Command::new(&python.program).args(["-m", "venv"]).arg(&place))?;
    let pip =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:", "-r"];
    succeed(Command::new(programs.join("python")).args(pip).arg(requirements))?;
    fs::write(place.join("complete"), text)?;
    Ok(programs)
}

/// `lib/python3.11/site-packages` beside the programs of an environment, which has this package.
pub(crate) fn packages(programs: &Path, package: &str) -> Result<PathBuf, Failure> {
    let libraries = programs.parent().ok_or("no environment")?.join("lib");
    let mut found =
        fs::read_dir(libraries)?.filter_map(Result::ok).map(|entry| entry.path().join("site-packages"));
    Ok(found.find(|path| path.join(package).is_dir()).ok_or_else(|| format!("{package} is not installed"))?)
}

fn succeed(command: &mut Command) -> Result<(), Failure> {
    let status = command.stdin(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}").into()) }
}
