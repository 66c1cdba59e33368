//! `gantry state`: what operators do with the state file of `up`.

use crate::{
    failure::{Exit, Failure},
    output::{emit_line, say},
    up::paths,
};
use clap::Subcommand;
use gantry_store::{
    StoreError, Table,
    upkeep::{self, Report},
};
use std::path::{Path, PathBuf};

/// Check, copy or put back what `gantry up` remembers.
///
/// The state file holds what is asked for: models and servers. Downloaded files are not in it; they are fetched again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry state check\n  gantry state backup gantry-monday.redb\n  \
    gantry state restore gantry-monday.redb --force")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    /// Where state is kept, as for `gantry up`
    #[arg(long, global = true, env = "GANTRY_STATE_DIR", value_name = "DIR", hide_env_values = true)]
    state_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Verify every record; damage goes to stdout, one a line. Nothing is changed
    ///
    /// Works while a gantry is running.
    Check {
        /// A backup to look at, instead of the state itself
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Copy the state to a new file, as it is at one moment
    ///
    /// Works while a gantry is running: the copy is verified, and taken again if the state changed under it. An existing
    /// file is never replaced, and the new one appears whole or not at all.
    Backup {
        /// The file to write
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Put a backup in the place of the state
    ///
    /// No gantry may be running on it. What was there is kept beside it.
    Restore {
        /// A file that `gantry state backup` wrote
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Replace a state that holds something, or is damaged
        #[arg(long)]
        force: bool,
    },
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let dir = paths::state_dir(args.state_dir.as_deref())?;
    match &args.command {
        Command::Check { file } => check(file.as_deref().unwrap_or(&upkeep::file_of(&dir))),
        Command::Backup { file } => {
            let report = upkeep::backup(&upkeep::file_of(&dir), file).map_err(|error| failure(&error))?;
            say(&format!("{} written: {}", file.display(), counted(&report)));
            Ok(())
        }
        Command::Restore { file, force } => {
            let restored = upkeep::restore(&dir, file, *force).map_err(|error| match error {
                StoreError::Damaged { file: damaged, what } if damaged == upkeep::file_of(&dir) => {
                    Failure::new(
                        Exit::Refused,
                        format!(
                            "the state file {} is damaged ({what}): --force replaces it and keeps it aside",
                            damaged.display()
                        ),
                    )
                }
                error => failure(&error),
            })?;
            say(&format!("{} restored: {}", restored.report.file.display(), counted(&restored.report)));
            if let Some(replaced) = restored.replaced {
                say(&format!("what was there is kept as {}", replaced.display()));
            }
            Ok(())
        }
    }
}

fn check(file: &Path) -> Result<(), Failure> {
    let report = match upkeep::check(file) {
        Ok(report) => report,
        Err(StoreError::Damaged { what, .. }) => {
            emit_line(&format!("{}: {what}", file.display()))?;
            say("the whole file is refused; `gantry state restore` puts a backup in its place");
            return Err(Failure::said(Exit::Failed));
        }
        Err(error) => return Err(failure(&error)),
    };
    for problem in &report.problems {
        emit_line(&format!("{}: {problem}", file.display()))?;
    }
    if report.cut_off {
        say("the last batch was cut off before it was acknowledged; the next start drops it");
    }
    if report.problems.is_empty() {
        say(&format!("ok: {}", counted(&report)));
        return Ok(());
    }
    let problems = plural(report.problems.len(), "damaged record");
    say(&format!("{problems}; the whole file is refused; `gantry state restore` puts a backup in its place"));
    Err(Failure::said(Exit::Failed))
}

/// Such as `3 models, 1 server (format 2, start 4, batch 17)`.
fn counted(report: &Report) -> String {
    let count = |(table, count): &(Table, usize)| {
        let name = table.name();
        plural(*count, name.strip_suffix('s').unwrap_or(name))
    };
    let records: Vec<String> = report.records.iter().map(count).collect();
    format!(
        "{} (format {}, start {}, batch {})",
        records.join(", "),
        report.format,
        report.epoch,
        report.commits
    )
}

fn plural(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn failure(error: &StoreError) -> Failure {
    let exit = match error {
        StoreError::Missing { .. } => Exit::NotFound,
        StoreError::Exists { .. } | StoreError::NotEmpty { .. } | StoreError::InUse { .. } => Exit::Refused,
        StoreError::Busy { .. } => Exit::Timeout,
        _ => Exit::Failed,
    };
    Failure::new(exit, error.to_string())
}
