//! `gantry version`.

use crate::{
    error::CommandError,
    output::{Format, document, emit_document, emit_line},
};
use serde_json::json;

/// Print the version
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print as json, yaml or jsonpath={.path}
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Format>,
}

pub(crate) fn run(args: &Args) -> Result<(), CommandError> {
    let version = env!("CARGO_PKG_VERSION");
    match &args.output {
        None | Some(Format::Table | Format::Wide | Format::Name) => emit_line(&format!("gantry {version}")),
        Some(format) => {
            let about = json!({
                "version": version,
                "os": std::env::consts::OS,
                "architecture": std::env::consts::ARCH,
            });
            emit_document(&document(&about, format)?)
        }
    }
}
