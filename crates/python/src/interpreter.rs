//! The Python interpreter of an environment.

use crate::process::{self, Limits};
use std::{ops::RangeInclusive, path::PathBuf, process::Command, time::Duration};

/// Environment variable with the interpreter to use.
const VARIABLE: &str = "GANTRY_PYTHON";
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interpreter {
    pub(crate) program: PathBuf,
    /// Minor version of Python 3.
    pub(crate) minor: u32,
}

/// The first interpreter whose version is in the range; the error names the versions that were found.
pub(crate) fn find(versions: &RangeInclusive<u32>) -> Result<Interpreter, String> {
    let wished = std::env::var(VARIABLE).ok().filter(|program| !program.is_empty());
    let newest_first = versions.clone().rev().map(|minor| format!("python3.{minor}"));
    let names: Vec<String> = wished
        .map_or_else(|| std::iter::once("python3".to_owned()).chain(newest_first).collect(), |p| vec![p]);
    let mut others = Vec::new();
    for name in names {
        match probe(&name) {
            Some(found) if versions.contains(&found.minor) => return Ok(found),
            Some(found) => others.push(format!("3.{}", found.minor)),
            None => {}
        }
    }
    others.sort();
    others.dedup();
    let found = if others.is_empty() {
        "none with venv is".into()
    } else {
        format!("Python {} is", others.join(", "))
    };
    Err(format!(
        "it needs Python 3.{} to 3.{} with venv, and {found} installed: install one, or name it in {VARIABLE}",
        versions.start(),
        versions.end()
    ))
}

fn probe(name: &str) -> Option<Interpreter> {
    // Some systems have `venv` without `ensurepip`.
    let script = "import sys, venv, ensurepip; print(*sys.version_info[:2], sys.executable)";
    let mut command = Command::new(name);
    command.args(["-c", script]);
    let mut output = String::new();
    process::run(command, &Limits::within(PROBE_TIMEOUT), &mut |line| output.push_str(line)).ok()?;
    let mut words = output.trim().splitn(3, ' ');
    let (major, minor) = (words.next()?, words.next()?.parse().ok()?);
    Some(Interpreter { program: words.next()?.into(), minor }).filter(|_| major == "3")
}
