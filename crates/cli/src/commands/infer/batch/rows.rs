//! Rows of the input file.

use super::{FileFormat, columns::Columns, send::Values};
use crate::error::CommandError;
use serde_json::Value;
use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
};

/// Longest line of NDJSON.
const MAX_LINE_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct Rows {
    path: PathBuf,
    source: Source,
    read: u64,
    size: u64,
}

#[derive(Debug)]
enum Source {
    Csv { reader: Box<csv::Reader<File>>, header: Vec<String> },
    Ndjson { reader: BufReader<File>, position: u64, line: u64 },
}

/// A row as it is in the file.
#[derive(Debug)]
pub(super) enum Row {
    Cells(csv::StringRecord),
    Json(Value),
}

/// Each row with its number in the file, or the reason why it is invalid.
pub(super) type NumberedRows = Vec<Result<Values, String>>;

impl Rows {
    pub(super) fn open(path: &Path) -> Result<Self, CommandError> {
        let format = FileFormat::of(path)?;
        let failed = |e: &dyn std::fmt::Display| CommandError::usage(format!("{}: {e}", path.display()));
        let file = File::open(path).map_err(|e| failed(&e))?;
        let size = file.metadata().map_err(|e| failed(&e))?.len();
        let source = match format {
            FileFormat::Csv => {
                let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(file);
                let header: Vec<String> =
                    reader.headers().map_err(|e| failed(&e))?.iter().map(|c| c.trim().to_owned()).collect();
                if header.is_empty() {
                    return Err(failed(&"is empty: the first line must name the columns"));
                }
                Source::Csv { reader: Box::new(reader), header }
            }
            FileFormat::Ndjson => Source::Ndjson { reader: BufReader::new(file), position: 0, line: 0 },
        };
        Ok(Self { path: path.to_owned(), source, read: 0, size })
    }

    /// Column names of a CSV file.
    pub(super) fn header(&self) -> Option<&[String]> {
        match &self.source {
            Source::Csv { header, .. } => Some(header),
            Source::Ndjson { .. } => None,
        }
    }

    /// Skips up to `n` rows and returns the number of skipped ones.
    pub(super) fn skip(&mut self, n: u64) -> Result<u64, CommandError> {
        let mut skipped = 0;
        while skipped < n && self.next()?.is_some() {
            skipped += 1;
        }
        Ok(skipped)
    }

    /// Up to `n` rows as values of the model's inputs, with the percentage of the file that was read; `None` at the end.
    pub(super) fn take(
        &mut self,
        n: usize,
        columns: &Columns,
    ) -> Result<Option<(NumberedRows, u64)>, CommandError> {
        let mut rows = Vec::with_capacity(n);
        while rows.len() < n
            && let Some(row) = self.next()?
        {
            rows.push(row.and_then(|row| columns.values(&row)));
        }
        let position = match &self.source {
            Source::Csv { reader, .. } => reader.position().byte(),
            Source::Ndjson { position, .. } => *position,
        };
        Ok((!rows.is_empty()).then_some((rows, position.saturating_mul(100) / self.size.max(1))))
    }

    /// A row that cannot be parsed has a reason; a file that cannot be read is an error.
    fn next(&mut self) -> Result<Option<Result<Row, String>>, CommandError> {
        let path = &self.path;
        let failed = |e: &dyn std::fmt::Display| {
            CommandError::failed(format!("{} cannot be read: {e}", path.display()))
        };
        self.read += 1;
        match &mut self.source {
            Source::Csv { reader, header } => {
                let mut record = csv::StringRecord::new();
                match reader.read_record(&mut record) {
                    Ok(false) => Ok(None),
                    Ok(true) if record.len() == header.len() => Ok(Some(Ok(Row::Cells(record)))),
                    Ok(true) => Ok(Some(Err(format!(
                        "the row has {} fields, the header has {}",
                        record.len(),
                        header.len()
                    )))),
                    Err(e) if matches!(e.kind(), csv::ErrorKind::Utf8 { .. }) => {
                        Ok(Some(Err("the row is not UTF-8".into())))
                    }
                    Err(e) => Err(failed(&e)),
                }
            }
            Source::Ndjson { reader, position, line } => loop {
                let mut text = Vec::new();
                let length = reader
                    .by_ref()
                    .take(MAX_LINE_BYTES)
                    .read_until(b'\n', &mut text)
                    .map_err(|e| failed(&e))?;
                *position += length as u64;
                *line += 1;
                if length == 0 {
                    return Ok(None);
                }
                if length as u64 == MAX_LINE_BYTES {
                    return Err(failed(&format!("line {line} is longer than {MAX_LINE_BYTES} bytes")));
                }
                if !text.trim_ascii().is_empty() {
                    let row = serde_json::from_slice(&text).map(Row::Json);
                    return Ok(Some(row.map_err(|e| format!("line {line} is not JSON: {e}"))));
                }
            },
        }
    }
}
