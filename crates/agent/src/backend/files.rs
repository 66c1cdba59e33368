//! File operations.

use crate::model_server::LoadError;
use std::{fs, io, path::Path};

const MAX_DEPTH: u32 = 64;

/// Whether a name is safe as a folder name.
pub(crate) fn plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Copies the entries of `from` accepted by `wanted`, recursively.
pub(crate) fn copy_tree(from: &Path, to: &Path, wanted: impl Fn(&str) -> bool) -> Result<(), LoadError> {
    let failed =
        |e: io::Error| LoadError::transient(format!("failed to copy files to {}: {e}", to.display()));
    fs::create_dir_all(to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if wanted(&name.to_string_lossy()) {
            copy(&entry.path(), &to.join(&name), 0).map_err(failed)?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, depth: u32) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(io::Error::other("folders are nested too deeply"));
    }
    let kind = fs::symlink_metadata(from)?.file_type();
    if kind.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()), depth + 1)?;
        }
    } else if kind.is_file() {
        fs::copy(from, to)?;
        writable(to)?;
    }
    // Other file types are skipped.
    Ok(())
}

/// Cache files are read-only; copies belong to the server.
fn writable(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(path)?.permissions().mode();
        fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o600))
    }
    #[cfg(not(unix))]
    {
        let mut permissions = fs::metadata(path)?.permissions();
        permissions.set_readonly(false);
        fs::set_permissions(path, permissions)
    }
}

/// Idempotent.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Version folders, highest last.
pub(super) fn numbered(directory: &Path) -> Vec<(u32, String)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<(u32, String)> = entries
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .filter_map(|e| {
            let name = e.file_name().to_string_lossy().into_owned();
            let digits = name.bytes().all(|b| b.is_ascii_digit());
            Some((name.parse().ok().filter(|_| digits)?, name))
        })
        .collect();
    found.sort();
    found
}

pub(super) fn read_small(path: &Path) -> Result<Option<String>, String> {
    const MAX_SIZE: u64 = 1 << 20;
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Ok(found) if found.len() > MAX_SIZE => {
            return Err(format!("{name} has {} bytes: too large for a settings file", found.len()));
        }
        _ => {}
    }
    fs::read_to_string(path).map(Some).map_err(|e| format!("{name} cannot be read: {e}"))
}
