//! The directory that both programs share, `~/.config/seldon/cli`, and how a file in it is replaced.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Where configurations and the session are kept.
pub(super) fn directory() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|h| !h.is_empty())?;
    Some(Path::new(&home).join(".config/seldon/cli"))
}

/// Writes a file as a whole: who reads it meanwhile sees the old one or the new one.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let draft = path.with_extension(format!("new-{}", std::process::id()));
    let written = fs::write(&draft, content).and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        // The draft is of no use to anybody.
        let _ = fs::remove_file(&draft);
    }
    written
}
