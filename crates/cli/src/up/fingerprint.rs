//! Telling whether files changed, without reading them.

use std::{
    fs::Metadata,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

/// How deep and how many files are looked at: a directory of models, not a disk.
const DEEPEST: usize = 6;
const MOST: usize = 20_000;

/// Every file below a path, sorted; hidden ones are passed over.
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
    if depth > DEEPEST || files.len() > MOST {
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if !hidden {
            match collect(&entry.path(), depth + 1, files) {
                // It went away between the listing and the look.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
    }
    Ok(())
}

/// A number that changes when a file below a path is changed, added or removed.
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
