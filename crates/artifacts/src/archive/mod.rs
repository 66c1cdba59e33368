//! Archive unpacking: regular files and folders only, inside the destination, within the limits.

mod tar;

use std::fs::File;
use std::io::{BufReader, Read, Write as _};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use crate::digest::{Sha256, hex};
use crate::error::FetchError;
use crate::file_tree::{Limits, Names, Record};

/// Supported archive formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Zip,
    Tar,
    TarGz,
}

/// The format by file name; any other file is part of the model.
pub(crate) fn format_of(name: &str) -> Option<Format> {
    let lower = name.to_ascii_lowercase();
    [(".zip", Format::Zip), (".tar", Format::Tar), (".tar.gz", Format::TarGz), (".tgz", Format::TarGz)]
        .into_iter()
        .find_map(|(ending, format)| {
            (lower.len() > ending.len() && lower.ends_with(ending)).then_some(format)
        })
}

/// Rejects archive formats that are not supported.
pub(crate) fn check_supported(name: &str) -> Result<(), FetchError> {
    let lower = name.to_ascii_lowercase();
    let unsupported = [".tar.zst", ".tzst", ".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".7z", ".rar"];
    match unsupported.into_iter().find(|ending| lower.ends_with(ending)) {
        Some(ending) => Err(FetchError::permanent(format!("archive format {ending} is not supported"))
            .remedy("pack as .zip, .tar or .tar.gz")),
        None => Ok(()),
    }
}

/// Unpacks `archive` into the existing, empty directory `into`.
pub(crate) fn unpack(
    archive: &Path,
    format: Format,
    into: &Path,
    limits: Limits,
) -> Result<Vec<Record>, FetchError> {
    let file =
        File::open(archive).map_err(|error| FetchError::io("cannot open the archive", archive, &error))?;
    let packed =
        file.metadata().map_err(|error| FetchError::io("cannot open the archive", archive, &error))?.len();
    let mut out =
        Output { into, names: Names::new(limits), limits, packed, unpacked: 0, records: Vec::new() };
    match format {
        Format::Zip => unzip(file, &mut out)?,
        Format::Tar => tar::unpack(BufReader::new(file), &mut out)?,
        Format::TarGz => tar::unpack(
            BufReader::with_capacity(1 << 16, MultiGzDecoder::new(BufReader::new(file))),
            &mut out,
        )?,
    }
    if out.records.is_empty() {
        return Err(FetchError::permanent("the archive has no files"));
    }
    Ok(out.records)
}

/// Destination of unpacked files, with the limits.
struct Output<'a> {
    into: &'a Path,
    names: Names,
    limits: Limits,
    packed: u64,
    unpacked: u64,
    records: Vec<Record>,
}

impl Output<'_> {
    /// Writes one file of exactly `size` bytes, if known.
    fn file(&mut self, name: &str, from: &mut dyn Read, size: Option<u64>) -> Result<(), FetchError> {
        if format_of(name).is_some() {
            return Err(FetchError::permanent(format!(
                "the archive contains another archive, `{}`",
                display_name(name)
            ))
            .remedy("nested archives are not supported; pack the files themselves"));
        }
        let rel = self.names.file(name)?;
        let dest = self.into.join(&rel);
        let failed = |error: std::io::Error| FetchError::io("cannot write", &dest, &error);
        if let Some(parent) = dest.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        let mut file = File::options().write(true).create_new(true).open(&dest).map_err(failed)?;
        let mut hash = Sha256::new();
        let mut written = 0_u64;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let count = from.read(&mut buffer).map_err(|error| damaged(name, &error.to_string()))?;
            let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else { break };
            written = written.saturating_add(count as u64);
            self.count(count as u64)?;
            hash.update(chunk);
            file.write_all(chunk).map_err(failed)?;
        }
        if size.is_some_and(|size| size != written) {
            return Err(damaged(name, "it ends too early"));
        }
        file.sync_all().map_err(failed)?;
        let path = rel.to_string_lossy().into_owned();
        self.records.push(Record { path, bytes: written, sha256: hex(&hash.finish()) });
        Ok(())
    }

    /// Counts unpacked bytes against the limits, before they are written.
    fn count(&mut self, bytes: u64) -> Result<(), FetchError> {
        self.unpacked = self.unpacked.saturating_add(bytes);
        if self.unpacked > self.limits.bytes {
            return Err(FetchError::too_large(format!(
                "the archive unpacks to more than {} bytes",
                self.limits.bytes
            ))
            .remedy("raise the limit for artifact bytes if this size is intended"));
        }
        if self.unpacked > self.limits.ratio_from
            && self.unpacked > self.packed.saturating_mul(self.limits.ratio)
        {
            return Err(FetchError::too_large(format!(
                "the archive unpacks to more than {} times its size",
                self.limits.ratio
            ))
            .remedy("this looks like a decompression bomb; store the files unpacked if it is not"));
        }
        Ok(())
    }
}

