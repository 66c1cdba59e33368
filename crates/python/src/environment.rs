//! Python environments, made once per list of requirements and kept in the cache directory.

use crate::{Requirements, interpreter, process};
use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// Overrides the cache directory.
const VARIABLE: &str = "GANTRY_CACHE_DIR";
const VENV_TIMEOUT: Duration = Duration::from_mins(5);
const INSTALL_TIMEOUT: Duration = Duration::from_hours(1);
const LOCK_POLL: Duration = Duration::from_millis(200);
/// The list of requirements, written when the environment is complete.
const LIST: &str = "gantry-requirements.txt";
/// Building these from their sources takes long and needs compilers: their wheels are installed or nothing.
const WHEELS_ONLY: &str = "catboost,keras,lightgbm,numpy,onnx,pandas,scikit-learn,scipy,tensorflow,tensorflow-cpu,torch,xgboost,xgboost-cpu";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no Python environment with {packages}: {reason}")]
pub struct EnvironmentError {
    packages: String,
    reason: String,
}

/// An environment that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    directory: PathBuf,
    /// Minor version of Python 3.
    minor: u32,
}

impl Environment {
    pub fn python(&self) -> PathBuf {
        self.directory.join("bin/python")
    }

    /// Such as `3.12`.
    pub fn version(&self) -> String {
        format!("3.{}", self.minor)
    }

    /// The installed version of a package, by the name of its metadata.
    pub fn installed(&self, package: &str) -> Option<String> {
        let packages = self.directory.join(format!("lib/python3.{}/site-packages", self.minor));
        let prefix = format!("{}-", package.replace('-', "_").to_ascii_lowercase());
        fs::read_dir(packages).ok()?.flatten().find_map(|entry| {
            let name = entry.file_name().to_string_lossy().to_ascii_lowercase();
            name.strip_prefix(&prefix)?.strip_suffix(".dist-info").map(str::to_owned)
        })
    }
}

/// The environments of a cache directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environments {
    directory: PathBuf,
}

impl Environments {
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Below the user's cache directory.
    pub fn of_user() -> Result<Self, String> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = set(VARIABLE)
            .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("gantry")))
            .or_else(|| set("HOME").map(|home| home.join(".cache/gantry")));
        let cache = cache.ok_or_else(|| format!("there is no cache directory: set {VARIABLE} or HOME"))?;
        let cache = std::path::absolute(&cache).unwrap_or(cache);
        Ok(Self::new(cache.join("python")))
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The environment of a list, made if it is missing. `progress` gets a line for each step. Blocking.
    pub fn prepare(
        &self,
        requirements: &Requirements,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Environment, EnvironmentError> {
        let failed = |reason: String| EnvironmentError { packages: requirements.packages.join(", "), reason };
        let interpreter = interpreter::find(&requirements.python).map_err(failed)?;
        let mut packages = requirements.packages.clone();
        packages.sort();
        let list = format!("# {}\n{}\n", interpreter.program.display(), packages.join("\n"));
        let name = format!("python3.{}-{:032x}", interpreter.minor, digest(list.as_bytes()));
        let directory = self.directory.join(&name);
        let environment = Environment { directory: directory.clone(), minor: interpreter.minor };
        let is_complete = || fs::read_to_string(directory.join(LIST)).is_ok_and(|found| found == list);
        if is_complete() {
            return Ok(environment);
        }
        let not_writable =
            |e: io::Error| failed(format!("{} is not writable: {e}", self.directory.display()));
        fs::create_dir_all(&self.directory).map_err(not_writable)?;
        let lock = File::create(self.directory.join(format!("{name}.lock"))).map_err(not_writable)?;
        let give_up = Instant::now() + INSTALL_TIMEOUT;
        // Another process makes the same environment.
        while let Err(error) = lock.try_lock() {
            match error {
                TryLockError::WouldBlock if Instant::now() < give_up => std::thread::sleep(LOCK_POLL),
                TryLockError::WouldBlock => {
                    return Err(failed("another process has been making it for an hour".into()));
                }
                TryLockError::Error(error) => return Err(not_writable(error)),
            }
        }
        if is_complete() {
            return Ok(environment);
        }
        progress(&format!(
            "making a Python 3.{} environment with {}",
            interpreter.minor,
            packages.join(", ")
        ));
        let started = Instant::now();
        let draft =
            tempfile::Builder::new().prefix(".new-").tempdir_in(&self.directory).map_err(not_writable)?;
        let text = |failed: process::Failed| {
            let end: Vec<String> =
                failed.last_lines.into_iter().filter(|line| line.starts_with("ERROR")).collect();
            format!("{}{}{}", failed.reason, if end.is_empty() { "" } else { ": " }, end.join("; "))
        };
        let mut venv = Command::new(&interpreter.program);
        venv.args(["-m", "venv"]).arg(draft.path());
        process::run(venv, &process::Limits::within(VENV_TIMEOUT), &mut |_| {})
            .map_err(|e| failed(text(e)))?;
        let mut pip = Command::new(draft.path().join("bin/python"));
        pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off"])
            .args(["--prefer-binary", "--only-binary", WHEELS_ONLY, "--"])
            .args(&packages)
            // The user's packages are no part of it.
            .env("PYTHONNOUSERSITE", "1")
            .env_remove("PYTHONPATH")
            .env_remove("PIP_TARGET")
            .env_remove("PIP_USER");
        let mut forward = |line: &str| {
            let line = line.trim();
            if line.starts_with("Downloading ")
                && !line.ends_with(".metadata")
                && !line.contains(".metadata ")
            {
                progress(line);
            }
        };
        process::run(pip, &process::Limits::within(INSTALL_TIMEOUT), &mut forward)
            .map_err(|e| failed(text(e)))?;
        fs::write(draft.path().join(LIST), &list).map_err(not_writable)?;
        // An incomplete one of a version that did not rename.
        let _ = fs::remove_dir_all(&directory);
        fs::rename(draft.keep(), &directory).map_err(not_writable)?;
        progress(&format!(
            "the environment is ready after {:.0} s: {}",
            started.elapsed().as_secs_f64(),
            directory.display()
        ));
        Ok(environment)
    }
}

