//! Files in `~/.config/seldon/cli`, shared with the original Seldon CLI.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

pub(super) fn directory() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|h| !h.is_empty())?;
    Some(Path::new(&home).join(".config/seldon/cli"))
}

/// Replaces a file atomically.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let temporary = path.with_extension(format!("new-{}", std::process::id()));
    let written = fs::write(&temporary, content).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}
