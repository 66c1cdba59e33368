//! Programs from Debian's packages.

use crate::{Failure, Unavailable, cache};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Installs packages.
pub(crate) fn install(packages: &[&str]) -> Result<(), Failure> {
    eprintln!("Installing {} (once)", packages.join(", "));
    let words = [&["install", "--yes", "--quiet", "--no-install-recommends"], packages].concat();
    with_current_lists(|| apt(Path::new("/"), &words)).map(drop)
}

/// The directory with the files of a package. It is not installed, so that none of its services starts.
pub(crate) fn unpacked(package: &str) -> Result<PathBuf, Failure> {
    let parent = cache::directory()?.join("debian");
    let directory = parent.join(package);
    if directory.is_dir() {
        return Ok(directory);
    }
    if !Path::new("/usr/bin/apt-get").is_file() {
        return Err(Unavailable(format!("it needs {package} of Debian, and there is no apt-get")).into());
    }
    eprintln!("Downloading {package} (once)");
    let work = parent.join(format!("{package}-{}", std::process::id()));
    fs::create_dir_all(&work)?;
    if !with_current_lists(|| apt(&work, &["download", "--quiet", package]))? {
        return Err(format!("apt-get download {package} failed").into());
    }
    let archive = fs::read_dir(&work)?.next().ok_or("apt-get downloaded nothing")??.path();
    let files = work.join("files");
    let mut unpack = Command::new("dpkg-deb");
    if !unpack.arg("--extract").arg(archive).arg(&files).status()?.success() {
        return Err(format!("{package} cannot be unpacked").into());
    }
    // Another process may have been faster.
    let renamed = fs::rename(&files, &directory);
    fs::remove_dir_all(&work)?;
    if directory.is_dir() { Ok(directory) } else { renamed.map(|()| directory).map_err(Into::into) }
}

/// Runs a command of apt-get; again with new package lists if it fails: a fresh machine has none, and old ones have removed packages.
fn with_current_lists(command: impl Fn() -> Result<bool, Failure>) -> Result<bool, Failure> {
    if Path::new("/var/lib/apt/lists/lock").exists() && command()? {
        return Ok(true);
    }
    apt(Path::new("/"), &["update", "--quiet"])?;
    command()
}

fn apt(directory: &Path, words: &[&str]) -> Result<bool, Failure> {
    let mut command = Command::new("apt-get");
    command.current_dir(directory).env("DEBIAN_FRONTEND", "noninteractive").args(words);
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).status()?.success())
}
