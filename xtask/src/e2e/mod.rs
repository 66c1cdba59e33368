//! `cargo xtask e2e`: Gantry in pods, on real nodes.

mod chaos;
mod harness;
mod inference_check;
mod install;
mod load;
mod operator;
mod pod;
mod pod_kill;
mod program;
mod services;
mod static_manifests;
mod volumes;

use crate::{Failure, Unavailable, count::Count, image, k8s, metadata};
use harness::Harness;
use std::time::Instant;

type Scenario = fn(&Harness) -> Result<(), Failure>;

/// The scenarios, in order; they share a cluster, and each has its own namespace.
const SCENARIOS: &[(&str, Scenario)] = &[
    ("program", program::run),
    ("services", services::run),
    ("static", static_manifests::run),
    ("operator", operator::run),
    ("chaos", chaos::run),
];

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    keep: bool,
    names: Vec<String>,
}

pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    let options = read(arguments)?;
    match run_scenarios(&options) {
        Err(failure) if failure.is::<Unavailable>() => {
            println!("\nNOT TESTED: Gantry in pods on a real node: {failure}");
            Ok(true)
        }
        other => other,
    }
}

fn read(arguments: &[&str]) -> Result<Options, Failure> {
    let mut options = Options::default();
    for word in arguments {
        if *word == "--keep" {
            options.keep = true;
        } else if SCENARIOS.iter().any(|(name, _)| name == word) {
            options.names.push((*word).to_owned());
        } else {
            let known: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
            return Err(format!("unknown e2e argument {word}; expected --keep, {}", known.join(", ")).into());
        }
    }
    Ok(options)
}

fn run_scenarios(options: &Options) -> Result<bool, Failure> {
    let cluster =
        k8s::Options { directory: metadata::target().join("e2e"), node: true, kwok: 0, audit_reads: false };
    // Checked before anything is compiled.
    k8s::node_requirements()?;
    // Dynamic, like the tests: nothing is compiled again for the image.
    let image = image::make(&image::Options { debug: true, dynamic: true, ..image::Options::default() })?;
    let guard = if options.keep { None } else { Some(k8s::Guard::new(&cluster)?) };
    let harness = Harness::new(k8s::Cluster::up(&cluster)?, &image)?;
    let selected = |name: &str| options.names.is_empty() || options.names.iter().any(|n| n == name);
    let mut count = Count::default();
    for (name, scenario) in SCENARIOS.iter().filter(|(name, _)| selected(name)) {
        let started = Instant::now();
        let outcome = harness.in_namespace(name, options.keep, scenario);
        let seconds = started.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                count.passed += 1;
                println!("  {name:<20} ok     {seconds:>6.1} s");
            }
            Err(failure) => {
                count.failed += 1;
                println!("  {name:<20} FAILED {seconds:>6.1} s\n{failure}");
            }
        }
    }
    drop(guard);
    println!("\n{count}");
    Ok(count.failed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed() {
        assert_eq!(read(&[]).unwrap(), Options::default());
        assert_eq!(
            read(&["--keep", "program"]).unwrap(),
            Options { keep: true, names: vec!["program".into()] }
        );
        assert!(read(&["--fast"]).unwrap_err().to_string().contains("program"));
    }
}
