//! `cargo xtask e2e`: Gantry in pods, on real nodes.

mod chaos;
mod file_server;
mod gateway_api;
mod harness;
mod inference_check;
mod inference_services;
mod install;
mod load;
mod mlserver;
mod operator;
mod pod;
mod pod_kill;
mod port_forward;
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
    ("inference-services", inference_services::run),
    ("chaos", chaos::run),
];

/// The scenarios with programs of others, which are built from source or packed into images.
const LONG_SCENARIOS: &[(&str, Scenario)] = &[("mlserver", mlserver::run), ("gateway-api", gateway_api::run)];

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    keep: bool,
    /// With the long scenarios; a named one needs no option.
    long: bool,
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
        } else if *word == "--long" {
            options.long = true;
        } else if all().any(|(name, _)| name == word) {
            options.names.push((*word).to_owned());
        } else {
            let known: Vec<&str> = all().map(|(name, _)| *name).collect();
            let known = known.join(", ");
            return Err(format!("unknown e2e argument {word}; expected --keep, --long, {known}").into());
        }
    }
    Ok(options)
}

fn all() -> impl Iterator<Item = &'static (&'static str, Scenario)> {
    SCENARIOS.iter().chain(LONG_SCENARIOS)
}

/// The named scenarios, or the default ones.
fn selected(options: &Options) -> Vec<(&'static str, Scenario)> {
    let long = if options.long { LONG_SCENARIOS } else { &[] };
    let defaults = || SCENARIOS.iter().chain(long).copied().collect();
    let named = || all().filter(|(name, _)| options.names.iter().any(|n| n == name)).copied().collect();
    if options.names.is_empty() { defaults() } else { named() }
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
    let mut count = Count::default();
    for (name, scenario) in selected(options) {
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
            Options { keep: true, long: false, names: vec!["program".into()] }
        );
        let names = |arguments: &[&str]| -> Vec<&str> {
            selected(&read(arguments).unwrap()).into_iter().map(|(name, _)| name).collect()
        };
        assert!(!names(&[]).contains(&"gateway-api"));
        assert_eq!(names(&["--long"]).len(), names(&[]).len() + LONG_SCENARIOS.len());
        assert_eq!(names(&["gateway-api"]), ["gateway-api"]);
        assert!(read(&["--fast"]).unwrap_err().to_string().contains("program"));
    }
}
