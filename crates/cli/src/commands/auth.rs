//! `gantry auth`: credentials of the inference port.

use crate::{
    error::CommandError,
    output::{emit_line, print_stderr},
};
use gantry_auth::{Auth, Clock};
use std::path::PathBuf;

/// Make API keys for the inference port, and check the configuration of --auth-config
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print a new API key, and its entry for the file of --auth-config
    #[command(
        after_help = "The key is printed once, to standard error; the entry has its digest only.\n\nExamples:\n  \
        gantry auth create-key team-a\n  \
        gantry auth create-key team-a --model 'fraud-*' --expires 2027-12-31 >> auth.yaml"
    )]
    CreateKey {
        /// Unique name of the key: in metrics and messages
        name: String,
        /// Model that the key may use, by name or prefix*; repeatable
        #[arg(long = "model", value_name = "PATTERN", default_value = "*")]
        models: Vec<String>,
        /// Last day on which the key is valid (UTC)
        #[arg(long, value_name = "DATE")]
        expires: Option<jiff::civil::Date>,
    },
    /// Check a configuration: errors name the entry and the remedy
    Check {
        /// The file of --auth-config
        file: PathBuf,
    },
}

pub(crate) fn run(args: &Args) -> Result<(), CommandError> {
    match &args.command {
        Command::CreateKey { name, models, expires } => {
            let generated = gantry_auth::generate()
                .ok_or_else(|| CommandError::failed("the system provides no random numbers for a key"))?;
            let entry = entry(name, &generated.sha256, models, expires.as_ref())?;
            print_stderr(&format!(
                "Key of {name}, shown only now:\n\n  {}\n\nIts entry below keys:\n",
                generated.key
            ));
            emit_line(&entry)
        }
        Command::Check { file } => {
            let auth = Auth::open(file, Clock::system()).map_err(|e| CommandError::usage(e.to_string()))?;
            emit_line(&format!("{}: {}", file.display(), auth.summary()))
        }
    }
}

/// The entry of a key, checked as the gateway will check it.
fn entry(
    name: &str,
    sha256: &str,
    models: &[String],
    expires: Option<&jiff::civil::Date>,
) -> Result<String, CommandError> {
    let expires = expires.map(|day| format!("\n  expires: {day}")).unwrap_or_default();
    let entry = format!(
        "- name: {}\n  sha256: {sha256}{expires}\n  allow:\n    models: {}\n    rights: [infer, metadata]",
        serde_json::json!(name),
        serde_json::json!(models),
    );
    gantry_auth::check(&format!("keys:\n{entry}\n")).map_err(|e| CommandError::usage(e.message))?;
    Ok(entry)
}
