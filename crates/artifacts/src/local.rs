//! Sources on this machine: copied into the cache, so that a later edit does not change a served model.

use std::fs::{self, File, Metadata};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::digest::{Sha256, hex};
use crate::download_plan::{Folders, choose_version};
use crate::error::FetchError;
use crate::file_tree::{Limits, Names, Record};

/// A change within this time of the last one may leave no trace in the times of a file.
const SETTLED: Duration = Duration::from_secs(2);

/// One file to copy.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    rel: String,
    bytes: u64,
    modified: SystemTime,
}

/// The files of a local source, and the state they are in.
#[derive(Debug)]
pub(crate) struct Local {
    files: Vec<Source>,
    pub(crate) version: Option<u32>,
    /// Whether the source is one file, which may then be an archive.
    pub(crate) single: bool,
    /// Changes when a name, size, time or inode does; `None` while the files are too fresh to tell.
    pub(crate) fingerprint: Option<String>,
    pub(crate) bytes: u64,
}

/// Finds the files of a local source.
pub(crate) fn survey(
    path: &Path,
    wanted: Folders,
    limits: Limits,
    access: &Access,
) -> Result<Local, FetchError> {
    let missing = |error: &std::io::Error| {
        let error = FetchError::io("cannot read the local source", path, error);
        error.remedy(
            "check the path; a relative one is relative to the manifest, or else to the working directory",
        )
    };
    let real = fs::canonicalize(path).map_err(|error| missing(&error))?;
    access.check(&real)?;
    let found = fs::metadata(&real).map_err(|error| missing(&error))?;
    let mut walk = Walk {
        files: Vec::new(),
        names: Names::new(limits),
        limits,
        access,
        folder: &real,
        hash: Sha256::new(),
        newest: SystemTime::UNIX_EPOCH,
        bytes: 0,
    };
    let mut chosen = None;
    if found.is_dir() {
        let mut folders = Vec::new();
        for entry in read_dir(&real)? {
            if fs::metadata(&entry).is_ok_and(|found| found.is_dir()) {
                folders.push(name_of(&entry)?);
            }
        }
        chosen = choose_version(folders.iter().map(String::as_str), wanted, &path.display().to_string())?;
        walk.dir(&real, "", chosen.as_ref().map(|chosen| chosen.folder.as_str()))?;
    } else {
        // The name as written, not the one a symbolic link points to.
        let name = name_of(path)?;
        walk.file(&real, &name, &found)?;
        for companion in companions(&real, &name)? {
            let failed = |error: std::io::Error| FetchError::io("cannot read", &companion, &error);
            let found = fs::metadata(&companion).map_err(failed)?;
            walk.file(&companion, &name_of(&companion)?, &found)?;
        }
    }
    if walk.bytes == 0 {
        return Err(FetchError::permanent("the local source is empty").at(path.display().to_string()));
    }
    let settled = walk.newest.checked_add(SETTLED).is_some_and(|until| until < SystemTime::now());
    Ok(Local {
        fingerprint: settled.then(|| hex(&walk.hash.finish())),
        files: walk.files,
        version: chosen.map(|chosen| chosen.number),
        single: !found.is_dir(),
        bytes: walk.bytes,
    })
}

/// Files with the weights of an ONNX file, which exporters name after it: `net.onnx.data` or `net.onnx_data`.
pub fn companions(file: &Path, name: &str) -> Result<Vec<PathBuf>, FetchError> {
    let Some(folder) = file.parent().filter(|_| name.to_ascii_lowercase().ends_with(".onnx")) else {
        return Ok(Vec::new());
    };
    let is_companion = |path: &PathBuf| {
        let rest = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_prefix(name));
        let named = rest.is_some_and(|rest| rest.starts_with(['.', '_']));
        named && fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
    };
    Ok(read_dir(folder)?.into_iter().filter(is_companion).collect())
}

/// The paths of this machine that may be a source.
#[derive(Debug)]
pub(crate) struct Access {
    /// When set, sources must be below one of these.
    pub(crate) roots: Option<Vec<PathBuf>>,
    /// Never a source.
    pub(crate) secrets: Vec<PathBuf>,
}

impl Access {
    /// Checks a canonical path, so that neither `..` nor a link leads around the rules.
    fn check(&self, real: &Path) -> Result<(), FetchError> {
        let below = |allowed: &[PathBuf]| {
            allowed.iter().filter_map(|path| fs::canonicalize(path).ok()).any(|path| real.starts_with(path))
        };
        if below(&self.secrets) {
            return Err(FetchError::denied("the local source contains credentials")
                .at(real.display().to_string())
                .remedy("move the model to another directory"));
        }
        match &self.roots {
            Some(roots) if !below(roots) => {
                Err(FetchError::denied("the local source is outside of the allowed directories")
                    .at(real.display().to_string())
                    .remedy("allow its directory with --local-root, or use a bucket"))
            }
            _ => Ok(()),
        }
    }
}

fn read_dir(path: &Path) -> Result<Vec<PathBuf>, FetchError> {
    let failed = |error: std::io::Error| FetchError::io("cannot read the directory", path, &error);
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // Kubernetes keeps the files of a mounted ConfigMap in such folders, and links to them beside.
        if !entry.file_name().as_encoded_bytes().starts_with(b"..") {
            entries.push(entry.path());
        }
    }
    entries.sort();
    Ok(entries)
}

fn name_of(path: &Path) -> Result<String, FetchError> {
    match path.file_name().map(|name| name.to_str()) {
        Some(Some(name)) => Ok(name.to_owned()),
        Some(None) => Err(FetchError::permanent("a file name is not UTF-8").at(path.display().to_string())),
        None => Ok("model".to_owned()),
    }
}

