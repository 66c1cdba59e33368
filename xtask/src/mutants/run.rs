//! Runs tests or seeds with one mutant after the other until one fails.

use super::{HOURS, SEEDS, table::Mutant, workspace::Copy};
use crate::Failure;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::Read,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// For one test or seed without a mutant.
const BASELINE_TIMEOUT: Duration = Duration::from_mins(20);

/// A program that detects mutants, and the ways to run it.
pub(super) struct Suite {
    program: PathBuf,
    directory: PathBuf,
    probes: Vec<Probe>,
}

/// One test, seed or kept scenario.
struct Probe {
    name: String,
    arguments: Vec<String>,
}

enum Outcome {
    Passed,
    /// With the violated invariant, where the program reports one.
    Failed(Option<String>),
    TimedOut,
}

impl Suite {
    pub(super) fn simulation(copy: &Copy) -> Result<Self, Failure> {
        let program = copy.build(&["build", "--package", "gantry-sim", "--bin", "gantry-sim"])?;
        let directory = copy.root.join("crates/sim");
        let probe = |name: String, which: String| Probe {
            name,
            arguments: ["--run", &which, "--hours", HOURS].map(str::to_owned).to_vec(),
        };
        let mut probes: Vec<Probe> =
            (0..SEEDS).map(|seed| probe(format!("seed {seed}"), seed.to_string())).collect();
        for entry in std::fs::read_dir(directory.join("scenarios"))? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            probes.push(probe(name, path.display().to_string()));
        }
        Ok(Self { program, directory, probes })
    }

    pub(super) fn operator(copy: &Copy) -> Result<Self, Failure> {
        let program = copy.build(&["test", "--no-run", "--package", "gantry-operator", "--test", "it"])?;
        let listed = Command::new(&program).args(["--list", "--format=terse"]).output()?;
        let listed = String::from_utf8(listed.stdout)?;
        let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        let probe = |name: &str| Probe {
            name: name.to_owned(),
            arguments: ["--exact", name, "--test-threads=1"].map(str::to_owned).to_vec(),
        };
        Ok(Self { program, directory: copy.root.join("crates/operator"), probes: names.map(probe).collect() })
    }

    /// Returns whether every mutant is detected.
    pub(super) fn run(mut self, mutants: &[&Mutant]) -> Result<bool, Failure> {
        let started = Instant::now();
        let timed = each(&self.probes, |probe| {
            let started = Instant::now();
            (self.try_once(probe, None, BASELINE_TIMEOUT), started.elapsed())
        });
        let mut probes = Vec::new();
        for (probe, (outcome, time)) in self.probes.drain(..).zip(timed) {
            match outcome? {
                Outcome::Passed => probes.push((probe, time)),
                Outcome::Failed(_) | Outcome::TimedOut => {
                    return Err(format!("{} fails without a mutant", probe.name).into());
                }
            }
        }
        // Quick probes first: slow ones run only for mutants that no other detects.
        probes.sort_by_key(|(_, time)| *time);
        eprintln!("{} pass without a mutant in {:.0} s", probes.len(), started.elapsed().as_secs_f64());

        let detected = each(mutants, |mutant| {
            let started = Instant::now();
            let by = self.detect(&probes, &mutant.name);
            eprintln!("{}: {}", mutant.name, by.as_ref().map_or("not detected", |by| by.as_str()));
            (by, started.elapsed())
        });
        println!("| mutant | effect | detected by | seconds |\n|---|---|---|---|");
        let mut count = 0;
        for (mutant, (by, time)) in mutants.iter().zip(detected) {
            count += usize::from(by.is_some());
            let by = by.unwrap_or_else(|| "**not detected**".into());
            println!("| `{}` | {} | {by} | {:.1} |", mutant.name, mutant.effect, time.as_secs_f64());
        }
        println!("\n{count} of {} detected in {:.0} s", mutants.len(), started.elapsed().as_secs_f64());
        Ok(count == mutants.len())
    }

    /// The first probe that fails. One that times out detects nothing: the machine may be slow.
    fn detect(&self, probes: &[(Probe, Duration)], mutant: &str) -> Option<String> {
        probes.iter().find_map(|(probe, time)| {
            match self.try_once(probe, Some(mutant), *time * 10 + Duration::from_mins(1)) {
                Ok(Outcome::Passed) => None,
                Ok(Outcome::Failed(Some(invariant))) => Some(format!("{}: {invariant}", probe.name)),
                Ok(Outcome::Failed(None)) => Some(format!("`{}`", probe.name)),
                Ok(Outcome::TimedOut) => {
                    eprintln!("{mutant}: {} timed out", probe.name);
                    None
                }
                Err(error) => {
                    eprintln!("{mutant}: {}: {error}", probe.name);
                    None
                }
            }
        })
    }

    fn try_once(&self, probe: &Probe, mutant: Option<&str>, limit: Duration) -> Result<Outcome, String> {
        let started = Instant::now();
        let is_test = probe.arguments.iter().any(|a| a == "--exact");
        let mut command = Command::new(&self.program);
        command
            .args(&probe.arguments)
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory)
            .env("INSTA_UPDATE", "no")
            .env_remove("GANTRY_MUTANT")
            .envs(mutant.map(|name| ("GANTRY_MUTANT", name)))
            .stdout(if is_test { Stdio::null() } else { Stdio::piped() })
            .stderr(Stdio::null());
        let mut child = command.spawn().map_err(|e| e.to_string())?;
        loop {
            if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
                let mut report = String::new();
                if let Some(output) = &mut child.stdout {
                    let _ = output.read_to_string(&mut report);
                }
                let report: Value = serde_json::from_str(&report).unwrap_or_default();
                let invariant = report.pointer("/violation/0").and_then(Value::as_str).map(str::to_owned);
                return Ok(if status.success() { Outcome::Passed } else { Outcome::Failed(invariant) });
            }
            if started.elapsed() > limit {
                let _ = child.kill();
                let _ = child.wait();
                return Ok(Outcome::TimedOut);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Maps in parallel, with as many threads as cores.
fn each<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(one) = all.get(number) else { return };
                    let result = work(one);
                    done.lock().unwrap_or_else(PoisonError::into_inner).insert(number, result);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}
