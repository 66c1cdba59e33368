//! Files that are copied, found and removed.

use std::{fs, io, path::Path};

/// Folders within folders that are copied; what is deeper is not a model.
const DEEPEST: u32 = 64;

/// Whether a name may become the name of a folder.
pub(crate) fn plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Copies what is below `from` to `to`, but for the entries of `from` itself that are not `wanted`.
pub(crate) fn copy_tree(from: &Path, to: &Path, wanted: impl Fn(&str) -> bool) -> Result<(), String> {
    let failed = |e: io::Error| format!("its files cannot be copied to {}: {e}", to.display());
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
    if depth > DEEPEST {
        return Err(io::Error::other("folders are nested too deep"));
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
    // Anything else has no place in a model: the cache keeps files and folders only.
    Ok(())
}

/// The cache's files are read-only; these are the server's own.
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

/// Removes a folder with all that is in it; one that is not there counts as removed.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// The folders of a directory whose names are numbers, the highest last.
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

/// A small text file of a model; `None` when there is none.
pub(super) fn read_small(path: &Path) -> Result<Option<String>, String> {
    const LARGEST: u64 = 1 << 20;
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Ok(found) if found.len() > LARGEST => {
            return Err(format!("{name} has {} bytes: that is no settings file", found.len()));
        }
        _ => {}
    }
    fs::read_to_string(path).map(Some).map_err(|e| format!("{name} cannot be read: {e}"))
}
