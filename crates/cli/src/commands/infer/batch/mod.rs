//! `gantry infer --input FILE --output FILE`: one prediction per row of a file.
//!
//! ```text
//! rows (CSV, NDJSON) ─▶ columns (row → values of each input) ─▶ requests of N rows, several in flight ─▶ predictions (in row order)
//! ```
//!
//! The output has one line per row, also for rows that failed, in the order of the input. `--resume` therefore continues after the
//! last complete line.

mod columns;
mod predictions;
mod rows;
mod send;

use super::client::InferClient;
use crate::{
    error::{CommandError, Exit},
    output::print_stderr,
};
use columns::Columns;
use futures::{StreamExt as _, stream};
use predictions::Predictions;
use rows::Rows;
use send::{Sender, Values};
use std::{
    io::{IsTerminal as _, Write as _},
    path::PathBuf,
    time::{Duration, Instant},
};

/// Failed rows that the summary lists by number.
const LISTED_FAILURES: usize = 10;
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) struct BatchOptions {
    pub(super) input: PathBuf,
    pub(super) output: PathBuf,
    /// Columns of the input in the order of the model's values; empty for all.
    pub(super) columns: Vec<String>,
    pub(super) rows_per_request: usize,
    pub(super) concurrency: usize,
    pub(super) resume: bool,
}

/// The format of a file, by its suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileFormat {
    Csv,
    Ndjson,
}

impl FileFormat {
    fn of(path: &std::path::Path) -> Result<Self, CommandError> {
        let suffix = path.extension().and_then(|s| s.to_str()).unwrap_or_default().to_ascii_lowercase();
        match suffix.as_str() {
            "csv" => Ok(Self::Csv),
            "ndjson" | "jsonl" => Ok(Self::Ndjson),
            "parquet" => Err(CommandError::usage(format!(
                "{}: Parquet files are not supported: save the data as CSV, with pandas.read_parquet(…).to_csv(…, index=False)",
                path.display()
            ))),
            _ => Err(CommandError::usage(format!(
                "{}: unknown file format: use the suffix .csv, .ndjson or .jsonl",
                path.display()
            ))),
        }
    }
}

/// One outcome per row.
#[derive(Debug)]
struct Answered {
    /// Values of each output, or the reason of the failure.
    rows: Vec<Result<Values, String>>,
    /// Share of the input file that was read when the request was built, in percent.
    percent: u64,
}

pub(super) async fn run(mut client: InferClient, options: &BatchOptions) -> Result<(), CommandError> {
    let mut rows = Rows::open(&options.input)?;
    let model = client.signature().await.map_err(|e| e.command_error(client.model()))?;
    let columns = Columns::new(&model.inputs, rows.header(), &options.columns)?;
    let (mut predictions, answered) =
        Predictions::open(&options.output, &model.outputs, columns.max_rows(), options.resume)?;
    if rows.skip(answered)? < answered {
        return Err(CommandError::usage(format!(
            "{} has more rows than {}: it belongs to another input",
            options.output.display(),
            options.input.display()
        )));
    }
    let rows_per_request = options.rows_per_request.min(columns.max_rows().unwrap_or(usize::MAX)).max(1);
    let sender = Sender::new(client, &columns);
    let mut summary = Summary::new(answered);
    let requests = std::iter::from_fn(|| rows.take(rows_per_request, &columns).transpose());
    let mut answers = stream::iter(requests)
        .map(|request| async {
            let (rows, percent) = request?;
            Ok::<_, CommandError>(Answered { rows: sender.send(rows).await?, percent })
        })
        .buffered(options.concurrency);
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(answer) => {
                predictions.write(&answer.rows)?;
                summary.add(&answer);
            }
            Err(error) => {
                let text = format!(
                    "{}\n{} rows are in {}; continue with --resume.",
                    error.message,
                    summary.answered,
                    options.output.display()
                );
                return Err(CommandError::new(error.exit, text));
            }
        }
    }
    summary.finish(options)
}

#[derive(Debug)]
struct Summary {
    start: Instant,
    last_progress: Instant,
    /// Rows of earlier runs.
    before: u64,
    answered: u64,
    failed: u64,
    first_failures: Vec<u64>,
    progress: bool,
}

impl Summary {
    fn new(before: u64) -> Self {
        let now = Instant::now();
        Self {
            start: now,
            last_progress: now,
            before,
            answered: before,
            failed: 0,
            first_failures: Vec::new(),
            progress: std::io::stderr().is_terminal(),
        }
    }

    fn add(&mut self, answer: &Answered) {
        for row in &answer.rows {
            self.answered += 1;
            if row.is_err() {
                self.failed += 1;
                if self.first_failures.len() < LISTED_FAILURES {
                    self.first_failures.push(self.answered);
                }
            }
        }
        if self.progress && self.last_progress.elapsed() >= PROGRESS_INTERVAL {
            self.last_progress = Instant::now();
            let line = format!(
                "\r{} % · {} rows · {} rows/s · {} failed ",
                answer.percent,
                self.answered,
                self.rate(),
                self.failed
            );
            let _ = std::io::stderr().lock().write_all(line.as_bytes());
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a rate for people"
    )]
    fn rate(&self) -> u64 {
        ((self.answered - self.before) as f64 / self.start.elapsed().as_secs_f64().max(1e-3)) as u64
    }

    fn finish(self, options: &BatchOptions) -> Result<(), CommandError> {
        if self.progress {
            let _ = std::io::stderr().lock().write_all(b"\r\x1b[K");
        }
        let rows = self.answered - self.before;
        let resumed =
            if self.before > 0 { format!(" after {} of earlier runs", self.before) } else { String::new() };
        let seconds = self.start.elapsed().as_secs_f64();
        let mut text = format!(
            "{rows} rows{resumed} in {seconds:.1} s ({} rows/s), {} failed. Written to {}.",
            self.rate(),
            self.failed,
            options.output.display()
        );
        if self.failed == 0 {
            print_stderr(&text);
            return Ok(());
        }
        let listed: Vec<String> = self.first_failures.iter().map(ToString::to_string).collect();
        let more = if self.failed > self.first_failures.len() as u64 { " and others" } else { "" };
        text.push_str(&format!(
            "\nFailed rows: {}{more}; the field error has the reason of each.",
            listed.join(", ")
        ));
        print_stderr(&text);
        Err(CommandError::silent(Exit::Failed))
    }
}
