//! Simulates many seeds, one process each, in parallel.

use crate::{
    arguments::Arguments,
    process::{self, Report},
    scenario::{Scenario, generate, shrink},
};
use std::{
    collections::BTreeMap,
    path::Path,
    process::Command,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

const SHRINK_ATTEMPTS: u32 = 300;

pub(crate) fn seeds(arguments: &Arguments) -> Result<bool, String> {
    let (started, next) = (Instant::now(), AtomicU64::new(arguments.from));
    let end = arguments.from + arguments.seeds;
    let failed = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let report = child(&seed.to_string(), arguments);
                    let what = match report {
                        Ok(Report { violation: None, .. }) => continue,
                        Ok(Report { violation: Some((_, what)), .. }) | Err(what) => what,
                    };
                    println!("seed {seed}: {what}");
                    println!("  cargo xtask sim --replay {seed}{}", flags(arguments));
                    failed.lock().unwrap_or_else(PoisonError::into_inner).insert(seed, what);
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let hours = arguments.length as f64 / 3_600_000.0;
    println!(
        "{} seeds of {hours} virtual hours: {} pass, {} fail; {:.1} s",
        arguments.seeds,
        arguments.seeds - failed.len() as u64,
        failed.len(),
        started.elapsed().as_secs_f64()
    );
    if arguments.shrink {
        for seed in failed.keys().take(3) {
            shrink_and_save(generate(*seed, arguments.length), &format!("seed-{seed}"), arguments)?;
        }
    }
    Ok(failed.is_empty())
}

pub(crate) fn replay(arguments: &Arguments) -> Result<bool, String> {
    if arguments.shrink {
        let scenario = arguments.scenario()?;
        let name = Path::new(&arguments.which).file_stem().map(|s| s.to_string_lossy().into_owned());
        return shrink_and_save(scenario, &name.unwrap_or_default(), arguments);
    }
    let outcome = process::run_scenario(arguments)?;
    for line in &outcome.lines {
        println!("{line}");
    }
    println!("\n{}", process::summary(outcome.violation.as_ref()));
    Ok(outcome.violation.is_none())
}

fn flags(arguments: &Arguments) -> String {
    let hours = arguments.length as f64 / 3_600_000.0;
    if arguments.length == 3_600_000 { String::new() } else { format!(" --hours {hours}") }
}

/// Simulates one scenario in a child process; an error if it crashes.
fn child(which: &str, arguments: &Arguments) -> Result<Report, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(program);
    let hours = arguments.length as f64 / 3_600_000.0;
    command.args(["--run", which, "--hours", &hours.to_string()]);
    let output = command.output().map_err(|e| e.to_string())?;
    let report = serde_json::from_slice(&output.stdout);
    report.map_err(|_| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = stderr.lines().rev().take(8).collect();
        format!("the process exited with {}: {}", output.status, last.join(" | "))
    })
}

/// Shrinks a failing scenario and writes it to a file.
fn shrink_and_save(scenario: Scenario, name: &str, arguments: &Arguments) -> Result<bool, String> {
    let directory = std::env::temp_dir().join("gantry-sim");
    std::fs::create_dir_all(&directory).map_err(|e| e.to_string())?;
    let file = directory.join(format!("{name}-{}.json", std::process::id()));
    let run = |scenario: &Scenario| -> Option<String> {
        std::fs::write(&file, scenario.write()).ok()?;
        let report = child(&file.display().to_string(), arguments);
        report
            .map_or_else(|_| Some("crash or timeout".into()), |r| r.violation.map(|(invariant, _)| invariant))
    };
    let Some(invariant) = run(&scenario) else {
        println!("{name}: all invariants hold");
        return Ok(true);
    };
    let before = scenario.steps.len();
    let small =
        shrink(scenario, SHRINK_ATTEMPTS, |smaller| run(smaller).as_deref() == Some(invariant.as_str()));
    std::fs::write(&file, small.write()).map_err(|e| e.to_string())?;
    println!("{name}: {invariant}, with {} of {before} steps:", small.steps.len());
    small.steps.iter().for_each(|step| println!("  {:>8} ms {}", step.at, step.action));
    println!("  cargo xtask sim --replay {}{}", file.display(), flags(arguments));
    Ok(false)
}
