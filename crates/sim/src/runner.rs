//! Many worlds, a process each, as many at once as there are cores.

use crate::{
    arguments::Arguments,
    plan::{Plan, generate, shrink},
    process::{self, Report},
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

/// How often a plan is run at most to make it smaller.
const TRIES: u32 = 300;

/// Runs the worlds of many seeds.
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
        "{} seeds of {hours} virtual hours: {} hold, {} fail; {:.1} s",
        arguments.seeds,
        arguments.seeds - failed.len() as u64,
        failed.len(),
        started.elapsed().as_secs_f64()
    );
    if arguments.shrink {
        for seed in failed.keys().take(3) {
            make_smaller(generate(*seed, arguments.length), &format!("seed-{seed}"), arguments)?;
        }
    }
    Ok(failed.is_empty())
}

/// Runs one world and shows everything that happened.
pub(crate) fn replay(arguments: &Arguments) -> Result<bool, String> {
    if arguments.shrink {
        let plan = arguments.plan()?;
        let name = Path::new(&arguments.which).file_stem().map(|s| s.to_string_lossy().into_owned());
        return make_smaller(plan, &name.unwrap_or_default(), arguments);
    }
    let outcome = process::live(arguments)?;
    for line in &outcome.lines {
        println!("{line}");
    }
    println!("\n{}", process::sentence(outcome.violation.as_ref()));
    Ok(outcome.violation.is_none())
}

fn flags(arguments: &Arguments) -> String {
    let hours = arguments.length as f64 / 3_600_000.0;
    if arguments.length == 3_600_000 { String::new() } else { format!(" --hours {hours}") }
}

/// Runs a world in a process of its own; an error when the process did not end as it should.
fn child(which: &str, arguments: &Arguments) -> Result<Report, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(program);
    let hours = arguments.length as f64 / 3_600_000.0;
    command.args(["--world", which, "--hours", &hours.to_string()]);
    let output = command.output().map_err(|e| e.to_string())?;
    let report = serde_json::from_slice(&output.stdout);
    report.map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = said.lines().rev().take(8).collect();
        format!("the process ended with {}: {}", output.status, last.join(" | "))
    })
}

/// Leaves out of a plan what is not needed for it to fail, and writes it down.
fn make_smaller(plan: Plan, name: &str, arguments: &Arguments) -> Result<bool, String> {
    let directory = std::env::temp_dir().join("gantry-sim");
    std::fs::create_dir_all(&directory).map_err(|e| e.to_string())?;
    let file = directory.join(format!("{name}-{}.json", std::process::id()));
    let run = |plan: &Plan| -> Option<String> {
        std::fs::write(&file, plan.write()).ok()?;
        let report = child(&file.display().to_string(), arguments);
        report
            .map_or_else(|_| Some("it panics or hangs".into()), |r| r.violation.map(|(property, _)| property))
    };
    let Some(property) = run(&plan) else {
        println!("{name}: every property held");
        return Ok(true);
    };
    let before = plan.steps.len();
    let small = shrink(plan, TRIES, |smaller| run(smaller).as_deref() == Some(property.as_str()));
    std::fs::write(&file, small.write()).map_err(|e| e.to_string())?;
    println!("{name}: {property}, with {} of {before} steps:", small.steps.len());
    small.steps.iter().for_each(|step| println!("  {:>8} ms {}", step.at, step.action));
    println!("  cargo xtask sim --replay {}{}", file.display(), flags(arguments));
    Ok(false)
}
