//! External weights. A model may only refer to files inside its own directory.

use crate::error::LoadError;
use crate::proto::TensorProto;
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

/// Files that hold weights, read once each.
pub(crate) struct ExternalFiles {
    directory: Option<PathBuf>,
    limit: u64,
    read: u64,
    files: HashMap<String, Vec<u8>>,
}

impl ExternalFiles {
    /// `directory` is the model's own; `None` when the model came as bytes.
    pub(crate) fn new(directory: Option<&Path>, limit: u64) -> Self {
        Self { directory: directory.map(Path::to_path_buf), limit, read: 0, files: HashMap::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Bytes that were read.
    pub(crate) const fn bytes(&self) -> u64 {
        self.read
    }

    /// The files by the names that the model uses.
    pub(crate) fn into_files(self) -> HashMap<String, Vec<u8>> {
        self.files
    }

    /// The bytes of a tensor that is in another file; `None` when it is in the model.
    pub(crate) fn get(&mut self, tensor: &TensorProto<'_>) -> Result<Option<&[u8]>, LoadError> {
        let Some(external) = &tensor.external else {
            return Ok(None);
        };
        let fault = |problem: String| LoadError::External {
            tensor: tensor.name.to_owned(),
            location: external.location.to_owned(),
            problem,
        };
        if !self.files.contains_key(external.location) {
            let bytes = self.load(external.location).map_err(fault)?;
            self.files.insert(external.location.to_owned(), bytes);
        }
        let file = self.files.get(external.location).map_or(&[][..], Vec::as_slice);
        let start = usize::try_from(external.offset).unwrap_or(usize::MAX);
        let rest = file.get(start..).ok_or_else(|| fault(format!("which ends before offset {start}")))?;
        let Some(length) = external.length else {
            return Ok(Some(rest));
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        rest.get(..length)
            .map(Some)
            .ok_or_else(|| fault(format!("which ends before {length} bytes from offset {start}")))
    }

    fn load(&mut self, location: &str) -> Result<Vec<u8>, String> {
        let directory =
            self.directory.as_deref().ok_or("but the model was given as bytes, without a directory")?;
        let relative = Path::new(location);
        let inside = !location.is_empty()
            && relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        if !inside {
            return Err("which is not a file name inside the model's directory".to_owned());
        }
        let io = |e: std::io::Error| format!("which cannot be read: {e}");
        // A link may lead out of the directory although its name does not.
        let real = directory.join(relative).canonicalize().map_err(io)?;
        let root = directory.canonicalize().map_err(io)?;
        if !real.starts_with(&root) {
            return Err("which is a link that leads out of the model's directory".to_owned());
        }
        let left = self.limit.saturating_sub(self.read);
        let bytes = read_limited(&real, left).map_err(io)?;
        let bytes =
            bytes.map_err(|size| format!("which has {size} bytes, more than the limit allows ({left})"))?;
        self.read += bytes.len() as u64;
        Ok(bytes)
    }
}

/// Reads a regular file of at most `limit` bytes; its size when it is larger.
pub(crate) fn read_limited(path: &Path, limit: u64) -> std::io::Result<Result<Vec<u8>, u64>> {
    use std::io::Read;
    let file = std::fs::File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file"));
    }
    if metadata.len() > limit {
        return Ok(Err(metadata.len()));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
    // The file may grow between the two: one byte more than allowed is enough to see it.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Ok(Err(bytes.len() as u64));
    }
    Ok(Ok(bytes))
}
