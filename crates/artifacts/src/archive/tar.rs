//! Tar archives (ustar, GNU, pax) with bounded headers.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use ::tar::{Archive, Entry, EntryType};

use super::{Output, damaged, not_plain};
use crate::error::FetchError;

const BLOCK: u64 = 512;
/// Long names and pax records are a few hundred bytes; the `tar` crate reads them into memory whatever their size.
const MAX_HEADERS: u64 = 64 << 10;

pub(super) fn unpack(from: impl Read, out: &mut Output<'_>) -> Result<(), FetchError> {
    let budget = Rc::new(Cell::new(MAX_HEADERS));
    let mut archive = Archive::new(Budgeted { from, budget: Rc::clone(&budget) });
    let header_error = |error: io::Error| damaged("header", &error.to_string());
    let mut entries = archive.entries().map_err(header_error)?;
    let mut padding = 0;
    let mut count = 0_usize;
    loop {
        budget.set(MAX_HEADERS);
        let mut entry = match entries.next() {
            None => return Ok(()),
            Some(Ok(entry)) => entry,
            // Some writers omit the padding of the last file.
            Some(Err(_)) if MAX_HEADERS - budget.get() < padding => return Ok(()),
            Some(Err(error)) => return Err(header_error(error)),
        };
        budget.set(u64::MAX);
        count += 1;
        if count > out.limits.files.saturating_mul(4) {
            return Err(crate::cloud::too_many(out.limits.files));
        }
        let name = String::from_utf8(entry.path_bytes().into_owned())
            .map_err(|_| damaged("header", "a name is not UTF-8"))?;
        let size = entry.size();
        padding = size.next_multiple_of(BLOCK) - size;
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous if !name.ends_with('/') => {
                refuse_sparse(&mut entry, &name)?;
                out.file(&name, &mut entry, Some(size))?;
            }
            EntryType::Directory | EntryType::Regular => {
                out.names.folder(&name)?;
                skip(&mut entry, &name, out)?;
            }
            // Global pax records and GNU volume labels describe the archive, not a file.
            kind if kind.is_pax_global_extensions() || kind.as_byte() == b'V' => {
                skip(&mut entry, &name, out)?;
            }
            _ => return Err(not_plain(&name)),
        }
    }
}

/// Fails when the reader consumes more than its budget: the memory of headers is bounded even in a decompression bomb.
struct Budgeted<R> {
    from: R,
    budget: Rc<Cell<u64>>,
}

impl<R: Read> Read for Budgeted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.budget.get();
        if left == 0 {
            return Err(io::Error::other("the headers of an entry are larger than 64 KiB"));
        }
        let limit = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.from.read(buffer.get_mut(..limit).unwrap_or_default())?;
        self.budget.set(left - count as u64);
        Ok(count)
    }
}

fn refuse_sparse<R: Read>(entry: &mut Entry<'_, R>, name: &str) -> Result<(), FetchError> {
    let invalid = |error: io::Error| damaged(name, &error.to_string());
    for record in entry.pax_extensions().map_err(invalid)?.into_iter().flatten() {
        if record.map_err(invalid)?.key_bytes().starts_with(b"GNU.sparse.") {
            return Err(damaged(name, "sparse files are not supported; pack without --sparse"));
        }
    }
    Ok(())
}

fn skip(entry: &mut impl Read, name: &str, out: &mut Output<'_>) -> Result<(), FetchError> {
    let mut buffer = [0; 4096];
    loop {
        match entry.read(&mut buffer).map_err(|error| damaged(name, &error.to_string()))? {
            0 => return Ok(()),
            count => out.count(count as u64)?,
        }
    }
}
