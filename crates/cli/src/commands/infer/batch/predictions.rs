//! The output file: one line per row of the input, in its order.

use super::{super::payload::Input, FileFormat, send::Values};
use crate::error::CommandError;
use serde_json::{Map, Value, json};
use std::{
    fs::{File, OpenOptions},
    io::{BufRead as _, BufReader, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

/// Widest output with a CSV column per value; wider ones are a JSON list in one column.
const MAX_COLUMNS: usize = 1_000;

#[derive(Debug)]
pub(super) struct Predictions {
    path: PathBuf,
    file: File,
    format: FileFormat,
    outputs: Vec<Output>,
    next_row: u64,
}

#[derive(Debug)]
struct Output {
    name: String,
    /// CSV columns; `None` for one column with a JSON list.
    width: Option<usize>,
}

impl Predictions {
    /// Creates the file, or continues one: returns the number of rows that it has.
    pub(super) fn open(
        path: &Path,
        outputs: &[Input],
        max_rows: Option<usize>,
        resume: bool,
    ) -> Result<(Self, u64), CommandError> {
        let format = FileFormat::of(path)?;
        let failed = |e: &dyn std::fmt::Display| CommandError::failed(format!("{}: {e}", path.display()));
        if path.exists() && !resume {
            return Err(CommandError::usage(format!(
                "{} exists: remove it, choose another --output, or continue it with --resume",
                path.display()
            )));
        }
        let outputs =
            outputs.iter().map(|o| Output { name: o.name.clone(), width: width(o, max_rows) }).collect();
        // Not truncated: a resumed file keeps its complete lines.
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|e| failed(&e))?;
        let mut predictions = Self { path: path.to_owned(), file, format, outputs, next_row: 1 };
        let (rows, end) = predictions.complete_rows()?;
        predictions.file.set_len(end).map_err(|e| failed(&e))?;
        predictions.file.seek(SeekFrom::Start(end)).map_err(|e| failed(&e))?;
        if end == 0 && format == FileFormat::Csv {
            let header = predictions.csv_line(&predictions.header())?;
            predictions.append(&header)?;
        }
        predictions.next_row = rows + 1;
        Ok((predictions, rows))
    }

    pub(super) fn write(&mut self, rows: &[Result<Values, String>]) -> Result<(), CommandError> {
        let mut text = Vec::new();
        for row in rows {
            let line = match self.format {
                FileFormat::Csv => self.csv_line(&self.cells(row))?,
                FileFormat::Ndjson => self.json_line(row),
            };
            text.extend_from_slice(&line);
            self.next_row += 1;
        }
        self.append(&text)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), CommandError> {
        self.file
            .write_all(bytes)
            .map_err(|e| CommandError::failed(format!("{} cannot be written: {e}", self.path.display())))
    }

    fn header(&self) -> Vec<String> {
        let mut cells = vec!["row".to_owned()];
        for output in &self.outputs {
            match output.width {
                None | Some(1) => cells.push(output.name.clone()),
                Some(width) => cells.extend((0..width).map(|n| format!("{}_{n}", output.name))),
            }
        }
        cells.push("error".to_owned());
        cells
    }

    fn cells(&self, row: &Result<Values, String>) -> Vec<String> {
        let mut cells = vec![self.next_row.to_string()];
        let mut reason = String::new();
        match row {
            Ok(values) => {
                for (output, values) in self.outputs.iter().zip(values) {
                    match output.width {
                        Some(width) if width == values.len() => cells.extend(values.iter().map(cell)),
                        Some(width) => {
                            reason =
                                format!("output {} has {} values, not {width}", output.name, values.len());
                        }
                        None => cells.push(Value::Array(values.clone()).to_string()),
                    }
                }
            }
            Err(error) => reason = error.replace(['\n', '\r'], " "),
        }
        let columns = self.header().len();
        if !reason.is_empty() {
            cells.truncate(1);
        }
        cells.resize(columns - 1, String::new());
        cells.push(reason);
        cells
    }

    fn csv_line(&self, cells: &[String]) -> Result<Vec<u8>, CommandError> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let line = writer.write_record(cells).map_err(|e| e.to_string());
        line.and_then(|()| writer.into_inner().map_err(|e| e.to_string()))
            .map_err(|e| CommandError::failed(format!("{} cannot be written: {e}", self.path.display())))
    }

    fn json_line(&self, row: &Result<Values, String>) -> Vec<u8> {
        let mut line = Map::from_iter([("row".to_owned(), json!(self.next_row))]);
        match row {
            Ok(values) => {
                let outputs: Map<String, Value> = self
                    .outputs
                    .iter()
                    .zip(values)
                    .map(|(output, values)| {
                        let value = match values.as_slice() {
                            [one] => one.clone(),
                            several => Value::Array(several.to_vec()),
                        };
                        (output.name.clone(), value)
                    })
                    .collect();
                line.insert("outputs".into(), Value::Object(outputs));
            }
            Err(error) => {
                line.insert("error".into(), json!(error));
            }
        }
        let mut text = Value::Object(line).to_string().into_bytes();
        text.push(b'\n');
        text
    }

    /// Number of complete rows, and the position after the last of them.
    fn complete_rows(&mut self) -> Result<(u64, u64), CommandError> {
        let path = self.path.display().to_string();
        let foreign =
            || CommandError::usage(format!("{path} is not an output of this model: choose another --output"));
        let failed = |e: &dyn std::fmt::Display| CommandError::failed(format!("{path} cannot be read: {e}"));
        let size = self.file.metadata().map_err(|e| failed(&e))?.len();
        if size == 0 {
            return Ok((0, 0));
        }
        // The last line may lack its end after a kill; a line that ends is complete, because line breaks in values are quoted.
        match self.format {
            FileFormat::Csv => {
                let mut reader =
                    csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(&self.file);
                let header = self.header();
                let terminated = ends_with_newline(&self.path);
                let (mut rows, mut end) = (0u64, 0);
                let mut record = csv::StringRecord::new();
                while reader.read_record(&mut record).map_err(|e| failed(&e))? {
                    let position = reader.position().byte();
                    if position == size && !terminated {
                        break;
                    }
                    if end == 0 {
                        if !record.iter().eq(header.iter().map(String::as_str)) {
                            return Err(foreign());
                        }
                    } else if record.len() == header.len()
                        && record.get(0) == Some((rows + 1).to_string().as_str())
                    {
                        rows += 1;
                    } else {
                        break;
                    }
                    end = position;
                }
                Ok((rows, end))
            }
            FileFormat::Ndjson => {
                let (mut rows, mut end) = (0, 0);
                let mut lines = BufReader::new(&self.file);
                let mut line = Vec::new();
                while lines.read_until(b'\n', &mut line).map_err(|e| failed(&e))? > 0 {
                    if line.last() != Some(&b'\n') {
                        break;
                    }
                    let value: Value = serde_json::from_slice(&line).map_err(|_| foreign())?;
                    if value.get("row").and_then(Value::as_u64) != Some(rows + 1) {
                        return Err(foreign());
                    }
                    rows += 1;
                    end += line.len() as u64;
                    line.clear();
                }
                Ok((rows, end))
            }
        }
    }
}

fn ends_with_newline(path: &Path) -> bool {
    let last = || -> std::io::Result<u8> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(-1))?;
        let mut byte = [0];
        std::io::Read::read_exact(&mut file, &mut byte)?;
        Ok(byte[0])
    };
    last().is_ok_and(|byte| byte == b'\n')
}

/// Values of an output for one row, if the metadata states it.
fn width(output: &Input, max_rows: Option<usize>) -> Option<usize> {
    // A model for one row at a time may leave the dimension of rows out.
    let dimensions = match output.shape.split_first() {
        Some((first, rest)) if *first < 0 || usize::try_from(*first).ok() == max_rows => rest,
        _ => &output.shape,
    };
    dimensions
        .iter()
        .try_fold(1usize, |n, d| usize::try_from(*d).ok().and_then(|d| n.checked_mul(d)))
        .filter(|n| (1..=MAX_COLUMNS).contains(n))
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
