//! `gantry lint`: what `apply` checks before it sends anything, offline.

use crate::{
    failure::{Exit, Failure},
    manifests::Manifests,
    output::{emit, emit_line, say},
};
use clap::ValueEnum;
use serde_json::json;
use std::path::PathBuf;

/// Check manifests without applying them, offline.
///
/// Problems go to stdout, one a line, as file, line, field, and what is wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  gantry lint iris.yaml\n  gantry lint -R models/ -o json\n  \
    kubectl get models -o yaml | gantry lint -")]
pub(crate) struct Args {
    /// Files, directories, or - for stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Look into the directories of directories too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// How problems are printed
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORMAT")]
    output: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// One line a problem
    Text,
    /// An object with the counts and a list of problems
    Json,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let read = Manifests::read_all(&args.files, args.recursive)?;
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
    let plural = |n: usize, what: &str| if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") };
    if problems == 0 {
        say(&format!("ok: {} in {}", plural(objects, "object"), plural(files, "file")));
        return Ok(());
    }
    say(&format!("{} in {}", plural(problems, "problem"), plural(files, "file")));
    Err(Failure::said(Exit::Usage))
}
