//! Python environments in a cache of their own: one for each list of requirements, made once.

use crate::{Failure, cache};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What to look for, in this order, when nothing is said by `GANTRY_PYTHON`.
const NAMES: [&str; 5] = ["python3", "python3.12", "python3.11", "python3.13", "python3.10"];

/// A Python interpreter.
#[derive(Clone, Debug)]
pub(crate) struct Python {
    program: PathBuf,
    /// Such as (3, 11).
    pub(crate) version: (u32, u32),
}

/// The first Python whose version is in this range; `None` when there is none.
pub(crate) fn find(from: (u32, u32), to: (u32, u32)) -> Option<Python> {
    let wished = std::env::var("GANTRY_PYTHON").ok().filter(|p| !p.is_empty());
    let names: Vec<String> = wished.map_or_else(|| NAMES.map(str::to_owned).into(), |p| vec![p]);
    names.into_iter().filter_map(|name| probe(&name)).find(|p| (from..=to).contains(&p.version))
}

fn probe(name: &str) -> Option<Python> {
    // `venv` and `ensurepip` are packages of their own on some systems.
    let script = "import sys, venv, ensurepip; print(*sys.version_info[:2], sys.executable)";
    let said = Command::new(name)
        .args(["-c", script])
        .stderr(Stdio::null())
        .output()
        .ok()
        .filter(|o| o.status.success())?;
    let said = String::from_utf8(said.stdout).ok()?;
    let mut words = said.trim().splitn(3, ' ');
    let version = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(Python { program: words.next()?.into(), version })
}

/// The directory with the programs of an environment that has these requirements; it is made when it is not there.
pub(crate) fn environment(python: &Python, requirements: &Path) -> Result<PathBuf, Failure> {
    let text = fs::read_to_string(requirements).map_err(|e| format!("{}: {e}", requirements.display()))?;
    let name = requirements.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let (major, minor) = python.version;
    let key = cache::fingerprint(&format!("{}\n{text}", python.program.display()));
    let cache = cache::directory()?;
    let place = cache.join(format!("python{major}.{minor}-{name}-{key:016x}"));
    fs::create_dir_all(&cache)?;
    // Two runs at once: the second waits and then finds the work done.
    let lock = File::create(place.with_extension("lock"))?;
    lock.lock()?;
    let programs = place.join(if cfg!(windows) { "Scripts" } else { "bin" });
    if place.join("complete").exists() {
        return Ok(programs);
    }
    eprintln!("Installing {} into {} (once)", requirements.display(), place.display());
    if place.exists() {
        // A run was interrupted here.
        fs::remove_dir_all(&place)?;
    }
    succeed(Command::new(&python.program).args(["-m", "venv"]).arg(&place))?;
    let pip =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:", "-r"];
    succeed(Command::new(programs.join("python")).args(pip).arg(requirements))?;
    fs::write(place.join("complete"), text)?;
    Ok(programs)
}

fn succeed(command: &mut Command) -> Result<(), Failure> {
    let status = command.stdin(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}").into()) }
}
