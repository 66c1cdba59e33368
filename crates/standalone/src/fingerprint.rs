//! Change detection of files by size and modification time.

use std::{
    fs::Metadata,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

/// Limits of the walk, for a root such as `/`.
const MAX_DEPTH: usize = 6;
const MAX_FILES: usize = 20_000;

/// All files below a path, sorted, without hidden ones.
pub(crate) fn files_below(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    collect(path, 0, &mut files)?;
    files.sort();
    Ok(files)
}

fn collect(path: &Path, depth: usize, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if path.metadata()?.is_file() {
        files.push(path.to_owned());
        return Ok(());
    }
    if depth > MAX_DEPTH || files.len() > MAX_FILES {
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if !hidden {
            match collect(&entry.path(), depth + 1, files) {
                // Removed since the directory was listed.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
    }
    Ok(())
}

/// A hash that changes when a file below a path is changed, added or removed.
pub(crate) fn of(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in files_below(path).unwrap_or_default() {
        file.hash(&mut hasher);
        if let Ok(meta) = file.metadata() {
            meta.len().hash(&mut hasher);
            modified(&meta).hash(&mut hasher);
        }
    }
    hasher.finish()
}

fn modified(meta: &Metadata) -> u128 {
    meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map_or(0, |d| d.as_nanos())
}