struct Walk<'a> {
    files: Vec<Source>,
    names: Names,
    limits: Limits,
    access: &'a Access,
    /// The source itself, without links.
    folder: &'a Path,
    hash: Sha256,
    newest: SystemTime,
    bytes: u64,
}

impl Walk<'_> {
    fn dir(&mut self, dir: &Path, prefix: &str, only: Option<&str>) -> Result<(), FetchError> {
        for path in read_dir(dir)? {
            let name = name_of(&path)?;
            let rel = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
            // Links inside the folder are followed: mounted volumes consist of them.
            let failed = |error: std::io::Error| FetchError::io("cannot read", &path, &error);
            let real = fs::canonicalize(&path).map_err(failed)?;
            self.access.check(&real)?;
            if !real.starts_with(self.folder) {
                return Err(FetchError::denied(format!(
                    "a link leads out of the folder, to {}",
                    real.display()
                ))
                .at(path.display().to_string())
                .remedy("copy the file into the folder"));
            }
            let found = fs::metadata(&real).map_err(failed)?;
            if found.is_dir() {
                if only.is_none_or(|only| only == name) {
                    self.names.folder(&rel).map_err(|error| error.at(path.display().to_string()))?;
                    self.dir(&real, &rel, None)?;
                }
            } else {
                self.file(&real, &rel, &found)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, real: &Path, rel: &str, found: &Metadata) -> Result<(), FetchError> {
        let place = || real.display().to_string();
        if !found.is_file() {
            return Err(
                FetchError::permanent("not a file or directory (a pipe, socket or device)").at(place())
            );
        }
        self.names.file(rel).map_err(|error| error.at(place()))?;
        self.bytes = self.bytes.saturating_add(found.len());
        if self.bytes > self.limits.bytes {
            return Err(FetchError::too_large(format!(
                "the artifact has more than {} bytes",
                self.limits.bytes
            ))
            .at(place())
            .remedy("point storageUri at the folder of one model, or raise the limit for artifact bytes"));
        }
        let modified = found.modified().unwrap_or_else(|_| SystemTime::now());
        let changed = changed_time(found);
        self.newest = self.newest.max(modified).max(changed);
        let line = format!(
            "{rel}\0{}\0{}\0{modified:?}\0{changed:?}\0{}\n",
            found.len(),
            real.display(),
            inode(found)
        );
        self.hash.update(line.as_bytes());
        self.files.push(Source { path: real.to_owned(), rel: rel.to_owned(), bytes: found.len(), modified });
        Ok(())
    }
}

#[cfg(unix)]
fn inode(found: &Metadata) -> String {
    use std::os::unix::fs::MetadataExt as _;
    format!("{}:{}", found.dev(), found.ino())
}

/// The time that not even `touch` can set back.
#[cfg(unix)]
fn changed_time(found: &Metadata) -> SystemTime {
    use std::os::unix::fs::MetadataExt as _;
    let seconds = Duration::from_secs(u64::try_from(found.ctime()).unwrap_or_default());
    let nanos = Duration::from_nanos(u64::try_from(found.ctime_nsec()).unwrap_or_default());
    SystemTime::UNIX_EPOCH.checked_add(seconds + nanos).unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(not(unix))]
fn inode(_: &Metadata) -> String {
    String::new()
}

#[cfg(not(unix))]
fn changed_time(_: &Metadata) -> SystemTime {
    SystemTime::UNIX_EPOCH
}

impl Local {
    /// The one file of a source that is one file.
    pub(crate) fn only_file(&self) -> Option<(&Path, &str)> {
        self.files.first().filter(|_| self.single).map(|source| (source.path.as_path(), source.rel.as_str()))
    }

    /// Copies the files into the existing directory `into`.
    pub(crate) fn copy(
        &self,
        into: &Path,
        mut progress: impl FnMut(u64) -> Result<(), FetchError>,
    ) -> Result<Vec<Record>, FetchError> {
        self.files.iter().map(|source| copy_file(source, into, &mut progress)).collect()
    }
}

fn copy_file(
    source: &Source,
    into: &Path,
    progress: &mut impl FnMut(u64) -> Result<(), FetchError>,
) -> Result<Record, FetchError> {
    let dest = into.join(&source.rel);
    let read_failed = |error: std::io::Error| FetchError::io("cannot read", &source.path, &error);
    let write_failed = |error: std::io::Error| FetchError::io("cannot write", &dest, &error);
    if let Some(parent) = dest.parent() {
        fs::create_dir_all(parent).map_err(write_failed)?;
    }
    let mut from = File::open(&source.path).map_err(read_failed)?;
    let mut to = File::options().write(true).create_new(true).open(&dest).map_err(write_failed)?;
    let mut hash = Sha256::new();
    let mut copied = 0_u64;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = from.read(&mut buffer).map_err(read_failed)?;
        let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else { break };
        copied = copied.saturating_add(count as u64);
        if copied > source.bytes {
            break;
        }
        progress(count as u64)?;
        hash.update(chunk);
        to.write_all(chunk).map_err(write_failed)?;
    }
    let after = from.metadata().map_err(read_failed)?;
    if copied != source.bytes
        || after.len() != source.bytes
        || after.modified().is_ok_and(|modified| modified != source.modified)
    {
        return Err(FetchError::transient("the file changed while it was copied")
            .at(source.path.display().to_string())
            .remedy("try again when it is complete"));
    }
    to.sync_all().map_err(write_failed)?;
    Ok(Record { path: source.rel.clone(), bytes: copied, sha256: hex(&hash.finish()) })
}