fn unzip(file: File, out: &mut Output<'_>) -> Result<(), FetchError> {
    let mut archive =
        zip::ZipArchive::new(BufReader::new(file)).map_err(|error| damaged("zip", &error.to_string()))?;
    if archive.len() > out.limits.files.saturating_mul(2) {
        return Err(crate::cloud::too_many(out.limits.files));
    }
    for index in 0..archive.len() {
        let mut entry = archive
            .by_index(index)
            .map_err(|error| damaged(&format!("entry {index}"), &error.to_string()))?;
        let Ok(name) = std::str::from_utf8(entry.name_raw()).map(str::to_owned) else {
            return Err(damaged(&format!("entry {index}"), "its name is not UTF-8"));
        };
        let kind = entry.unix_mode().map_or(0, |mode| mode & 0o170_000);
        if entry.is_dir() {
            out.names.folder(&name)?;
            continue;
        }
        if !matches!(kind, 0 | 0o100_000) {
            return Err(not_plain(&name));
        }
        let size = entry.size();
        out.file(&name, &mut entry, Some(size))?;
    }
    Ok(())
}

fn not_plain(name: &str) -> FetchError {
    FetchError::permanent(format!("the archive entry `{}` is a link or a device", display_name(name)))
        .remedy("pack plain files and folders only (tar: --dereference)")
}

fn damaged(name: &str, why: &str) -> FetchError {
    FetchError::permanent(format!("the archive is damaged at `{}`: {why}", display_name(name)))
}

fn display_name(name: &str) -> String {
    name.chars().take(120).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn valid() -> Vec<(Format, Vec<u8>)> {
        let mut tar = ::tar::Builder::new(Vec::new());
        for name in ["model.json", "a/b.bin"] {
            let mut header = ::tar::Header::new_ustar();
            header.set_size(700);
            header.set_mode(0o644);
            tar.append_data(&mut header, name, &[7_u8; 700][..]).unwrap();
        }
        tar.append_pax_extensions([("comment", &b"x"[..])]).unwrap();
        let tar = tar.into_inner().unwrap();
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&tar).unwrap();
        let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        let options =
            zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
        zip.start_file("a/b.bin", options).unwrap();
        zip.write_all(&[7; 700]).unwrap();
        zip.start_file("c", zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(b"c").unwrap();
        vec![
            (Format::Tar, tar),
            (Format::TarGz, gz.finish().unwrap()),
            (Format::Zip, zip.finish().unwrap().into_inner()),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn damaged_archives_never_panic_or_escape(
            which in 0..3_usize,
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let (format, mut bytes) = valid().swap_remove(which);
            for (place, value) in &edits {
                let place = place.index(bytes.len());
                bytes[place] = *value;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            let dir = tempfile::tempdir().unwrap();
            let (archive, into) = (dir.path().join("archive"), dir.path().join("into"));
            std::fs::write(&archive, &bytes).unwrap();
            std::fs::create_dir(&into).unwrap();
            let limits = Limits { bytes: 1 << 20, files: 10, depth: 4, ratio: 10, ratio_from: 1 << 16 };
            let result = unpack(&archive, format, &into, limits);
            prop_assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
            if let Ok(records) = result {
                for record in records {
                    prop_assert_eq!(std::fs::metadata(into.join(&record.path)).unwrap().len(), record.bytes);
                }
            }
        }
    }
}
