//! A reader of tar archives (ustar, GNU, pax) that holds no more than one small header in memory.

use std::io::Read;

use super::{Output, damaged, not_plain};
use crate::error::FetchError;

const BLOCK: usize = 512;
/// Long names and pax records are a few hundred bytes; more is an attempt to fill the memory.
const MAX_EXTENSION: u64 = 64 << 10;

/// What a GNU or pax header says about the entry that follows it.
#[derive(Default)]
struct Overrides {
    name: Option<String>,
    size: Option<u64>,
}

pub(super) fn unpack(mut from: impl Read, out: &mut Output<'_>) -> Result<(), FetchError> {
    let mut overrides = Overrides::default();
    let mut entries = 0_usize;
    while let Some(header) = read_header(&mut from)? {
        entries += 1;
        if entries > out.limits.files.saturating_mul(4) {
            return Err(crate::cloud::too_many(out.limits.files));
        }
        let Overrides { name, size } = std::mem::take(&mut overrides);
        let name = match name {
            Some(name) => name,
            None => header.name()?,
        };
        let size = size.unwrap_or(header.size()?);
        match header.kind() {
            b'0' | 0 | b'7' if !name.ends_with('/') => {
                let mut content = (&mut from).take(size);
                out.file(&name, &mut content, Some(size))?;
                skip(&mut from, padding(size), &name, out)?;
            }
            b'5' | b'0' | 0 => {
                out.names.folder(&name)?;
                skip(&mut from, size.saturating_add(padding(size)), &name, out)?;
            }
            b'L' => overrides.name = Some(long_name(&extension(&mut from, size, &name)?, &name)?),
            b'x' => overrides = pax(&extension(&mut from, size, &name)?, &name)?,
            // Global pax records and GNU volume labels describe the archive, not a file.
            b'g' | b'V' => skip(&mut from, size.saturating_add(padding(size)), &name, out)?,
            _ => return Err(not_plain(&name)),
        }
    }
    Ok(())
}

struct Header([u8; BLOCK]);

/// The next header; `None` at the end of the archive.
fn read_header(from: &mut impl Read) -> Result<Option<Header>, FetchError> {
    let mut block = [0; BLOCK];
    let mut filled = 0;
    while let Some(rest) = block.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match from.read(rest).map_err(|error| damaged("header", &error.to_string()))? {
            0 => break,
            count => filled += count,
        }
    }
    // The end is two blocks of zeros; writers that leave them out are common enough.
    if filled == 0 || (filled == BLOCK && block.iter().all(|byte| *byte == 0)) {
        return Ok(None);
    }
    if filled < BLOCK {
        return Err(damaged("header", "it ends too early"));
    }
    let header = Header(block);
    let expected =
        octal(header.field(148, 8)).ok_or_else(|| damaged("header", "this is not a tar archive"))?;
    let sum: u64 = header
        .0
        .iter()
        .enumerate()
        .map(|(i, byte)| if (148..156).contains(&i) { 32 } else { u64::from(*byte) })
        .sum();
    if sum == expected {
        Ok(Some(header))
    } else {
        Err(damaged("header", "its checksum is wrong; is this a tar archive?"))
    }
}

impl Header {
    fn field(&self, start: usize, length: usize) -> &[u8] {
        self.0.get(start..start + length).unwrap_or_default()
    }

    fn kind(&self) -> u8 {
        self.0.get(156).copied().unwrap_or_default()
    }

    fn name(&self) -> Result<String, FetchError> {
        let name = text(self.field(0, 100))?;
        // Only POSIX headers have the prefix; GNU uses its place for times.
        let prefix =
            if self.field(257, 6) == b"ustar\0" { text(self.field(345, 155))? } else { String::new() };
        Ok(if prefix.is_empty() { name } else { format!("{prefix}/{name}") })
    }

    fn size(&self) -> Result<u64, FetchError> {
        let field = self.field(124, 12);
        let size = match field.split_first() {
            // GNU writes large numbers in base 256, marked by the highest bit.
            Some((0x80, rest)) => {
                rest.iter().try_fold(0_u64, |sum, byte| sum.checked_mul(256)?.checked_add(u64::from(*byte)))
            }
            _ => octal(field),
        };
        size.ok_or_else(|| damaged("header", "a size is not a number"))
    }
}

fn text(field: &[u8]) -> Result<String, FetchError> {
    let bytes = field.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8(bytes.to_vec()).map_err(|_| damaged("header", "a name is not UTF-8"))
}

fn octal(field: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(field).ok()?.trim_matches(['\0', ' ']);
    if digits.is_empty() { Some(0) } else { u64::from_str_radix(digits, 8).ok() }
}

fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

/// The small content of a header entry.
fn extension(from: &mut impl Read, size: u64, name: &str) -> Result<Vec<u8>, FetchError> {
    if size > MAX_EXTENSION {
        return Err(damaged(name, "a header entry is larger than 64 KiB"));
    }
    let mut content = Vec::new();
    let whole = size + padding(size);
    from.take(whole).read_to_end(&mut content).map_err(|error| damaged(name, &error.to_string()))?;
    if content.len() as u64 != whole {
        return Err(damaged(name, "it ends too early"));
    }
    content.truncate(size as usize);
    Ok(content)
}

fn long_name(content: &[u8], name: &str) -> Result<String, FetchError> {
    let bytes = content.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8(bytes.to_vec()).map_err(|_| damaged(name, "a name is not UTF-8"))
}

/// Records of the form `length key=value\n`.
fn pax(content: &[u8], name: &str) -> Result<Overrides, FetchError> {
    let bad = || damaged(name, "a pax header cannot be read");
    let mut overrides = Overrides::default();
    let mut rest = content;
    while !rest.is_empty() {
        let space = rest.iter().position(|byte| *byte == b' ').ok_or_else(bad)?;
        let length: usize = rest
            .get(..space)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(bad)?;
        let record =
            rest.get(space + 1..length).and_then(|record| record.strip_suffix(b"\n")).ok_or_else(bad)?;
        let record = std::str::from_utf8(record).map_err(|_| bad())?;
        match record.split_once('=').ok_or_else(bad)? {
            ("path", value) => overrides.name = Some(value.to_owned()),
            ("size", value) => overrides.size = Some(value.parse().map_err(|_| bad())?),
            (key, _) if key.starts_with("GNU.sparse.") => {
                return Err(damaged(name, "sparse files are not supported; pack without --sparse"));
            }
            _ => {}
        }
        rest = rest.get(length..).ok_or_else(bad)?;
    }
    Ok(overrides)
}

fn skip(from: &mut impl Read, mut bytes: u64, name: &str, out: &mut Output<'_>) -> Result<(), FetchError> {
    let mut buffer = [0; 4096];
    while bytes > 0 {
        let want = bytes.min(buffer.len() as u64) as usize;
        let read = from
            .read(buffer.get_mut(..want).unwrap_or_default())
            .map_err(|error| damaged(name, &error.to_string()))?;
        if read == 0 {
            // The padding of the last file is left out by some writers.
            return if bytes < BLOCK as u64 { Ok(()) } else { Err(damaged(name, "it ends too early")) };
        }
        out.count(read as u64)?;
        bytes -= read as u64;
    }
    Ok(())
}
