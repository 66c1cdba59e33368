//! Runs tests or seeds with one mutant after the other until one fails.

use super::{HOURS, SEEDS, table::Mutant, workspace::Copy};
use crate::Failure;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
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
const QUICK_TIMEOUT: Duration = Duration::from_secs(30);
const SLOW_TIMEOUT: Duration = Duration::from_mins(20);

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

/// Probes with the time that each needs without a mutant.
type Timed<'a> = Vec<(&'a Probe, Duration)>;

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

    /// The tests of a target with these names, or all.
    pub(super) fn tests(
        copy: &Copy,
        package: &str,
        target: &str,
        tests: &BTreeSet<&str>,
    ) -> Result<Self, Failure> {
        let target: &[&str] = if target == "lib" { &["--lib"] } else { &["--test", target] };
        let program = copy.build(&[&["test", "--no-run", "--package", package], target].concat())?;
        let listed = Command::new(&program).args(["--list", "--format=terse"]).output()?;
        let listed = String::from_utf8(listed.stdout)?;
        let names: Vec<&str> = listed.lines().filter_map(|line| line.strip_suffix(": test")).collect();
        if let Some(missing) = tests.iter().find(|test| !names.contains(test)) {
            return Err(format!("{package} has no test {missing}: see crates/sim/mutants").into());
        }
        let names = names.into_iter().filter(|name| tests.is_empty() || tests.contains(name));
        let probe = |name: &str| Probe {
            name: name.to_owned(),
            arguments: ["--exact", name, "--test-threads=1"].map(str::to_owned).to_vec(),
        };
        let folder = package.strip_prefix("gantry-").unwrap_or(package);
        let directory = copy.root.join("crates").join(folder);
        Ok(Self { program, directory, probes: names.map(probe).collect() })
    }

    /// Returns whether every mutant is detected. Slow probes run only for mutants that no quick one detects.
    pub(super) fn run(self, mutants: &[&Mutant]) -> Result<bool, Failure> {
        let started = Instant::now();
        let (quick, slow) = self.baseline(self.probes.iter().collect(), QUICK_TIMEOUT)?;
        let mut detected = self.detect_all(&quick, mutants);
        let missing: Vec<&Mutant> =
            mutants.iter().copied().filter(|mutant| !detected.contains_key(&mutant.name)).collect();
        if !missing.is_empty() && !slow.is_empty() {
            let (slow, hanging) = self.baseline(slow, SLOW_TIMEOUT)?;
            if let [probe, ..] = hanging.as_slice() {
                return Err(format!("{} times out without a mutant", probe.name).into());
            }
            detected.extend(self.detect_all(&slow, &missing));
        }
        println!("| mutant | effect | detected by | seconds |\n|---|---|---|---|");
        for mutant in mutants {
            let (by, time) = detected
                .get(&mutant.name)
                .map_or(("**not detected**", 0.0), |(by, time)| (by.as_str(), time.as_secs_f64()));
            println!("| `{}` | {} | {by} | {time:.1} |", mutant.name, mutant.effect);
        }
        let (count, seconds) = (detected.len(), started.elapsed().as_secs());
        println!("\n{count} of {} detected in {seconds} s", mutants.len());
        Ok(count == mutants.len())
    }

    /// Runs probes without a mutant. Returns those that pass, the quickest first, and those that time out.
    fn baseline<'a>(
        &self,
        probes: Vec<&'a Probe>,
        limit: Duration,
    ) -> Result<(Timed<'a>, Vec<&'a Probe>), Failure> {
        let started = Instant::now();
        let outcomes = each(&probes, |probe| {
            let started = Instant::now();
            (self.try_once(probe, None, limit), started.elapsed())
        });
        let (mut passed, mut late) = (Vec::new(), Vec::new());
        for (probe, (outcome, time)) in probes.into_iter().zip(outcomes) {
            match outcome? {
                Outcome::Passed => passed.push((probe, time)),
                Outcome::TimedOut => late.push(probe),
                Outcome::Failed(_) => return Err(format!("{} fails without a mutant", probe.name).into()),
            }
        }
        passed.sort_by_key(|(_, time)| *time);
        eprintln!("{} pass without a mutant in {} s", passed.len(), started.elapsed().as_secs());
        Ok((passed, late))
    }

    fn detect_all(&self, probes: &Timed<'_>, mutants: &[&Mutant]) -> BTreeMap<String, (String, Duration)> {
        let detected = each(mutants, |mutant| {
            let started = Instant::now();
            let by = self.detect(probes, mutant)?;
            eprintln!("{}: {by}", mutant.name);
            Some((mutant.name.clone(), (by, started.elapsed())))
        });
        detected.into_iter().flatten().collect()
    }

    /// The first probe that fails, or that does not end although it takes less than a second without the mutant. Another one
    /// that times out detects nothing: the machine may be slow. A mutant with a named test has to be detected by it.
    fn detect(&self, probes: &Timed<'_>, mutant: &Mutant) -> Option<String> {
        let named = mutant.detector.test();
        let mutant = mutant.name.as_str();
        let mut probes = probes.iter().filter(|(probe, _)| named.is_none_or(|test| test == probe.name));
        probes.find_map(|(probe, time)| {
            match self.try_once(probe, Some(mutant), *time * 10 + QUICK_TIMEOUT) {
                Ok(Outcome::Passed) => None,
                Ok(Outcome::Failed(Some(invariant))) => Some(format!("{}: {invariant}", probe.name)),
                Ok(Outcome::Failed(None)) => Some(format!("`{}`", probe.name)),
                Ok(Outcome::TimedOut) if *time < Duration::from_secs(1) => {
                    Some(format!("`{}` does not end", probe.name))
                }
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
