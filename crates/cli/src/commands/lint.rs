//! `gantry lint`: the validation of `apply`, offline.

use crate::{
    error::{CommandError, Exit},
    manifests::Manifests,
    output::{count, emit, emit_line, print_stderr},
};
use clap::ValueEnum;
use gantry_api::Diagnostic;
use serde_json::json;
use std::path::PathBuf;

/// Validate manifests offline, without applying them.
///
/// Prints one problem per line to stdout: file, line, field and message. Warnings go to stderr.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry lint iris.yaml\n  gantry lint -R models/ -o json\n  \
    kubectl get models -o yaml | gantry lint -")]
pub(crate) struct Args {
    /// Files, directories, or - for stdin
    #[arg(required_unless_present = "filenames", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The same, as for apply; repeatable
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    filenames: Vec<PathBuf>,
    /// Include subdirectories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    output: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// One line per problem
    Text,
    /// A JSON object with counts and a list of problems
    Json,
}

pub(crate) fn run(args: &Args) -> Result<(), CommandError> {
    let paths: Vec<PathBuf> = args.files.iter().chain(&args.filenames).cloned().collect();
    let read = Manifests::read_all(&paths, args.recursive)?.with_resolved_policies();
    for foreign in &read.foreign {
        let (kind, version) = (foreign.kind.escape_debug(), foreign.api_version.escape_debug());
        let remedy = foreign.conversion().map(|remedy| format!("; {remedy}")).unwrap_or_default();
        print_stderr(&format!("{}:{}: not checked: {kind} of {version}{remedy}", foreign.file, foreign.line));
    }
    for warning in &read.warnings {
        let Diagnostic { file, line, path, message } = warning;
        print_stderr(&format!("{file}:{line}: warning: {path} {message}"));
    }
    let objects = read.objects.len() + read.cluster.len();
    let (files, problems) = (read.files, read.problems.len());
    if args.output == Form::Json {
        let list: Vec<_> = read
            .problems
            .iter()
            .map(|p| json!({ "file": p.file, "line": p.line, "path": p.path, "message": p.message }))
            .collect();
        let report = json!({ "files": files, "objects": objects, "problems": list });
        emit(serde_json::to_string_pretty(&report).unwrap_or_default() + "\n")?;
    } else {
        for problem in &read.problems {
            emit_line(&problem.to_string())?;
        }
    }
    if problems == 0 {
        print_stderr(&format!("ok: {} in {}", count(objects, "object"), count(files, "file")));
        return Ok(());
    }
    print_stderr(&format!("{} in {}", count(problems, "problem"), count(files, "file")));
    Err(CommandError::silent(Exit::Usage))
}
