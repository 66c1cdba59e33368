//! `cargo xtask test`: all tests of the workspace, then real clients against the real program.

use crate::{Failure, count::Count, metadata, python};
use serde_json::Value;
use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

struct Options {
    cargo: bool,
    clients: bool,
    filter: Vec<String>,
}

pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    let options = read(arguments)?;
    let mut total = Count::default();
    let mut fine = true;
    if options.cargo {
        let (count, ended_well) = cargo_tests(&options.filter)?;
        total += count;
        fine &= ended_well;
    }
    if options.clients {
        // Whatever keeps the clients from running, cargo's count is still worth its line.
        let (count, ended_well) = client_tests(&options.filter).unwrap_or_else(|failure| {
            println!("\nFAILED: the client tests could not run: {failure}");
            (Count { failed: 1, ..Count::default() }, false)
        });
        total += count;
        fine &= ended_well;
    }
    println!("\n{total}");
    Ok(fine && total.failed == 0)
}

fn read(arguments: &[&str]) -> Result<Options, Failure> {
    let mut options = Options { cargo: true, clients: true, filter: Vec::new() };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match *word {
            "--no-clients" => options.clients = false,
            "--only-clients" => options.cargo = false,
            "--" => options.filter = words.by_ref().map(|w| (*w).to_owned()).collect(),
            other => {
                return Err(
                    format!("test does not know {other}: --no-clients, --only-clients, -- FILTER").into()
                );
            }
        }
    }
    if options.cargo || options.clients {
        return Ok(options);
    }
    Err("--no-clients and --only-clients together leave nothing to run".into())
}

/// Runs cargo's tests, showing what they print as they print it.
fn cargo_tests(filter: &[String]) -> Result<(Count, bool), Failure> {
    let mut command = metadata::cargo();
    command.args(["test", "--workspace", "--no-fail-fast"]);
    if !filter.is_empty() {
        command.arg("--").args(filter);
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut count = Count::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            count += Count::of_line(&line).unwrap_or_default();
        }
    }
    Ok((count, child.wait()?.success()))
}

/// Runs pytest over `tests/clients`, with a program that is built as the tests were.
fn client_tests(filter: &[String]) -> Result<(Count, bool), Failure> {
    let skipped = Count { skipped: 1, ..Count::default() };
    let tests = metadata::root().join("tests/clients");
    let Some(python) = python::find((3, 11), (3, 13)) else {
        println!(
            "\nSKIPPED: the client tests need Python 3.11 to 3.13 with venv and pip, and there is none. Install it, or \
             name one in GANTRY_PYTHON, and run `cargo xtask test --only-clients`."
        );
        return Ok((skipped, true));
    };
    let programs = python::environment(&python, &tests.join("requirements.txt"))?;
    let servers = servers(&python, &tests.join("servers"))?;
    let gantry = build()?;
    let report = std::env::temp_dir().join(format!("gantry-clients-{}.xml", std::process::id()));
    let mut command = Command::new(programs.join("python"));
    command.current_dir(&tests).env("GANTRY", &gantry).env("PYTHONDONTWRITEBYTECODE", "1").envs(servers);
    command.args(["-m", "pytest", "-p", "no:cacheprovider", "--junitxml"]).arg(&report);
    if !filter.is_empty() {
        command.args(["-k", &filter.join(" or ")]);
    }
    let status = command.stdin(Stdio::null()).status()?;
    // 5: the filter left nothing to run.
    if status.code() == Some(5) {
        return Ok((Count::default(), true));
    }
    let text = std::fs::read_to_string(&report).unwrap_or_default();
    let _ = std::fs::remove_file(&report);
    let count = Count::of_junit(&text).ok_or("pytest left no report of what it did")?;
    Ok((count, status.success()))
}

/// The inference servers that agents are tested beside. Each has an environment of its own, because what they need does
/// not go together; the tests find its programs by a variable.
fn servers(python: &python::Python, lists: &Path) -> Result<Vec<(String, PathBuf)>, Failure> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(lists).map_err(|e| format!("{}: {e}", lists.display()))? {
        let list = entry?.path();
        let Some(name) = list.file_stem().map(|n| n.to_string_lossy().to_uppercase()) else { continue };
        // There are no other wheels of it; its tests skip themselves.
        if name == "TRITON" && !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            continue;
        }
        found.push((format!("GANTRY_{name}_PROGRAMS"), python::environment(python, &list)?));
    }
    Ok(found)
}

/// Builds `gantry` in the profile of the tests. The whole workspace and its tests are named, so that dependencies have
/// the features that `cargo test` gave them: nothing is compiled a second time.
fn build() -> Result<PathBuf, Failure> {
    let mut command = metadata::cargo();
    command.args([
        "build",
        "--workspace",
        "--bins",
        "--tests",
        "--message-format",
        "json-render-diagnostics",
    ]);
    let built = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !built.status.success() {
        return Err("gantry does not build".into());
    }
    let lines = String::from_utf8_lossy(&built.stdout);
    let executable =
        lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
            let named = message.pointer("/target/name")?.as_str()? == "gantry";
            // The tests inside the program are an executable of that name too.
            let is_test = message.pointer("/profile/test").and_then(Value::as_bool).unwrap_or(false);
            (named && !is_test).then(|| message.get("executable")?.as_str().map(PathBuf::from)).flatten()
        });
    executable.ok_or_else(|| "cargo built no program called gantry".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_read() {
        let options = read(&["--only-clients", "--", "kill", "drain"]).unwrap();
        assert!(!options.cargo && options.clients);
        assert_eq!(options.filter, ["kill", "drain"]);
        assert!(read(&["--no-clients"]).is_ok_and(|o| o.cargo && !o.clients));
        assert!(read(&["--no-clients", "--only-clients"]).is_err());
        assert!(read(&["--fast"]).is_err());
    }
}
