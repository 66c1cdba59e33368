//! A file with a size limit, and the files before it.

use super::AuditSettings;
use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::PathBuf,
};

pub(super) struct RotatedFile {
    settings: AuditSettings,
    current: Option<(File, u64)>,
}

impl RotatedFile {
    pub(super) const fn new(settings: AuditSettings) -> Self {
        Self { settings, current: None }
    }

    /// Opens the current file. An unfinished last line, of a process that was killed, is ended.
    pub(super) fn open(&mut self) -> io::Result<()> {
        self.opened().map(drop)
    }

    fn opened(&mut self) -> io::Result<&mut (File, u64)> {
        if self.current.is_none() {
            let mut options = OpenOptions::new();
            options.read(true).append(true).create(true);
            #[cfg(unix)]
            {
                use std::os::unix::fs::OpenOptionsExt as _;
                // Names of users and models are not for everyone on the machine.
                options.mode(0o600);
            }
            let mut file = options.open(&self.settings.file)?;
            let mut size = file.metadata()?.len();
            let mut end = [b'\n'];
            if size > 0 {
                file.seek(SeekFrom::End(-1))?;
                file.read_exact(&mut end)?;
            }
            if end != *b"\n" {
                file.write_all(b"\n")?;
                size += 1;
            }
            self.current = Some((file, size));
        }
        self.current.as_mut().ok_or_else(|| io::Error::other("not open"))
    }

    /// Appends lines, and starts a new file before if they do not fit.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let max_size = self.settings.max_size;
        let added = lines.len() as u64;
        let size = self.opened()?.1;
        if size > 0 && size.saturating_add(added) > max_size {
            self.current = None;
            self.rotate()?;
        }
        let (file, size) = self.opened()?;
        match file.write_all(lines) {
            Ok(()) => {
                *size += added;
                Ok(())
            }
            Err(error) => {
                // What was written of the lines goes: a full disk leaves no half of a line.
                let _ = file.set_len(*size);
                self.current = None;
                Err(error)
            }
        }
    }

    /// Renames the files, the oldest first, which is replaced.
    fn rotate(&self) -> io::Result<()> {
        let last = self.settings.max_files.saturating_sub(1);
        if last == 0 {
            return fs::remove_file(&self.settings.file);
        }
        for i in (0..last).rev() {
            match fs::rename(self.numbered(i), self.numbered(i + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// The file itself for 0.
    fn numbered(&self, i: u32) -> PathBuf {
        if i == 0 {
            return self.settings.file.clone();
        }
        let mut name = OsString::from(&self.settings.file);
        name.push(format!(".{i}"));
        name.into()
    }
}
