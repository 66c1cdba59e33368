//! `gantry state`: maintenance of the state database of `gantry up`.

use crate::{
    error::{CommandError, Exit},
    output::{count, emit_line, print_stderr},
};
use clap::Subcommand;
use gantry_standalone::bootstrap::paths;
use gantry_store::{
    StoreError, Table,
    maintenance::{self, Report},
};
use std::path::{Path, PathBuf};

const RESTORE_HINT: &str = "gantry refuses to start from it: replace it with `gantry state restore`";

/// Verify, back up or restore the state database.
///
/// The database holds the desired state: models and servers. Downloaded model files are not part of it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry state check\n  gantry state backup gantry-monday.redb\n  \
    gantry state restore gantry-monday.redb --force")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    /// State directory, as for `gantry up`
    #[arg(long, global = true, env = "GANTRY_STATE_DIR", value_name = "DIR", hide_env_values = true)]
    state_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Verify every record and print damaged ones, one per line
    ///
    /// Read-only; works while gantry is running.
    Check {
        /// Backup file to verify instead of the state database
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Write a consistent copy of the state database to a new file
    ///
    /// Works while gantry is running: the copy is verified, and repeated if the state changed meanwhile. An existing file
    /// is never replaced, and the new one is written atomically.
    Backup {
        /// Backup file to write
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Replace the state database with a backup
    ///
    /// Gantry must be stopped. The replaced database is kept next to it.
    Restore {
        /// Backup file written by `gantry state backup`
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Replace a database that is not empty or is damaged
        #[arg(long)]
        force: bool,
    },
}

pub(crate) fn run(args: &Args) -> Result<(), CommandError> {
    let dir = paths::state_dir(args.state_dir.as_deref())?;
    match &args.command {
        Command::Check { file } => check(file.as_deref().unwrap_or(&maintenance::file_of(&dir))),
        Command::Backup { file } => {
            let report = maintenance::backup(&maintenance::file_of(&dir), file)
                .map_err(|error| store_error(&error))?;
            print_stderr(&format!("{} written: {}", file.display(), summary(&report)));
            Ok(())
        }
        Command::Restore { file, force } => {
            let restored = maintenance::restore(&dir, file, *force).map_err(|error| match error {
                StoreError::Damaged { file: damaged, what } if damaged == maintenance::file_of(&dir) => {
                    CommandError::new(
                        Exit::Refused,
                        format!(
                            "state database {} is damaged ({what}): use --force to replace it; a copy is kept",
                            damaged.display()
                        ),
                    )
                }
                error => store_error(&error),
            })?;
            print_stderr(&format!(
                "{} restored: {}",
                restored.report.file.display(),
                summary(&restored.report)
            ));
            if let Some(replaced) = restored.replaced {
                print_stderr(&format!("previous database kept as {}", replaced.display()));
            }
            Ok(())
        }
    }
}

fn check(file: &Path) -> Result<(), CommandError> {
    let report = match maintenance::check(file) {
        Ok(report) => report,
        Err(StoreError::Damaged { what, .. }) => {
            emit_line(&format!("{}: {what}", file.display()))?;
            print_stderr(RESTORE_HINT);
            return Err(CommandError::silent(Exit::Failed));
        }
        Err(error) => return Err(store_error(&error)),
    };
    for problem in &report.problems {
        emit_line(&format!("{}: {problem}", file.display()))?;
    }
    if report.cut_off {
        print_stderr("the last batch was truncated before it was acknowledged; the next start discards it");
    }
    if report.problems.is_empty() {
        print_stderr(&format!("ok: {}", summary(&report)));
        return Ok(());
    }
    print_stderr(&format!("{}; {RESTORE_HINT}", count(report.problems.len(), "damaged record")));
    Err(CommandError::silent(Exit::Failed))
}

/// Such as `3 models, 1 server (format 2, start 4, batch 17)`.
fn summary(report: &Report) -> String {
    let table_count = |(table, records): &(Table, usize)| {
        let name = table.name();
        count(*records, name.strip_suffix('s').unwrap_or(name))
    };
    let records: Vec<String> = report.records.iter().map(table_count).collect();
    format!(
        "{} (format {}, start {}, batch {})",
        records.join(", "),
        report.format,
        report.epoch,
        report.commits
    )
}

fn store_error(error: &StoreError) -> CommandError {
    let exit = match error {
        StoreError::Missing { .. } => Exit::NotFound,
        StoreError::Exists { .. } | StoreError::NotEmpty { .. } | StoreError::InUse { .. } => Exit::Refused,
        StoreError::Busy { .. } => Exit::Timeout,
        _ => Exit::Failed,
    };
    CommandError::new(exit, error.to_string())
}
