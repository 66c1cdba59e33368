//! Change detection of files: by size and modification time, and by content.

use std::{
    collections::HashMap,
    fs::Metadata,
    hash::{DefaultHasher, Hash, Hasher},
    io::Read as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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

/// Hashes of file contents; a file is read again only when its size or modification time has changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContentHashes(Arc<Mutex<HashMap<PathBuf, ContentHash>>>);

#[derive(Clone, Copy, Debug)]
struct ContentHash {
    bytes: u64,
    modified: u128,
    hash: u64,
}

impl ContentHashes {
    /// A hash of the names and contents of the files of a model: of a folder, or of one file with its weights.
    pub(crate) fn of(&self, path: &Path) -> u64 {
        let mut files = files_below(path).unwrap_or_default();
        if path.is_file() {
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            files.extend(gantry_artifacts::companions(path, &name).unwrap_or_default());
        }
        let mut hasher = DefaultHasher::new();
        for file in files {
            file.hash(&mut hasher);
            self.of_file(&file).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn of_file(&self, file: &Path) -> Option<u64> {
        let meta = file.metadata().ok()?;
        let (bytes, modified) = (meta.len(), modified(&meta));
        let known = self.known().get(file).copied();
        if let Some(known) = known.filter(|k| (k.bytes, k.modified) == (bytes, modified)) {
            return Some(known.hash);
        }
        let hash = hash_content(file).ok()?;
        let mut known = self.known();
        // Of files that are gone by now.
        if known.len() >= MAX_FILES {
            known.clear();
        }
        known.insert(file.to_owned(), ContentHash { bytes, modified, hash });
        Some(hash)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<PathBuf, ContentHash>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hash_content(file: &Path) -> std::io::Result<u64> {
    let mut file = std::fs::File::open(file)?;
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            count => hasher.write(buffer.get(..count).unwrap_or_default()),
        }
    }
}