/// FNV-1a with 128 bits: a name that is the same in every version of Gantry.
fn digest(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cached environment without packages, made by the first test that needs it.
    #[test]
    fn environment_is_made_once_and_an_unknown_package_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let environments = Environments::new(dir.path().join("python"));
        // A path as a requirement installs without a network.
        let package = dir.path().join("package");
        fs::create_dir(&package).unwrap();
        let unknown = Requirements::new(&["./no-such-package-here"]);
        let error = environments.prepare(&unknown, &mut |_| {}).unwrap_err().to_string();
        assert!(
            error.contains("no Python environment with ./no-such-package-here: ") && error.contains("failed"),
            "{error}"
        );
        let left = fs::read_dir(environments.directory()).unwrap().flatten();
        let left: Vec<PathBuf> = left.map(|e| e.path()).collect();
        assert!(left.iter().all(|path| path.extension().is_some_and(|e| e == "lock")), "{left:?}");

        let mut lines = Vec::new();
        // Already a part of every environment.
        let pip = Requirements::new(&["pip"]);
        let made = environments.prepare(&pip, &mut |line| lines.push(line.to_owned())).unwrap();
        assert!(made.python().exists() && made.installed("pip").is_some());
        assert!(lines.first().is_some_and(|line| line.contains("environment with pip")), "{lines:?}");
        lines.clear();
        assert_eq!(environments.prepare(&pip, &mut |line| lines.push(line.to_owned())), Ok(made));
        assert!(lines.is_empty(), "the second use makes nothing: {lines:?}");
    }

    #[test]
    fn missing_interpreter_is_named_with_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let ancient = Requirements { packages: vec!["scikit-learn==0.19".into()], python: 2..=3 };
        let error = Environments::new(dir.path()).prepare(&ancient, &mut |_| {}).unwrap_err().to_string();
        assert!(
            error.contains("it needs Python 3.2 to 3.3 with venv") && error.contains("GANTRY_PYTHON"),
            "{error}"
        );
    }

    #[test]
    fn names_are_the_same_in_every_version() {
        assert_eq!(digest(b""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(digest(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
