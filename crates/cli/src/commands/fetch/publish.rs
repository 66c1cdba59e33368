//! Complete files into the target directory, each by one rename.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

/// Model servers may run as another user.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// Moves everything below `from` to `to`, over files of an earlier run. Both are on one file system.
pub(super) fn move_files(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if !target.is_dir() {
                fs::create_dir(&target)?;
            }
            fs::set_permissions(&target, Permissions::from_mode(DIRECTORY_MODE))?;
            move_files(&entry.path(), &target)?;
        } else {
            fs::set_permissions(entry.path(), Permissions::from_mode(FILE_MODE))?;
            fs::rename(entry.path(), &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_replace_those_of_an_earlier_run() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("1")).unwrap();
        fs::create_dir_all(to.join("1")).unwrap();
        fs::write(from.join("1/model.onnx"), "new").unwrap();
        fs::set_permissions(from.join("1/model.onnx"), Permissions::from_mode(0o400)).unwrap();
        fs::write(to.join("1/model.onnx"), "old, from a run that was killed").unwrap();
        fs::write(to.join("kept"), "by another container").unwrap();
        move_files(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("1/model.onnx")).unwrap(), "new");
        assert_eq!(fs::metadata(to.join("1/model.onnx")).unwrap().permissions().mode() & 0o777, FILE_MODE);
        assert!(to.join("kept").exists() && !from.join("1/model.onnx").exists());
    }
}
